"""One pass of every stage before the first step: shapes, what each stage needs, and what cannot be cut."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from advisor.errors import MethodRefusedError, WorkloadError
from advisor.methods.pipeline._leaves import frozen_shown, leaves_of_graph, nodes_before
from advisor.methods.pipeline._outside import Calls, StandIn, outside_modules, stand_ins
from advisor.methods.pipeline._passage import Mark, Run
from advisor.methods.pipeline._places import StageLink, parameters_of_blocks
from advisor.methods.pipeline._relay import Handed, Relay
from advisor.methods.pipeline._stages import Stages
from advisor.methods.pipeline._undisturbed import undisturbed
from advisor.methods.pipeline.balance import Cost, Costs
from advisor.training.live_bytes import live_bytes
from advisor.training.out_of_memory import is_out_of_memory
from advisor.training.processes.distribution import plain_names

__all__ = ["Rehearsal", "output_of_stage", "used_in_stage"]

_NUMBER = -1
"""Every pass draws the same random numbers, so that their outputs can be compared."""


class Rehearsal:
    """Runs the stages of all ranks once, one after another, and leaves the model as it was.

    Args:
        stages: The stages of this rank.
        relay: Runs them.
        device: Where they compute.

    Attributes:
        handed: What each stage of the pipeline returns.
        used: Identities of the parameters that the stages of this rank compute with.
        not_needed: Modules that they can do without, in the place of whose forward functions are stand-ins.
        drew: Whether a stage draws random numbers.
        splits: Whether the backward pass of every stage of this rank can be split in two (:func:`_can_split`).
    """

    def __init__(self, stages: Stages, relay: Relay, device: torch.device) -> None:
        self._stages = stages
        self._relay = relay
        self._device = device
        self.handed: list[Handed] = []
        self.used: set[int] = set()
        self.not_needed: list[StandIn] = []
        self.drew = False
        self.splits = True
        self._calls: Calls | None = None

    def run(self, function: Callable[[], Any]) -> None:
        """Run a function that computes the loss of a micro-batch.

        Raises:
            MethodRefusedError: The model, or its loss, cannot be cut where it is.
        """
        with undisturbed(self._stages.model, self._device):
            self.handed, _ = self._relay.run(function, number=_NUMBER)

    def learn(self, function: Callable[[], Any]) -> None:
        """The same, and find out what each stage uses and can do without.

        Raises:
            MethodRefusedError: The model, or its loss, cannot be cut where it is.
        """
        model = self._stages.model
        outside = [inner for module in outside_modules(model) for inner in module.modules()]
        blocks = parameters_of_blocks(model)
        self.used = set(blocks)
        blocks -= {id(one) for module in outside for one in module._parameters.values() if one is not None}
        outputs: dict[int, torch.Tensor] = {}

        shared = _of_several_blocks(model)

        def seen(stage: int, run: Run, value: Any) -> None:
            value = output_of_stage(value, is_last=run.is_last)
            self.used |= used_in_stage(value, run, blocks)
            self.splits &= stage == 0 or _can_split(
                value if run.last_hidden is None else run.last_hidden, blocks - shared, trained
            )
            outputs[stage] = value.detach().clone()

        calls = self._calls = Calls(outside, self._stages.passage)
        try:
            with undisturbed(model, self._device), frozen_shown(model, without=blocks) as trained:
                self.handed, _ = self._relay.run(function, number=_NUMBER, watched=True, seen=seen)
        finally:
            calls.end()
        self.drew = any(each.drew for each in self.handed)
        self._leave_out(function, calls, outputs)

    def _leave_out(self, function: Callable[[], Any], calls: Calls, outputs: dict[int, torch.Tensor]) -> None:
        """Put stand-ins where a stage computes the same with them; every rank runs as many passes."""
        has_last = self._stages.count - 1 in self._stages.own
        self.not_needed = stand_ins(self._stages.model, self.used, calls, has_last=has_last, device=self._device)
        try:
            same = _equal(self._outputs(function, gauge=self._gauge), outputs)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            same = False  # A stand-in of some rank: what a model says of zeros may be anything.
        if not same:
            self.undo()
        if self._relay.any_rank(not same):
            self._require_alone(function, outputs)

    def _require_alone(self, function: Callable[[], Any], watched: dict[int, torch.Tensor]) -> None:
        """Require that stages compute the same whatever the blocks before them seem to have returned.

        Raises:
            MethodRefusedError: They do not, although they compute the same in two passes that are alike.
        """
        outputs = self._outputs(function)
        differs = not _equal(outputs, watched)
        if not self._relay.any_rank(differs):
            return
        again = self._outputs(function)
        if self._relay.any_rank(differs and _equal(outputs, again)):
            raise MethodRefusedError(
                "between stages of a pipeline only hidden states travel, from one block to the next, but what an "
                "earlier block returns is also read by something else, without a gradient; use fsdp or tensor "
                "parallelism for this model"
            )

    def _outputs(
        self, function: Callable[[], Any], *, gauge: Callable[[], Mark] | None = None
    ) -> dict[int, torch.Tensor]:
        """What the stages of this rank return in a pass."""
        outputs: dict[int, torch.Tensor] = {}

        def seen(stage: int, run: Run, value: Any) -> None:
            outputs[stage] = output_of_stage(value, is_last=run.is_last).detach().clone()

        with undisturbed(self._stages.model, self._device):
            self.handed, _ = self._relay.run(function, number=_NUMBER, seen=seen, gauge=gauge)
        return outputs

    def users(self, parameters: Mapping[str, nn.Parameter]) -> list[set[str]]:
        """For each rank the names of the parameters that it computes with; every rank calls it.

        Args:
            parameters: Name -> parameter of this rank.
        """
        return self._relay.ranks.told_by_all({name for name, one in parameters.items() if id(one) in self.used})

    def late_buffers(self) -> set[str]:
        """Plain names of the buffers of modules that are called after the blocks only; every rank calls it."""
        after = set() if self._calls is None else self._calls.after - self._calls.before
        modules = plain_names(dict(self._stages.model.named_modules()))
        own = {
            f"{name}.{buffer}" for name, module in modules.items() if id(module) in after for buffer in module._buffers
        }
        found: set[str] = self._relay.ranks.told(own, by=self._relay.ranks.owners[-1])
        return found

    def _gauge(self) -> Mark:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter(), live_bytes(self._device)

    def costs(self) -> Costs | None:
        """Seconds, and bytes of what is kept for a backward pass; ``None`` if not measured.

        Seconds are those of a forward pass; a backward pass takes about twice as long everywhere.
        """
        if any(not each.marks for each in self.handed):
            return None
        first, last = self.handed[0].marks, self.handed[-1].marks
        blocks = [
            _between(began, ended)
            for each in self.handed
            for began, ended in zip(each.marks[1:-1:2], each.marks[2:-1:2], strict=True)
        ]
        return Costs(_between(first[0], first[1]), tuple(blocks), _between(last[-2], last[-1]))

    def require_split(self) -> None:
        """Require that backward passes can be split in two, as the zero-bubble schedule does; every rank calls it.

        Raises:
            MethodRefusedError: Weights of some stage would get no gradient.
        """
        instead = "use schedule=interleaved or 1f1b"
        if self._relay.any_rank(not self.splits):
            raise MethodRefusedError(
                "schedule=zero_bubble needs weights that meet the hidden states in one block only, because torch "
                "cannot compute the gradients of others apart from those of the hidden states, but some meet them in "
                f"several blocks of a stage; {instead}"
            )
        for stage, (given, made) in enumerate(itertools.pairwise(self.handed), start=1):
            if made.requires_grad and not given.requires_grad:
                raise MethodRefusedError(
                    "schedule=zero_bubble needs hidden states with a gradient between all stages, because torch finds "
                    f"the weights of a stage on the way to them, but those before stage {stage} have none: nothing "
                    f"before it is trained; {instead}"
                )

    def undo(self) -> None:
        """Give all modules their forward functions back."""
        for stand_in in self.not_needed:
            stand_in.undo()
        self.not_needed = []


def _equal(outputs: dict[int, torch.Tensor], others: dict[int, torch.Tensor]) -> bool:
    return all(torch.equal(output, others[stage]) for stage, output in outputs.items())


def _between(began: Mark, ended: Mark) -> Cost:
    return Cost(ended[0] - began[0], activation_bytes=float(max(0, ended[1] - began[1])))


def _can_split(hidden: torch.Tensor, blocks: set[int], trained: set[int]) -> bool:
    """Whether torch can compute the gradients of a stage's inputs first, and of its weights later.

    It computes the latter for each weight from where it meets the hidden states. A weight that meets them in several
    blocks is beyond it: parts of the graph are gone by then.

    Args:
        hidden: What the last block of the stage returned.
        blocks: Identities of the parameters that only one block has.
        trained: Those of the trained parameters.
    """
    return not (leaves_of_graph([hidden]) & trained) - blocks


def _of_several_blocks(model: nn.Module) -> set[int]:
    seen: set[int] = set()
    several: set[int] = set()
    for link in model.modules():
        if isinstance(link, StageLink):
            own = {id(one) for one in link.parameters()}
            several |= own & seen
            seen |= own
    return several


def output_of_stage(value: Any, *, is_last: bool) -> torch.Tensor:
    """What a stage returned, if it is what it must be.

    Raises:
        WorkloadError: It is no tensor, or no loss in the last stage.
    """
    if not isinstance(value, torch.Tensor) or (is_last and value.numel() != 1):
        raise WorkloadError(f"compute_loss must return a scalar tensor, but it returned a {type(value).__name__}")
    return value


def used_in_stage(value: torch.Tensor, run: Run, blocks: set[int]) -> set[int]:
    """The leaves that a watched stage computed with.

    Args:
        value: What it returned.
        run: Its pass.
        blocks: Identities of the parameters of its blocks alone.

    Raises:
        MethodRefusedError: Among them is what another stage should have computed.
    """
    used = leaves_of_graph([value])
    if used & {id(each) for each in run.stands_in}:
        raise MethodRefusedError(
            "between stages of a pipeline only hidden states travel, from one block to the next, but what an earlier "
            "block returns, or is given, is also used by something else; use fsdp or tensor parallelism for this model"
        )
    if run.last_hidden is not None and leaves_of_graph([value], without=nodes_before(run.last_hidden)) & blocks:
        raise MethodRefusedError(
            "a stage of a pipeline has the parameters of its own blocks only, but the loss reads parameters of blocks "
            "besides running them (such as a penalty on weights, or a loss that blocks compute themselves); put a "
            "penalty into the optimizer's weight_decay, or use fsdp or tensor parallelism"
        )
    return used
