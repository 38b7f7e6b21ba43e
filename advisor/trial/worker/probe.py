"""Build, one plain step, and learn the facts that methods judge themselves by."""

from __future__ import annotations

import functools
import math
import traceback
from collections.abc import Sequence
from typing import Any

import msgspec
import torch

from advisor.errors import WorkloadError
from advisor.measure.batches.batches import tokens_per_sample
from advisor.measure.batches.fitting_sizes import fitting_sizes
from advisor.measure.batches.looks import Look, uneven_looks
from advisor.measure.batches.splitting import Splitting, splitting_of
from advisor.measure.memory.meter import MemoryMeter
from advisor.measure.speed.device_rates import device_rates
from advisor.measure.speed.thread_rates import sharing_among, thread_rates, undisturbed_threads
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.kernels._linear_head import exposes_linear_head
from advisor.methods.optimizers.optimizer_class import class_name_of
from advisor.training import structure
from advisor.training.batch.tree import split
from advisor.training.compiler import why_not_compiled
from advisor.training.forward_probe import ChainProbe, FunctionCounts
from advisor.training.loss import check_loss
from advisor.training.training import Training
from advisor.trial.outcome import Outcome
from advisor.trial.result import ProbeResult
from advisor.trial.spec import ProbeTrial
from advisor.trial.worker.bench import Bench
from advisor.trial.worker.failure import at_batch, is_out_of_memory
from advisor.trial.worker.optional_libraries import imported
from advisor.workload._user_functions import Workload
from advisor.workload.batch_layout import BatchLayout
from advisor.workload.facts import Facts
from advisor.workload.identity import ModelIdentity
from advisor.workload.reads import reads_so_far
from advisor.workload.sizes import accepted
from advisor.workload.workload import WorkloadKind

__all__ = ["probe"]

_TO_SPLIT = ((3, 2), (5, 3), (6, 4))
"""Samples of the batch that is looked at whole, and of the first of two uneven chunks; the first that works. One sample
alone is none that every model takes, nor is an odd number."""

_LARGER = (16, 9)
"""The same of a look at more samples, where that is quick."""

_TAKEN_FOR_A_MEAN = "; its loss is taken for a mean over the samples or targets of a batch"
"""Where it could not be compared with those of micro-batches, which are what lets such a training fit."""

_USUAL_BATCH = 32
"""One that works, it is assumed, where the user states none and a smaller one fails."""

_SAMPLES_TO_LOOK_AT = 2
"""One alone may be none that a model takes; more take longer."""

_Option = bool | int | float | str | None


def probe(bench: Bench[ProbeTrial]) -> ProbeResult:
    """Run the trial.

    Nothing here times the model's steps, so that they are made with the threads that no other program gets in the way
    of: beside one that keeps a core busy, a step with all of them may take ten times as long.

    Raises:
        WorkloadError: The loss is not one that can be trained with.
        Exception: What the user's code raises.
    """
    threads = thread_rates(bench.device)
    identities: list[ModelIdentity] = []
    with sharing_among(undisturbed_threads(threads)):
        bench.data.look_at_sizes()
        with (
            bench.meter() as meter,
            bench.training(
                bench.spec.policy, look=lambda model: identities.append(bench.data.identity_of(model))
            ) as training,
        ):
            blocks = structure.find_blocks(training.model, bench.workload.blocks)
            found = _first_step_that_works(bench, meter, training, blocks)
            batch = bench.data.batches(_samples(bench))[0]
            facts = _facts(bench, training, batch, blocks, threads, found)
    return bench.spec.ended(Outcome.OK, facts=facts, identity=identities[0], reads=reads_so_far())


def _samples(bench: Bench[ProbeTrial]) -> int:
    """Samples of the first step."""
    return bench.data.first(bench.spec.policy.global_batch)


def _first_step_that_works(
    bench: Bench[ProbeTrial], meter: MemoryMeter, training: Training, blocks: Sequence[torch.nn.Module]
) -> dict[str, Any]:
    """The facts that a plain step shows; with more samples if these are too few."""
    if not bench.data.layout.takes_any:
        bench.notes.append(f"make_batch fails for other sizes: only {bench.data.layout.allowed} were tried")
    try:
        return _first_step(bench, meter, training, blocks)
    except Exception as error:
        traceback.clear_frames(error.__traceback__)  # they hold what the step computed
        few, known = _samples(bench), bench.data.layout
        own = bench.workload.batch_size or _USUAL_BATCH
        own = known.fitted(min(own, known.most_samples or own))
        works = functools.partial(_can_train_on, bench, meter, training)
        fitting = fitting_sizes(works, own, above=few, multiple=known.multiple)
        if fitting is None:
            raise
        bench.data.layout = msgspec.structs.replace(known, least_samples=fitting.least, multiple=fitting.multiple)
        words = str(error) if isinstance(error, WorkloadError) else f"{type(error).__name__}: {error}"
        why = f"training on {few} samples fails ({words.splitlines()[0].split(';')[0]})"
    bench.notes.append(f"{why}: only {bench.data.layout.allowed} were tried")
    return _first_step(bench, meter, training, blocks)


