"""Runs one trial in the worker, whatever happens in it, and describes how it ended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist

from advisor.errors import OutputFolderError
from advisor.trial.outcome import Outcome
from advisor.trial.result import LookResult, Result
from advisor.trial.spec import (
    ConfirmTrial,
    CountTrial,
    FidelityTrial,
    LookTrial,
    PairTrial,
    PlainLoopTrial,
    PredictTrial,
    ProbeTrial,
    SizeTrial,
    SplitTrial,
    TimeTrial,
    Trial,
    VerifyTrial,
)
from advisor.trial.worker.bench import Bench
from advisor.trial.worker.count_sizes import count_sizes
from advisor.trial.worker.failure import AllocatorRefusals, failed_result
from advisor.trial.worker.fidelity_run import record_fidelity
from advisor.trial.worker.model_copy import ModelCopy
from advisor.trial.worker.pair import compare_pair
from advisor.trial.worker.partner import Partner
from advisor.trial.worker.predicting import predict
from advisor.trial.worker.prepared import Prepared
from advisor.trial.worker.probe import probe
from advisor.trial.worker.sizing import size
from advisor.trial.worker.split_step import split_step
from advisor.trial.worker.timed import confirm, time_policy
from advisor.trial.worker.verifying import plain_loop, verify
from advisor.workload.reads import recording_reads

__all__ = ["WORK", "run_trial", "standing_for_ranks"]

_R = TypeVar("_R", bound=Result)


def _look(bench: Bench[LookTrial]) -> LookResult:
    if bench.spec.on_meta:
        return bench.spec.ended(Outcome.OK, identity=bench.data.identity_on_meta())
    return bench.spec.ended(Outcome.OK, identity=bench.data.identity_of(bench.build_model()))


WORK: dict[type[Trial[Any]], Callable[[Bench[Any]], Any]] = {
    ProbeTrial: probe,
    LookTrial: _look,
    CountTrial: count_sizes,
    PredictTrial: predict,
    SizeTrial: size,
    TimeTrial: time_policy,
    ConfirmTrial: confirm,
    FidelityTrial: record_fidelity,
    PairTrial: compare_pair,
    SplitTrial: split_step,
    PlainLoopTrial: plain_loop,
    VerifyTrial: verify,
}
"""Kind of trial -> what runs it, to its end."""


def run_trial(
    spec: Trial[_R],
    tell: Callable[[str], None],
    on_error: Callable[[BaseException], None] | None = None,
    *,
    prepared: Prepared | None = None,
    partner: Partner | None = None,
    model_copy: ModelCopy | None = None,
) -> tuple[_R, str]:
    """Run a trial, or one rank's share of it.

    Args:
        spec: The trial.
        tell: Hears what is being done, in a few words.
        on_error: Hears the exception that ended the trial, if one did.
        prepared: What was loaded and built before this process was forked for the trial; it ends with the trial, so
            that nobody asks what is left in its memory.
        partner: The process that takes turns with this one.
        model_copy: What the trials of one process share, so that they build a large model once.

    Returns:
        The result, and what the trial left in memory in words (empty: nothing).

    Raises:
        OutputFolderError: A file of the trial's cannot be written.
    """
    refusals = AllocatorRefusals(torch.device(spec.device))
    try:
        with contextlib.ExitStack() as contexts:
            rank = spec.rank if isinstance(spec, PredictTrial) else 0
            contexts.enter_context(standing_for_ranks(spec.policy.gpu_count // spec.ranks, rank))
            if isinstance(spec, ProbeTrial | PredictTrial):
                contexts.enter_context(recording_reads())
            bench = Bench(spec, tell, refusals, prepared, partner, model_copy)
            result = msgspec.structs.replace(
                WORK[type(spec)](bench), most_samples=bench.data.most_samples, notes=tuple(bench.notes)
            )
    except OutputFolderError:
        raise  # what is ours cannot be written: no fault of the trial
    except BaseException as error:  # SystemExit too: the user's code may call sys.exit, and that is an outcome
        if on_error is not None:
            on_error(error)
        failed = failed_result(spec, error, refusals=refusals)
        return failed, "" if prepared is not None else f"the trial ended as {failed.outcome.value}"
    if prepared is not None:
        return result, ""
    try:
        return result, bench.leftover()
    except Exception as error:  # A device that a kernel has broken answers nothing any more; the result stands.
        return result, f"looking for what the trial left behind raised {type(error).__name__}: {error}"


@contextlib.contextmanager
def standing_for_ranks(count: int, rank: int = 0) -> Iterator[None]:
    """Be one rank of so many, none of which exists: for a trace, which needs no values, nothing has to be sent."""
    if count == 1:
        yield
        return
    assert not dist.is_initialized(), "one process makes this trial"
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()
