"""Slicing the model of a training, by a plan from its policy or from an example batch; and what a probe finds of it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from torch import nn
from torch._guards import detect_fake_mode
from torch.utils._python_dispatch import _disable_current_modes

from advisor.errors import MethodRefusedError
from advisor.methods.kernels._linear_head import exposes_linear_head, find_linear_head
from advisor.methods.recompute.block_rules import judge_blocks
from advisor.methods.tensor_parallel._derivation import Derivation, derive
from advisor.methods.tensor_parallel._tensor_parallel import TensorParallel
from advisor.methods.tensor_parallel._vocabulary import vocabulary_weights, why_not_sliced
from advisor.methods.tensor_parallel._vocabulary_loss import vocabulary_loss
from advisor.methods.tensor_parallel._written_plan import read_plan, written_plan
from advisor.training.batch.tree import move
from advisor.training.out_of_memory import is_out_of_memory
from advisor.training.structure import find_blocks
from advisor.training.training import Training

__all__ = ["probed", "slice_training"]

_NAME = "tensor_parallel"


class _Settled(msgspec.Struct, frozen=True):
    """What a policy keeps: the plan, and whether the loss is the cross entropy of the output layer alone."""

    plan: msgspec.Raw
    sliced_loss: bool = False


class _Answer(msgspec.Struct, frozen=True):
    """What the first rank found: what is settled, or why nothing can be."""

    settled: str = ""
    refusal: str = ""


def slice_training(training: Training, *, sequence: bool, vocabulary: bool) -> None:
    """Slice the blocks of a training's model among the ranks of its tensor axis.

    Args:
        training: The training; its model may be on the host.
        sequence: Also divide the tokens between regions.
        vocabulary: Also slice embedding and output layer.

    Raises:
        MethodRefusedError: It cannot be sliced so, or there is neither a plan nor a batch to find one by.
    """
    world, model = training.world.tensor, training.model
    blocks = find_blocks(model, training.blocks)
    verdict = judge_blocks(len(blocks), 1, type(model).__name__)
    if not verdict.applicable:
        raise MethodRefusedError(verdict.reason)
    # Once for all ranks: another batch could show another plan.
    answer = training.world.agreed(_found(training, blocks, world.size, vocabulary=vocabulary), _Answer)
    if answer.refusal:
        raise MethodRefusedError(answer.refusal)
    settled = msgspec.json.decode(answer.settled, type=_Settled)
    with _disable_current_modes():  # A plan has numbers, also where a trace has none.
        derivation = read_plan(bytes(settled.plan), blocks, world.size)
    assert derivation is not None, "the first rank has found it for so many"
    head = find_linear_head(training) if vocabulary and settled.sliced_loss else None
    parallel = TensorParallel(
        model,
        blocks,
        derivation,
        world,
        sequence=sequence,
        vocabulary=vocabulary_weights(model, blocks) if vocabulary else (),
        device=training.device,
    )
    if head is not None:
        found_head, ranks = head, parallel.ranks
        training.compute_loss = lambda model, batch: vocabulary_loss(*found_head(model, batch), ranks)
    training.cuts.append(parallel)
    training.forward_contexts.append(parallel.forward_context)
    training.settled[_NAME] = answer.settled
    if derivation.whole_words:
        training.notes.append(f"tensor_parallel: {derivation.whole_words}")


def probed(training: Training, batch: Any, degrees: Iterable[int]) -> dict[str, dict[int, Any]]:
    """What each number of devices can slice of a model, which is left as it was.

    Args:
        training: A training to which no method was applied.
        batch: A small batch.
        degrees: The numbers.

    Returns:
        Fields of :class:`~advisor.workload.facts.Facts`, each by the number of devices.
    """
    model = training.model
    blocks = find_blocks(model, training.blocks)
    if not blocks:
        reason = judge_blocks(0, 1, type(model).__name__).reason
        return {"tensor_refusals": dict.fromkeys(degrees, reason)}
    moved = move(batch, training.device)
    fields = ("degrees", "plans", "refusals", "whole")
    found: dict[str, dict[int, Any]] = {f"tensor_{field}": {} for field in fields}
    found |= {"sequence_refusals": {}, "vocabulary_refusals": {}}
    total = sum(parameter.numel() for parameter in model.parameters())
    for degree in degrees:
        try:
            derivation = _tried(model, blocks, lambda model: training.compute_loss(model, moved), degree)
            derivation.require(sequence=False)
        except MethodRefusedError as error:
            found["tensor_refusals"][degree] = str(error)
            continue
        held = sum(parameter.numel() for block in blocks for parameter in block.parameters())
        found["tensor_degrees"][degree] = (1 - derivation.whole_share) * held / max(1, total)
        found["tensor_plans"][degree] = written_plan(derivation)
        if derivation.no_sequence:
            found["sequence_refusals"][degree] = f"sequence=True cannot divide the tokens: {derivation.no_sequence}"
        if derivation.whole_words:
            found["tensor_whole"][degree] = derivation.whole_words
        try:
            reason = why_not_sliced(model, vocabulary_weights(model, blocks), degree)
        except MethodRefusedError as error:
            reason = str(error)
        if reason:
            found["vocabulary_refusals"][degree] = reason
    return found


def _tried(model: nn.Module, blocks: list[nn.Module], run: Callable[[nn.Module], Any], degree: int) -> Derivation:
    """A derivation, for which the user's code runs on copies of blocks.

    Raises:
        MethodRefusedError: It raised an error.
    """
    try:
        return derive(model, blocks, run, degree)
    except MethodRefusedError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        said = next(iter(str(error).strip().splitlines()), "")
        raise MethodRefusedError(
            "tensor parallelism finds out on copies of blocks, with parts of their layers left out, how they can be "
            f"sliced, but the model raised {type(error).__name__}: {said}"
        ) from error


def _found(training: Training, blocks: list[nn.Module], degree: int, *, vocabulary: bool) -> _Answer:
    """On the first rank what is settled; the others are told."""
    if training.world.rank:
        return _Answer()
    try:
        known = training.settled.get(_NAME)
        if known is not None:
            try:
                settled = msgspec.json.decode(known, type=_Settled)
            except msgspec.DecodeError as error:
                raise MethodRefusedError(f"`settled` of tensor_parallel must be a plan, but {error}") from error
            with _disable_current_modes():
                fits = read_plan(bytes(settled.plan), blocks, degree) is not None
            if fits:
                return _Answer(settled=known)
        return _Answer(settled=_derived(training, blocks, degree, vocabulary=vocabulary))
    except MethodRefusedError as error:
        return _Answer(refusal=str(error))


def _derived(training: Training, blocks: list[nn.Module], degree: int, *, vocabulary: bool) -> str:
    batch = training.example_batch
    if batch is None:
        raise MethodRefusedError(
            "tensor_parallel finds out on a batch how the model can be sliced, but there is none: apply a policy in "
            "whose `settled` the plan is, or pass a small batch: apply_policy(..., example_batch=batch)"
        )
    model = training.model
    if detect_fake_mode(list(model.parameters())) is not None:
        raise MethodRefusedError(
            "tensor_parallel finds its plan from values, which a prediction has none of; predict a policy that was "
            "measured, in whose `settled` the plan is"
        )
    device = next(model.parameters()).device
    batch = move(batch, device)
    derivation = _tried(model, blocks, lambda model: training.compute_loss(model, batch), degree)
    sliced_loss = False
    if vocabulary:
        reason = why_not_sliced(model, vocabulary_weights(model, blocks), degree)
        if reason:
            raise MethodRefusedError(reason)
        here = copy.copy(training)
        here.device = device  # The model is not on the training's yet.
        sliced_loss, _ = exposes_linear_head(here, batch)
    return msgspec.json.encode(_Settled(msgspec.Raw(written_plan(derivation).encode()), sliced_loss)).decode()