def _can_train_on(bench: Bench[ProbeTrial], meter: MemoryMeter, training: Training, samples: int) -> bool | None:
    """Whether one pass over so many samples succeeds; ``None`` if there is no memory for it."""
    bench.tell(f"a pass over {samples} samples, as fewer failed")
    training.optimizer.zero_grad(set_to_none=True)
    try:
        batch = bench.data.batches(samples)[0]
        with meter.guarding(batch):
            loss = training.forward(batch)
            check_loss(loss)
            training.backward(loss)
            return math.isfinite(float(loss.detach()))
    except Exception as error:
        if is_out_of_memory(error, bench.device, bench.refusals):
            bench.empty_cache()
            return None
        return False
    finally:
        training.optimizer.zero_grad(set_to_none=True)


def _first_step(
    bench: Bench[ProbeTrial], meter: MemoryMeter, training: Training, blocks: Sequence[torch.nn.Module]
) -> dict[str, Any]:
    """The facts that a plain step shows."""
    bench.tell("first step")
    batch = bench.data.batches(_samples(bench))[0]
    chain, functions = ChainProbe(blocks, structure.stages_of(training.model, blocks)), FunctionCounts()
    loss = _first_loss(bench, meter, training, batch, chain, functions)
    layout = bench.data.layout
    if loss is None:
        bench.empty_cache()
        linear_head, linear_head_reason = False, "plain training does not fit, so that its loss cannot be compared"
        bench.notes.append(f"plain training does not fit at a batch of {_samples(bench)}{_TAKEN_FOR_A_MEAN}")
    else:
        linear_head, linear_head_reason = exposes_linear_head(training, batch)
        if not layout.why_uncut:
            bench.tell("a batch whole and in chunks")
            found = _splitting(bench, meter, training)
            layout = msgspec.structs.replace(layout, reduction=found.reduction, changes_when_split=found.changes)
    chain_reason = chain.broken if loss is None else chain.reason
    staged_reason = chain.unstaged if loss is None else chain.staged_reason
    return {
        "first_loss": loss,
        "chain_length": 0 if chain_reason else len(blocks),
        "chain_reason": chain_reason,
        "staged_blocks": 0 if staged_reason else len(blocks),
        "staged_reason": staged_reason,
        "shape_keeping_blocks": chain.shape_keeping,
        "function_counts": dict(functions.counts) if loss is not None else {},
        "linear_head": linear_head,
        "linear_head_reason": linear_head_reason,
        "batch_layout": layout,
    }


def _facts(
    bench: Bench[ProbeTrial],
    training: Training,
    batch: Any,
    blocks: Sequence[torch.nn.Module],
    threads: dict[int, float],
    found: dict[str, Any],
) -> Facts:
    bench.tell("looking at the model")
    model = training.model
    bench.notes += bench.workload.notes
    rates = device_rates(bench.device, threads)
    return Facts(
        model_class=type(model).__name__,
        parameter_count=structure.parameter_count(model),
        parameter_bytes=structure.parameter_bytes(model),
        trainable_parameter_count=structure.trainable_parameter_count(model),
        buffer_bytes=structure.buffer_bytes(model),
        block_class=type(blocks[0]).__name__ if blocks else None,
        block_count=len(blocks),
        attention_count=len(structure.find_attention(model)),
        has_batchnorm=structure.has_batchnorm(model),
        has_dropout=structure.has_dropout(model),
        optimizer_class=class_name_of(training.optimizer),
        optimizer_options=_plain_options(training.optimizer),
        max_grad_norm=bench.workload.max_grad_norm,
        custom_loss=bench.workload.compute_loss is not None,
        tokens_per_sample=tokens_per_sample(batch, bench.data.layout.dims),
        default_batch=bench.workload.batch_size,
        module_counts=structure.module_counts(model),
        matrices=structure.matrix_shapes(model),
        hidden_matrices=len(structure.hidden_matrices(model, blocks)),
        parameter_dtypes=structure.parameter_dtypes(model),
        compiler=why_not_compiled(bench.device),
        matmul_flops_per_second=rates.matmul_flops_per_second,
        device_rates=rates,
        torch_version=str(torch.__version__),  # a class of its own otherwise
        workload_options=_options(bench),
        size_arguments=_size_arguments(bench.workload, bench.spec.workload.kind),
        libraries=imported(bench.spec.libraries),
        **_of_methods(bench, training, batch, found["batch_layout"]),
        **found,
    )


