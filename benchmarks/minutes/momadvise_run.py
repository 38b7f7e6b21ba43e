"""Run the command as a user would, and read what it stored."""

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
from advisor.measure.in_turn import Speedup
from advisor.session.ledger import read_candidates
from advisor.trial.folder import StudyFolder
from advisor.trial.guardian import end_with_parent
from advisor.trial.outcome import Outcome

__all__ = [
    "Advice",
    "Promise",
    "advice_of",
    "combinations_compared",
    "policies_compared",
    "promise_of",
    "run_momadvise",
]

_ROOT = Path(__file__).resolve().parents[2]
_LOOK_SECONDS = 0.05
_GONE_SECONDS = 10.0


class Promise(msgspec.Struct, frozen=True, kw_only=True):
    """The speedup over the baseline that the answer states.

    Attributes:
        ratio: Samples per second relative to the baseline.
        low: Lower end of the stated interval.
        high: Upper end.
    """

    ratio: float
    low: float
    high: float

    @property
    def is_unsteady(self) -> bool:
        """Whether the answer says no more than ``"at least"`` the lower end."""
        return Speedup(value=self.ratio, low=self.low, high=self.high, rounds=0).is_unsteady


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the command, and how long it took.

    Attributes:
        combinations: Number of combinations of methods and devices with measurements.
        policies: The same, counting every batch.
        first_figure_seconds: From the start of the command to its first measurement.
        wall_seconds: From its start to its end.
        winner: The winner's methods.
        batch: The winner's samples per step.
        baseline_batch: The baseline's.
        promise: The stated speedup of the winner over the baseline.
        confirmed: The same in the command's own confirmation.
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


def run_momadvise(workload: Path, folder: Path, *, arguments: Sequence[str], environment: Mapping[str, str]) -> Advice:
    """Run ``momadvise --goal faster FILE --output DIR`` and read its answer.

    Args:
        workload: The user's file.
        folder: Folder of the study; the output of the command goes next to it, with the suffix ``.txt``.
        arguments: Further arguments.
        environment: Environment of the process.
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
    """The parts of an answer that a row stores."""
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
    """The number of combinations of methods and devices with measurements, regardless of batch and kind of trial."""
    return len({(one.policy.combination_key, one.policy.gpu_count) for one in _with_figures(found)})


def policies_compared(found: Recommendation) -> int:
    """The number of policies with measurements: one combination at two batches counts twice."""
    return len({one.policy.key for one in _with_figures(found)})


def promise_of(found: Recommendation) -> Promise | None:
    """The stated speedup of the winner over the baseline, with its interval.

    If both alternated in fresh processes, this is the answer's promise. Otherwise it is the ratio of the two values in
    its table, with the noise that it assumes between them.
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
    """Whether a policy has a measurement: the ledger may begin with refused ones."""
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
