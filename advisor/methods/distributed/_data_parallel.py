"""Every process holds the whole model and trains on its share of the batch; gradients are averaged.

torch's DistributedDataParallel must be told in advance whether some parameters will get no gradient: searching for them
costs time in every step, and not searching leaves gradients silently unaveraged. So the first optimizer step does
without it: each process sums its own gradients, they are averaged one by one, and parameters without a gradient are
recorded. From the second step on, DistributedDataParallel is used with this information.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
import torch.distributed as dist
from torch._guards import detect_fake_mode
from torch.nn.parallel import DistributedDataParallel

from advisor.errors import MethodRefusedError
from advisor.methods.distributed._traced_data_parallel import TracedDataParallel
from advisor.training.processes.distribution import Distribution, LossModule, share_parameters
from advisor.training.processes.world import World

__all__ = ["CommunicationHook", "DataParallel"]

CommunicationHook = Callable[[Any, Any], torch.futures.Future[torch.Tensor]]
"""``(state, bucket of gradients) -> future of their average``."""


class DataParallel(Distribution):
    """The processes of a world, each with a whole copy of one model.

    Args:
        model: The model, on its device; every process gets the parameters of rank 0.
        compute_loss: Its loss.
        world: The processes.
        bucket_views: Let gradients be views into the buffers that are sent.
        static_graph: Promise that every step uses the same parameters in the same order.
        overlaps: Whether gradients are averaged in the last backward pass of a step, and not after all of them as in
            the first step. It is no use where passes of several micro-batches are under way at a time.

    Attributes:
        communication_hook: State and function that average a buffer of gradients in place of a plain sum, from the
            second step on; ``None`` for the plain sum.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor],
        world: World,
        *,
        bucket_views: bool = True,
        static_graph: bool = False,
        overlaps: bool = True,
    ) -> None:
        share_parameters(model, world)
        self.communication_hook: tuple[Any, CommunicationHook] | None = None
        self._world = world
        self._bucket_views = bucket_views
        self._static_graph = static_graph
        self._overlaps = overlaps
        self._module = LossModule(model, compute_loss)
        self._frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
        self._first_step: _FirstStep | None = _FirstStep(model, world)
        self._wrapped: DistributedDataParallel | TracedDataParallel | None = None
        self._synchronizing = True
        self._graph_is_known = False

    def loss(
        self, model: torch.nn.Module, compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor], batch: Any
    ) -> torch.Tensor:
        """The loss, computed so that its backward pass averages the gradients."""
        if self._wrapped is None:
            return compute_loss(model, batch)
        with contextlib.nullcontext() if self._synchronizing else self._wrapped.no_sync():
            loss: torch.Tensor = self._wrapped(batch)
        return loss

    @contextlib.contextmanager
    def accumulating(self) -> Generator[None, None, None]:
        """Gradients stay on this process."""
        # A static graph is learned from the first passes, all of which must be complete ones.
        self._synchronizing = self._static_graph and not self._graph_is_known
        try:
            yield
        finally:
            self._synchronizing = True

    def after_backward(self) -> None:
        """Make sure that every gradient was averaged, or will be.

        Raises:
            MethodRefusedError: There are gradients that nothing averages.
        """
        unfrozen = sum(parameter.grad is not None for parameter in self._frozen)
        if unfrozen:
            raise MethodRefusedError(
                "what is trained must be known when a policy is applied, because only gradients of those parameters "
                f"are averaged between processes, but {unfrozen} that required none then have one now; unfreeze them "
                "before, or apply the policy again after unfreezing them"
            )
        if self._first_step is not None:
            self._first_step.after_backward()
        if self._wrapped is None or not self._synchronizing:
            return
        try:
            self._wrapped._check_reducer_finalized()
        except RuntimeError as error:
            raise MethodRefusedError(
                "some parameters got no gradient in this step, but all of them did in the first one, so gradients of "
                "this step were not averaged; let every parameter take part in every step (for a branch that is left "
                "out, add 0.0 * sum of its parameters to the loss)"
            ) from error

    def complete_gradients(self) -> None:
        """Average the gradients of the first step."""
        if self._first_step is not None:
            self._first_step.average()

    def after_step(self) -> None:
        """From the second step on, DistributedDataParallel averages."""
        if self._first_step is not None and not self._overlaps:
            self._first_step.again()
        elif self._first_step is not None:
            partly_used = self._first_step.close()
            self._first_step = None
            # Its reducer is no Python, and cannot do without values.
            wrapper = DistributedDataParallel if detect_fake_mode() is None else TracedDataParallel
            self._wrapped = wrapper(
                self._module,
                process_group=self._world.device_group,
                gradient_as_bucket_view=self._bucket_views,
                static_graph=self._static_graph,
                find_unused_parameters=partly_used and not self._static_graph,
            )
            if self.communication_hook is not None:
                self._wrapped.register_comm_hook(*self.communication_hook)
        else:
            self._graph_is_known = True

    def model_state(self, model: torch.nn.Module) -> dict[str, Any]:
        """The model's state on rank 0."""
        return super().model_state(model) if self._world.rank == 0 else {}

    def optimizer_state(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's state on rank 0."""
        return super().optimizer_state(optimizer) if self._world.rank == 0 else {}


class _FirstStep:
    """Averages whichever gradients there are, and records which parameters have none."""

    def __init__(self, model: torch.nn.Module, world: World) -> None:
        self._parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._world = world
        self._averaged = False
        self._partly_used = False
        seen: set[int] = set()
        self._seen = seen
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(lambda parameter: seen.add(id(parameter)))  # type: ignore[no-untyped-call]
            for parameter in self._parameters
        ]

    def after_backward(self) -> None:
        self._partly_used |= len(self._seen) < len(self._parameters)
        self._seen.clear()

    def average(self) -> None:
        if self._averaged:
            return
        self._averaged = True
        counts = self._world.totals([parameter.grad is not None for parameter in self._parameters])
        for parameter, count in zip(self._parameters, counts, strict=True):
            if count == 0:
                continue  # As in plain training: no gradient, no update, no weight decay.
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            sent = gradient.contiguous()
            dist.all_reduce(sent, group=self._world.device_group)
            mean = sent.div_(self._world.size)
            if mean.stride() != parameter.stride():  # Fused steps take both to lie in memory alike.
                mean = torch.empty_like(parameter, requires_grad=False).copy_(mean)
            parameter.grad = mean

    def again(self) -> None:
        """The next step is like the first."""
        self._averaged = False

    def close(self) -> bool:
        """Whether some parameter went without a gradient in some backward pass of some process."""
        for hook in self._hooks:
            hook.remove()
        return self._world.total(float(self._partly_used)) > 0.0
