"""A model whose blocks are sliced among the ranks of a tensor-parallel group."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._guards import detect_fake_mode
from torch.distributed.tensor import DTensor

from advisor.methods.tensor_parallel._agreement import agree, require_same_values
from advisor.methods.tensor_parallel._block_plan import Slice
from advisor.methods.tensor_parallel._collectives import ProcessRanks
from advisor.methods.tensor_parallel._derivation import Derivation
from advisor.methods.tensor_parallel._own_masks import OwnDraws
from advisor.methods.tensor_parallel._region_calls import Tokens
from advisor.methods.tensor_parallel._sequence_edges import put_edges
from advisor.methods.tensor_parallel._sliced_state import SlicedState
from advisor.methods.tensor_parallel._slicing import slice_block
from advisor.methods.tensor_parallel._vocabulary import slice_vocabulary
from advisor.methods.tensor_parallel._written_plan import written_plan
from advisor.training.block_call import BlockCall
from advisor.training.optimizer.device_parameter import device_parameter
from advisor.training.processes.cut import Cut, require_parts_for
from advisor.training.processes.world import World
from advisor.training.unsaved import Unsaved

__all__ = ["TensorParallel"]


class TensorParallel(Cut, Unsaved):
    """The blocks of one model, sliced in place. All ranks of the group must be given the same batches.

    Parameters, buffers and the random numbers become those of the group's first rank. Methods that wrap
    blocks, optimizers and data parallelism come afterwards and see plain local parameters.

    Args:
        model: The whole model, on any device.
        blocks: Its blocks, as the derivation was given them.
        derivation: How to slice them.
        world: The tensor-parallel group, of as many ranks as the derivation's degree.
        sequence: Also split the tokens between regions.
        vocabulary: Weights of embeddings and output layers whose rows are sliced too.
        device: Where the model will compute.

    Attributes:
        slices: Plain name of each sliced parameter -> its slice.
        ranks: The ranks of the group.

    Raises:
        MethodRefusedError: The derivation refuses.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        derivation: Derivation,
        world: World,
        *,
        sequence: bool = False,
        vocabulary: Sequence[nn.Parameter] = (),
        device: torch.device | None = None,
    ) -> None:
        super().__init__(world)
        derivation.require(sequence=sequence)
        assert world.device_group is not None, "several processes have a group"
        self.ranks = ProcessRanks(world.device_group)
        assert self.ranks.size == derivation.degree, "the plans are for as many ranks as there are"
        device = device or torch.device("cpu")
        agree(model, written_plan(derivation), world.device_group, device)
        self._model = model
        self._first_block: nn.Module | None = blocks[0]
        self.draws_own = sequence
        self._compared = False
        self._complete = False
        self._draws = OwnDraws(self.ranks.rank, device)
        self._calls = []
        self.slices: dict[str, Slice] = {}
        # Where parameters are held, not the parameters: fully_shard puts others in their places.
        self._partial: dict[tuple[nn.Module, str], None] = {}
        names = {id(module): name for name, module in model.named_modules()}
        tokens = Tokens(derivation.token_dim, derivation.dims)
        for block, plan in zip(blocks, derivation.plans, strict=True):
            prefix = f"{names[id(block)]}."
            self.slices |= {f"{prefix}{name}": part for name, part in plan.slices.items()}
            self._calls += slice_block(
                block,
                plan.regions,
                self.ranks,
                tokens=tokens if sequence else None,
                draws=None if sequence else self._draws,
            )
            self._partial |= {
                (block.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]): None
                for name, _ in block.named_parameters()
                if name not in plan.slices and (sequence or name in plan.partial)
            }
        if vocabulary:
            self.slices |= slice_vocabulary(model, vocabulary, self.ranks)
        if sequence:
            put_edges(model, blocks, derivation.runs, self.ranks, self._draws, tokens)
        self._state = SlicedState(self.slices, self.ranks)
        self._sliced = [
            (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])
            for name, _ in model.named_parameters()
            if name.replace("_checkpoint_wrapped_module.", "") in self.slices
        ]

    def let_go(self, model: nn.Module) -> None:
        """Forget the blocks that are in other stages."""
        there = set(model.modules())
        self._partial = {place: None for place in self._partial if place[0] in there}
        self._sliced = [place for place in self._sliced if place[0] in there]
        self._first_block = self._first_block if self._first_block in there else None

    def copies(self, parameter: nn.Parameter) -> int:
        """One of a slice, as many as there are ranks of anything else."""
        held = device_parameter(parameter)
        return 1 if any(held is one for one in _held(self._sliced)) else self.ranks.size

    def complete_gradients(self) -> None:
        """Sum what each rank has a part of, once after a forward pass."""
        if self._complete:
            return
        self._complete = True
        gradients = [_local(parameter.grad) for parameter in _held(self._partial) if parameter.grad is not None]
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            alike = [gradient for gradient in gradients if gradient.dtype == dtype]
            sent = torch.cat([gradient.flatten() for gradient in alike])
            dist.all_reduce(sent, group=self.ranks.group)
            for gradient, summed in zip(alike, torch.split(sent, [each.numel() for each in alike]), strict=True):
                gradient.copy_(summed.view_as(gradient))

    def whole_model_state(self, state: dict[str, Any]) -> dict[str, Any]:
        """The whole state, in host memory of the group's first rank."""
        return self._state.whole_of(state)

    def own_model_state(self, state: Mapping[str, Any]) -> Mapping[str, Any]:
        """This rank's part of a plain state."""
        return {name: self._state.part(name, value) for name, value in state.items()}

    def whole_optimizer_state(self, state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """The optimizer's whole state, on the group's first rank; in parts where it is coded or factored."""
        return self._state.whole_of_optimizer(state, self._names(state, optimizer))

    def own_optimizer_state(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
        """This rank's part of an optimizer's state."""
        require_parts_for(state, self.ranks.size)
        names = self._names(state, optimizer)
        held = {
            index: {key: self._state.part_of_entry(names[index], value) for key, value in entries.items()}
            for index, entries in state["state"].items()
        }
        return {**state, "state": held}

    def _names(self, state: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> dict[int, str]:
        """Index in the state of an optimizer -> plain name of the parameter."""
        by_id = {
            id(parameter): name.replace("_checkpoint_wrapped_module.", "")
            for name, parameter in self._model.named_parameters()
        }
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        order = [index for group in state["param_groups"] for index in group["params"]]
        pairs = zip(order, parameters, strict=True)
        return {index: by_id.get(id(device_parameter(parameter)), "") for index, parameter in pairs}

    @contextlib.contextmanager
    def forward_context(self) -> Generator[None, None, None]:
        """Around every forward pass: one that fails leaves nothing behind, neither own random numbers nor tensors."""
        self._complete = False
        for calls in self._calls:
            calls.reset()
        try:
            with contextlib.nullcontext() if self._compared else self._comparing():
                yield
        except BaseException:
            self._draws.abandon()
            raise

    @contextlib.contextmanager
    def _comparing(self) -> Generator[None, None, None]:
        """Compare what the first block is given on each rank, in the first forward pass."""

        def compare(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            read = None if self._compared else BlockCall.read(module, args, kwargs)
            self._compared = True
            if read is not None and detect_fake_mode((read[0],)) is None:
                require_same_values(read[0], self.ranks.group)

        block = self._first_block
        if block is None:  # What it is given is computed elsewhere.
            yield
            return
        # The outermost wrapper: where a sequence is split, it is given all tokens.
        outermost = next(
            module
            for parent in self._model.modules()
            for module in parent.children()
            if any(one is block for one in module.modules()) and _only_wraps(module, block)
        )
        hook = outermost.register_forward_pre_hook(compare, with_kwargs=True)
        try:
            yield
        finally:
            hook.remove()


def _only_wraps(module: nn.Module, block: nn.Module) -> bool:
    """Whether a module is the block or a wrapper around it."""
    while module is not block and isinstance(inner := getattr(module, "_checkpoint_wrapped_module", None), nn.Module):
        module = inner
    return module is block


def _held(places: Iterable[tuple[nn.Module, str]]) -> list[nn.Parameter]:
    """The parameters that modules hold now, each once."""
    found = [module._parameters[name] for module, name in places]
    return list({id(one): one for one in found if one is not None}.values())


def _local(gradient: torch.Tensor) -> torch.Tensor:
    """What of a gradient is on this process; it can be written to."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
