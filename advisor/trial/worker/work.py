"""Runs one trial in the worker, whatever happens in it, and describes how it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import torch

from advisor.errors import OutputFolderError
from advisor.measure.speed.device_rates import device_rates
from advisor.trial.outcome import Outcome
from advisor.trial.spec import Rung, TrialKind, TrialResult, TrialSpec
from advisor.trial.worker.bench import Bench
from advisor.trial.worker.counting import count_sizes
from advisor.trial.worker.failure import AllocatorRefusals, failed_result
from advisor.trial.worker.fake_ranks import standing_for_ranks
from advisor.trial.worker.fidelity import record_fidelity
from advisor.trial.worker.predicting import predict
from advisor.trial.worker.prepared import Prepared
from advisor.trial.worker.probe import probe
from advisor.trial.worker.reference import Reference
from advisor.trial.worker.sizing import size
from advisor.trial.worker.timed import climb, measure, measure_smaller
from advisor.trial.worker.turns import load_reference
from advisor.trial.worker.verifying import record_steps
from advisor.workload.reads import reads_so_far, recording_reads

__all__ = ["run_trial"]


def run_trial(
    spec: TrialSpec,
    tell: Callable[[str], None],
    on_error: Callable[[BaseException], None] | None = None,
    *,
    prepared: Prepared | None = None,
    reference: Reference | None = None,
) -> tuple[TrialResult, str]:
    """Run a trial, or one rank's share of it.

    Args:
        spec: The trial.
        tell: Hears what is being done, in a few words.
        on_error: Hears the exception that ended the trial, if one did.
        prepared: What was loaded and built before this process was forked for the trial; it ends with the trial, so
            that nobody asks what is left in its memory.
        reference: The process that takes turns with this one.

    Returns:
        The result, and what the trial left in memory in words (empty: nothing).

    Raises:
        OutputFolderError: A file of the trial's cannot be written.
    """
    device = torch.device(spec.device)
    refusals = AllocatorRefusals(device)
    try:
        with contextlib.ExitStack() as contexts:
            contexts.enter_context(standing_for_ranks(spec.policy.gpu_count if spec.kind is TrialKind.PREDICT else 1))
            if spec.kind in (TrialKind.PROBE, TrialKind.PREDICT):
                contexts.enter_context(recording_reads())
            bench = Bench(spec, tell, refusals, prepared, reference)
            result = _run(spec, bench)
    except OutputFolderError:
        raise  # what is ours cannot be written: no fault of the trial
    except BaseException as error:  # SystemExit too: the user's code may call sys.exit, and that is an outcome
        if on_error is not None:
            on_error(error)
        failed = failed_result(spec.key, error, device=device, limit_bytes=spec.memory_limit_bytes, refusals=refusals)
        return failed, "" if prepared is not None else f"the trial ended as {failed.outcome.value}"
    if prepared is not None:
        return result, ""
    try:
        return result, bench.leftover()
    except Exception as error:  # A device that a kernel has broken answers nothing any more; the result stands.
        return result, f"looking for what the trial left behind raised {type(error).__name__}: {error}"


def _run(spec: TrialSpec, bench: Bench) -> TrialResult:
    reads = identity = None
    facts = counts = sizing = fidelity = steps = prediction = work = rates = None
    measured = smaller = None
    ladder: tuple[Rung, ...] = ()
    reason = ""
    match spec.kind:
        case TrialKind.PROBE:
            facts, identity, reads = probe(bench), bench.identity, reads_so_far()
        case TrialKind.LOOK:
            identity = bench.identity_of(bench.build_model())
        case TrialKind.COUNT:
            counts = count_sizes(bench)
        case TrialKind.PREDICT:
            prediction, work, reason = predict(bench)
            reads = reads_so_far()
            if spec.measures_rates and work is not None:
                bench.tell("what the device can do")
                rates = device_rates(bench.device)
        case TrialKind.SIZE:
            sizing, prediction = size(bench)
        case TrialKind.TIME:
            with bench.meter() as meter, bench.training(spec.policy) as training:
                measured = measure(bench, meter, training)
                if spec.ladder:
                    ladder = climb(bench, meter, training, measured)
                if spec.smaller is not None:
                    smaller = measure_smaller(bench, meter, training, measured)
        case TrialKind.CONFIRM:
            assert spec.wrapper_path is not None, "a confirmation runs a wrapper"
            load_reference(bench)
            with bench.meter() as meter, bench.wrapped_training(Path(spec.wrapper_path)) as training:
                measured = measure(bench, meter, training)
        case TrialKind.FIDELITY:
            fidelity = record_fidelity(bench)
        case TrialKind.VERIFY:
            steps = record_steps(bench)
    return TrialResult(
        key=spec.key,
        outcome=Outcome.OK,
        reason=reason,
        facts=facts,
        reads=reads,
        identity=identity,
        counts=counts,
        prediction=prediction,
        work=work,
        device_rates=rates,
        sizing=sizing,
        measurement=None if measured is None else measured.measurement,
        smaller=None if smaller is None else smaller.measurement,
        speedup=None if measured is None else measured.speedup,
        ladder=ladder,
        smaller_speedup=None if smaller is None else smaller.speedup,
        most_samples=bench.most_samples,
        paces=tuple(bench.paces),
        fidelity=fidelity,
        steps=steps,
        notes=tuple(bench.notes),
    )