def _of_methods(bench: Bench[ProbeTrial], training: Training, batch: Any, layout: BatchLayout) -> dict[str, Any]:
    """The facts that methods find out themselves; none where not even a look fits.

    A look may be a forward pass in which one block of each kind computes: it fits where a step does not.
    """
    if not layout.why_uncut:
        batch = split(batch, bench.data.first(_SAMPLES_TO_LOOK_AT), layout.sample_dims)[0]
    found: dict[str, Any] = {}
    for method in CATALOGUE:
        try:
            found |= method.facts_of(training, batch, bench.spec.tensor_degrees)
        except Exception as error:
            if not is_out_of_memory(error, bench.device, bench.refusals):
                raise
            bench.empty_cache()
    return found


def _first_loss(
    bench: Bench[ProbeTrial],
    meter: MemoryMeter,
    training: Training,
    batch: Any,
    chain: ChainProbe,
    functions: FunctionCounts,
) -> float | None:
    """Make one plain step; ``None`` if it does not fit: a model that only fits with methods is one to advise on."""
    try:
        with meter.guarding(batch):
            with chain.watching(), functions:
                loss = training.forward(batch)
            check_loss(loss)
            first = float(loss.detach())
            training.backward(loss)
            training.optimizer_step()
    except Exception as error:
        if not is_out_of_memory(error, bench.device, bench.refusals):
            at_batch(error, _samples(bench))  # a smaller one than the user's own
            raise
        training.optimizer.zero_grad(set_to_none=True)
        return None
    return first


def _splitting(bench: Bench[ProbeTrial], meter: MemoryMeter, training: Training) -> Splitting:
    """What training on micro-batches does to the loss; nothing where no batch to look at fits."""

    def seed() -> None:
        bench.data.reused.restore()
        bench.seed()

    most = bench.data.layout.most_samples
    raised: Exception | None = None
    least = bench.data.layout.least_samples
    for samples, first in ((samples * least, first * least) for samples, first in _TO_SPLIT):
        if most is not None and samples > most:
            continue
        try:
            drawn = bench.data.various(samples)
            looks = uneven_looks(drawn, first, samples, bench.data.layout.dims)
            with meter.guarding(drawn[0]):
                return splitting_of(
                    training, looks, bench.data.layout.dims, seed=seed, drawn=drawn, larger=lambda: _larger_look(bench)
                )
        except Exception as error:  # one sample alone may be none that this model takes
            if is_out_of_memory(error, bench.device, bench.refusals):
                bench.empty_cache()
                bench.notes.append(f"plain training does not fit at a batch of {samples}{_TAKEN_FOR_A_MEAN}")
                return Splitting(None, "")
            raised = error
    if raised is None:
        return Splitting(None, "")
    words = f"{type(raised).__name__}: {raised}".splitlines()[0]
    return Splitting(None, f"its micro-batches cannot be computed alone ({words})")


def _larger_look(bench: Bench[ProbeTrial]) -> Look | None:
    samples, first = _LARGER
    layout = bench.data.layout
    if not layout.takes_any or (layout.most_samples is not None and samples > layout.most_samples):
        return None
    return Look(bench.data.batches(samples)[0], first, samples)


def _options(bench: Bench[ProbeTrial]) -> tuple[str, ...]:
    stated = bench.spec.workload.stated.max_grad_norm
    given = {} if stated is None else {"max_grad_norm": f"max_grad_norm={stated!r}"}
    device = () if bench.device == _usual_device() else (f'device="{bench.device}"',)
    return (*(given.get(name, name) for name in bench.options()), *device)


def _usual_device() -> torch.device:
    """Where a wrapper trains that is given no device."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def _size_arguments(workload: Workload, kind: WorkloadKind) -> dict[str, tuple[str, ...]]:
    values = {name: choices[0] for name, choices in workload.sizes.items()}
    # The functions of a Hugging Face workload are ours: its user changes the config.
    model = "config" if kind is WorkloadKind.HUGGING_FACE else "build_model"
    functions = {model: workload.build_model, "make_batch": workload.make_batch}
    return {role: tuple(taken) for role, function in functions.items() if (taken := accepted(function, values))}


def _plain_options(optimizer: torch.optim.Optimizer) -> dict[str, _Option]:
    """The options that are single values; a pair such as betas decides nothing about what can replace the optimizer.

    A tensor is one too, but not a number: it may be written to.
    """
    return {
        name: "a tensor" if isinstance(value, torch.Tensor) else value
        for name, value in optimizer.defaults.items()
        if value is None or isinstance(value, bool | int | float | str | torch.Tensor)
    }
