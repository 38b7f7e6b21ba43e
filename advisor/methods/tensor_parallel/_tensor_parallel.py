"""A model whose blocks are sliced among the processes of a group, as a training uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from advisor.methods.tensor_parallel._agreement import agree
from advisor.methods.tensor_parallel._block_plan import Slice
from advisor.methods.tensor_parallel._collectives import ProcessRanks
from advisor.methods.tensor_parallel._derivation import Derivation
from advisor.methods.tensor_parallel._own_masks import OwnDraws
from advisor.methods.tensor_parallel._region_calls import Tokens
from advisor.methods.tensor_parallel._sequence_edges import put_edges
from advisor.methods.tensor_parallel._sliced_state import SlicedState
from advisor.methods.tensor_parallel._slicing import slice_block
from advisor.methods.tensor_parallel._vocabulary import slice_vocabulary
from advisor.training.unsaved import Unsaved

__all__ = ["TensorParallel"]


class TensorParallel(Unsaved):
    """The blocks of one model, sliced in place. All ranks of the group must be given the same batches.

    Parameters, buffers and the random numbers become those of the group's first rank. Methods that wrap
    blocks, optimizers and data parallelism come afterwards and see plain local parameters.

    Args:
        model: The whole model, on any device.
        blocks: Its blocks, as the derivation was given them.
        derivation: How to slice them.
        group: The tensor-parallel group, of as many ranks as the derivation's degree.
        sequence: Also split the tokens between regions.
        vocabulary: Weights of embeddings and output layers whose rows are sliced too.
        device: Where the model will compute.

    Attributes:
        slices: Plain name of each sliced parameter -> its slice.
        state: Gathers and loads states.
        ranks: The ranks of the group.

    Raises:
        MethodRefusedError: The derivation refuses.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        derivation: Derivation,
        group: dist.ProcessGroup,
        *,
        sequence: bool = False,
        vocabulary: Sequence[nn.Parameter] = (),
        device: torch.device | None = None,
    ) -> None:
        derivation.require(sequence=sequence)
        ranks = ProcessRanks(group)
        assert ranks.size == derivation.degree, "the plans are for as many ranks as there are"
        device = device or torch.device("cpu")
        agree(model, derivation, group, device)
        self.ranks = ranks
        self._group = group
        self._draws = OwnDraws(ranks.rank, device)
        self._calls = []
        self.slices: dict[str, Slice] = {}
        # Where parameters are held, not the parameters: fully_shard puts others in their places.
        self._partial: dict[tuple[nn.Module, str], None] = {}
        names = {id(module): name for name, module in model.named_modules()}
        for block, plan in zip(blocks, derivation.plans, strict=True):
            prefix = f"{names[id(block)]}."
            self.slices |= {f"{prefix}{name}": part for name, part in plan.slices.items()}
            self._calls += slice_block(
                block,
                plan.regions,
                ranks,
                tokens=Tokens(derivation.token_dim, derivation.dims) if sequence else None,
                draws=None if sequence else self._draws,
            )
            self._partial |= {
                (block.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]): None
                for name, _ in block.named_parameters()
                if name not in plan.slices and (sequence or name in plan.partial)
            }
        if vocabulary:
            self.slices |= slice_vocabulary(model, vocabulary, ranks)
        if sequence:
            put_edges(model, blocks, derivation.runs, ranks, self._draws)
        self.state = SlicedState(self.slices, group)
        self._sliced = [
            (model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])
            for name, _ in model.named_parameters()
            if name.replace("_checkpoint_wrapped_module.", "") in self.slices
        ]

    def complete_gradients(self) -> None:
        """Sum what each rank has a part of. Once a step, after the last backward pass and before gradients are used."""
        gradients = [_local(parameter.grad) for parameter in _held(self._partial) if parameter.grad is not None]
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            alike = [gradient for gradient in gradients if gradient.dtype == dtype]
            sent = torch.cat([gradient.flatten() for gradient in alike])
            dist.all_reduce(sent, group=self._group)
            for gradient, summed in zip(alike, torch.split(sent, [each.numel() for each in alike]), strict=True):
                gradient.copy_(summed.view_as(gradient))

    def clip_grad_norm(self, parameters: list[nn.Parameter], max_norm: float) -> torch.Tensor:
        """Clip complete gradients by their norm over the whole model, and return the norm that they had."""
        known = {id(parameter) for parameter in _held(self._sliced)}
        square = _square_norm([one.grad for one in parameters if one.grad is not None and id(one) in known])
        dist.all_reduce(square, group=self._group)
        square += _square_norm([one.grad for one in parameters if one.grad is not None and id(one) not in known])
        norm = square.sqrt()
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
        return norm

    @contextlib.contextmanager
    def forward_context(self) -> Generator[None, None, None]:
        """Around every forward pass: one that fails leaves nothing behind, neither own random numbers nor tensors."""
        for calls in self._calls:
            calls.reset()
        try:
            yield
        except BaseException:
            self._draws.abandon()
            raise


def _held(places: Iterable[tuple[nn.Module, str]]) -> list[nn.Parameter]:
    """The parameters that modules hold now, each once."""
    found = [module._parameters[name] for module, name in places]
    return list({id(one): one for one in found if one is not None}.values())


def _local(gradient: torch.Tensor) -> torch.Tensor:
    """What of a gradient is on this process; it can be written to."""
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient


def _square_norm(gradients: list[torch.Tensor]) -> torch.Tensor:
    norm = torch.nn.utils.get_total_norm(gradients)
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).square()
