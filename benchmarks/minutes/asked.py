"""Run the command as a user does, and read what it stored."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from advisor.decide.answer import Answer, load_answer
from advisor.decide.candidate import Candidate, Recommendation
from advisor.decide.ranking import noise_of_lead
from advisor.session.ledger import read_candidates
from advisor.trial.folder import StudyFolder
from advisor.trial.guardian import end_with_parent
from advisor.trial.outcome import Outcome

__all__ = ["Advice", "Promise", "advice_of", "ask", "combinations_compared", "policies_compared", "promise_of"]

_ROOT = Path(__file__).resolve().parents[2]
_LOOK_SECONDS = 0.05
_GONE_SECONDS = 10.0


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """How many times the baseline's samples per second the answer says that it has.

    Attributes:
        ratio: So many.
        low: Lower end of the interval that it states.
        high: Upper end.
    """

    ratio: float
    low: float
    high: float


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What the command answered, and how long it took.

    Attributes:
        combinations: Combinations of methods and devices of which it has figures.
        policies: The same at each batch.
        first_figure_seconds: Until the first of its figures was there, from the start of the command.
        wall_seconds: Until the command had ended.
        winner: The winner's methods.
        batch: The winner's samples per step.
        baseline_batch: The baseline's.
        promise: What it says of the winner beside the baseline.
        confirmed: What its own confirmation found: the winner's samples per second over the baseline's.
        reason: Why there is no answer.
    """

    combinations: int = 0
    policies: int = 0
    first_figure_seconds: float | None = None
    wall_seconds: float = 0.0
    winner: str = ""
    batch: int | None = None
    baseline_batch: int | None = None
    promise: Promise | None = None
    confirmed: float | None = None
    reason: str = ""


def ask(workload: Path, folder: Path, *, arguments: Sequence[str], environment: Mapping[str, str]) -> Advice:
    """Run ``momadvise --goal faster FILE --output DIR`` and read its answer.

    Args:
        workload: The user's file.
        folder: Where the study goes; what the command prints goes beside it, with the ending ``.txt``.
        arguments: Further ones.
        environment: Of the process.
    """
    study = StudyFolder(folder)
    command = [sys.executable, "-m", "advisor", "--goal", "faster", str(workload), "--output", str(folder), *arguments]
    begin = time.monotonic()
    first: float | None = None
    printed = folder.with_name(f"{folder.name}.txt")
    with printed.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=_ROOT,
            env=dict(environment),
            preexec_fn=functools.partial(end_with_parent, os.getpid()),  # however this command ends
        )
        try:
            while process.poll() is None:
                if first is None and _has_figure(study.ledger):
                    first = time.monotonic() - begin
                time.sleep(_LOOK_SECONDS)
        finally:
            _end(process)
        wall = time.monotonic() - begin
    lines = printed.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    answer = load_answer(study)
    if process.returncode != 0 or answer is None:
        reason = f"exit status {process.returncode}: {lines[-1] if lines else 'it said nothing'}"
        return Advice(wall_seconds=wall, first_figure_seconds=first, reason=reason)
    return advice_of(answer, first_figure_seconds=first, wall_seconds=wall)


def advice_of(answer: Answer, *, first_figure_seconds: float | None, wall_seconds: float) -> Advice:
    """What a row says of an answer."""
    found = answer.recommendation
    return Advice(
        combinations=combinations_compared(found),
        policies=policies_compared(found),
        first_figure_seconds=first_figure_seconds,
        wall_seconds=wall_seconds,
        winner=found.winner.policy.label,
        batch=found.winner.policy.global_batch,
        baseline_batch=None if found.baseline is None else found.baseline.policy.global_batch,
        promise=promise_of(found),
        confirmed=_confirmed(found),
    )


def combinations_compared(found: Recommendation) -> int:
    """Of how many combinations of methods and devices there are figures, whatever the batch and the kind of trial."""
    return len({(one.policy.combination_key, one.policy.gpu_count) for one in _with_figures(found)})


def policies_compared(found: Recommendation) -> int:
    """Of how many policies there are figures: the same combination at two batches is two."""
    return len({one.policy.key for one in _with_figures(found)})


def promise_of(found: Recommendation) -> Promise | None:
    """What the answer says of its winner beside the baseline, with the interval that it states.

    Where both took turns in fresh processes that is its promise. Else it is the ratio of the two figures in its table,
    with what it takes for noise between them.
    """
    promise = None if found.confirmation is None else found.confirmation.promise
    if promise is not None:
        return Promise(ratio=promise.value, low=promise.low, high=promise.high)
    winner, baseline = found.winner, found.baseline
    if winner.measurement is None or baseline is None or baseline.measurement is None:
        return None
    if winner.policy == baseline.policy:
        return Promise(ratio=1.0, low=1.0 - found.noise, high=1.0 + found.noise)
    ratio = winner.measurement.samples_per_second / baseline.measurement.samples_per_second
    noise = noise_of_lead(winner, baseline, found.noise)
    return Promise(ratio=ratio, low=ratio * (1 - noise), high=ratio * (1 + noise))


def _confirmed(found: Recommendation) -> float | None:
    confirmation = found.confirmation
    if confirmation is None or confirmation.measurement is None:
        return None
    if confirmation.speedup is not None:
        return confirmation.speedup.value
    if not confirmation.baseline_samples_per_second:
        return None
    return confirmation.measurement.samples_per_second / confirmation.baseline_samples_per_second


def _with_figures(found: Recommendation) -> list[Candidate]:
    roles = [one for one in (found.winner, found.baseline, found.hand_tuned) if one is not None]
    every = itertools.chain(roles, found.ranking, found.not_measured)
    return [one for one in every if one.outcome in (Outcome.OK, Outcome.COMPARED)]


def _has_figure(ledger: Path) -> bool:
    """Whether a policy has figures: the ledger may begin with what was refused."""
    return any(one.outcome is Outcome.OK for one in read_candidates(ledger))


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command if it still runs; its guardians end what it has started, which is waited for."""
    if process.returncode is not None:
        return
    below: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(below, timeout=_GONE_SECONDS)
    for one in alive:
        with contextlib.suppress(psutil.Error):
            one.kill()
