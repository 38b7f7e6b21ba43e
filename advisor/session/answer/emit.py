"""Write the two files that apply an answer, and restore them without losing the user's edits.

An edited file belongs to the user: before a new one is written it is renamed, and the user is told. Our own are
recognized by their digests, recorded before they are written. An answer names its files by digest, and is withdrawn
before others are written.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from advisor.decide.answer import Answer, withdraw_answer
from advisor.decide.candidate import Recommendation
from advisor.decide.cost import cost_evidence
from advisor.decide.guard import comparison_evidence
from advisor.decide.measured_evidence import evidence_of
from advisor.errors import PolicyError
from advisor.files import set_aside, write_whole
from advisor.goal import Goal, GoalKind
from advisor.hardware.hardware import Hardware
from advisor.policy.file import PolicyFile, load_policy_file, policy_source
from advisor.policy.fingerprints import Fingerprints
from advisor.policy.policy import Policy
from advisor.report.page.wrapper_of import wrapper_of
from advisor.session.request import picks_of
from advisor.trial.folder import StudyFolder
from advisor.workload.batch_layout import BatchLayout

__all__ = ["Emission", "digests", "emit", "put_right", "take_back"]


class Emission(msgspec.Struct, frozen=True, kw_only=True):
    """Contents of the files besides the recommendation.

    Attributes:
        workload_options: Options that the workload defines, to be passed to the wrapper.
        size_arguments: Function -> the size arguments that it takes.
    """

    goal: Goal
    folder: StudyFolder
    workload: str
    hardware: Hardware
    fingerprints: Fingerprints
    date: str
    workload_options: tuple[str, ...] = ()
    size_arguments: dict[str, tuple[str, ...]] = {}
    layout: BatchLayout | None = None


def emit(emission: Emission, recommendation: Recommendation, say: Callable[[str], None]) -> None:
    """Write ``wrapper.py``, which is the very file that is run to confirm it, and ``policy.yaml``.

    Raises:
        OSError: One cannot be written.
    """
    folder = emission.folder
    for path, text in _texts(emission, recommendation).items():
        found = _content(path)
        if found == text.encode():
            continue
        withdraw_answer(folder)
        if found and _digest(found) not in _known(folder):
            kept = set_aside(path, "edited")
            say(f"{path.name} had been edited: it is kept as {kept.name}, and {path.name} is what was found now")
        _write(folder, path, text)


def take_back(folder: StudyFolder) -> None:
    """Withdraw the answer, and remove the files that we wrote for it."""
    withdraw_answer(folder)
    for path in (folder.policy, folder.wrapper):
        found = _content(path)
        if found is not None and _digest(found) in _known(folder):
            path.unlink(missing_ok=True)
    if not (folder.policy.exists() or folder.wrapper.exists()):
        folder.emitted.unlink(missing_ok=True)


def digests(emission: Emission, recommendation: Recommendation) -> dict[str, str]:
    """Digests of the files of an answer: name -> digest."""
    return {path.name: _digest(text.encode()) for path, text in _texts(emission, recommendation).items()}


def put_right(answer: Answer, fingerprints: Fingerprints, folder: StudyFolder) -> list[str] | None:
    """Restore the files of a stored answer, and return notes; ``None`` if they cannot be made from this answer.

    Missing or truncated ones are rewritten, edited ones stay, unreadable ones are renamed and kept.

    Raises:
        OSError: One cannot be written.
    """
    emission = Emission(
        goal=answer.goal,
        folder=folder,
        workload=answer.workload,
        hardware=answer.hardware,
        fingerprints=fingerprints,
        date=answer.date,
        workload_options=answer.facts.workload_options,
        size_arguments=answer.facts.size_arguments,
        layout=answer.facts.batch_layout,
    )
    notes = []
    for path, text in _texts(emission, answer.recommendation).items():
        found, right = _content(path), answer.digests.get(path.name)
        if found is not None and _digest(found) == right:
            continue
        if _digest(text.encode()) != right:
            return None
        if found is None or text.encode().startswith(found) or _digest(found) in _known(folder):
            _write(folder, path, text)
            was = "gone" if found is None else "cut short" if text.encode().startswith(found) else "of another answer"
            notes.append(f"{path.name} was {was}: it is written again as it was")
        elif not _can_be_used(path):
            kept = set_aside(path, "edited")
            _write(folder, path, text)
            notes.append(
                f"{path.name} could not be read any more: it is kept as {kept.name}, and {path.name} is written again "
                "as it was"
            )
        else:
            notes.append(
                f"{path.name} was edited since, and is left as it is: it need not do what is said here. Move it "
                "elsewhere and run the same command again to have the measured one back"
            )
    return notes


def _texts(emission: Emission, recommendation: Recommendation) -> dict[Path, str]:
    return {
        emission.folder.wrapper: _wrapper(emission, recommendation),
        emission.folder.policy: _policy(emission, recommendation),
    }


def _write(folder: StudyFolder, path: Path, text: str) -> None:
    known = _known(folder) | {_digest(text.encode())}
    write_whole(folder.emitted, msgspec.json.format(msgspec.json.encode(sorted(known))))
    write_whole(path, text)


def _known(folder: StudyFolder) -> set[str]:
    """Digests of everything that was written here as a policy or a wrapper."""
    with contextlib.suppress(OSError, ValueError):  # then everything counts as the user's
        return msgspec.json.decode(folder.emitted.read_bytes(), type=set[str])
    return set()


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _can_be_used(path: Path) -> bool:
    """Whether a changed policy or wrapper is still usable: otherwise it is damaged, not edited."""
    try:
        if path.suffix == ".py":
            compile(path.read_bytes(), path.name, "exec", dont_inherit=True)
        else:
            load_policy_file(path)
    except (SyntaxError, ValueError, PolicyError):
        return False
    return True


def _policy(emission: Emission, recommendation: Recommendation) -> str:
    winner = recommendation.winner
    baseline = recommendation.baseline.measurement if recommendation.baseline is not None else None
    cheapest = emission.goal.kind is GoalKind.CHEAPEST
    confirmation = recommendation.confirmation
    confirmed = confirmation.measurement if confirmation is not None else None
    growth = recommendation.growth
    # Another size's throughput is no baseline for who looks at this policy later.
    promise = confirmation.promise if confirmation is not None and growth is None else None
    evidence = msgspec.structs.replace(
        evidence_of(winner, emission.goal, date=emission.date, trials=len(recommendation.ranking)),
        loss_drift=winner.loss_drift,
        comparison=comparison_evidence(winner),
        not_compared=winner.not_compared or None,
        speedup_over_baseline=None if promise is None else (promise.value, promise.low, promise.high),
        baseline_samples_per_second=None if baseline is None else baseline.samples_per_second,
        baseline_batch=None if recommendation.baseline is None else recommendation.baseline.policy.global_batch,
        confirmed_samples_per_second=None if confirmed is None else confirmed.samples_per_second,
        confirmed_peak_bytes=None if confirmed is None else confirmed.memory.peak_bytes,
        tie=recommendation.tie,
        cost=cost_evidence(winner, emission.goal) if cheapest else None,
        why=list(recommendation.why),
        floor_samples_per_second=None if growth is None else growth.floor_samples_per_second,
    )
    version, layout = emission.fingerprints.versions["momadvise"], emission.layout
    return policy_source(
        PolicyFile(
            policy=winner.policy,
            baseline=_own_settings(recommendation),
            sample_dims=None if layout is None else layout.sample_dims,
            reduction=None if layout is None else layout.reduction,
            evidence=evidence,
            fingerprints=msgspec.structs.replace(_with_picks(emission), policy=winner.policy.key),
        ),
        header=f"Written by momadvise {version} for {emission.workload} on {emission.hardware.title}.\n"
        "Apply it with advisor.apply_policy(this file, model), or with the wrapper.py beside it.",
    )


def _own_settings(recommendation: Recommendation) -> Policy | None:
    """The baseline, if it is more than plain training in one pass: then its batch says all."""
    baseline = recommendation.baseline
    if baseline is None or not (baseline.policy.methods or baseline.policy.accumulation_steps > 1):
        return None
    return baseline.policy


def _with_picks(emission: Emission) -> Fingerprints:
    """The fingerprints, with price and preference: a study holds for any of these, a policy was picked by some.

    A list price is the device's, and is not kept: on another device it is another one.
    """
    goal, known = emission.goal, emission.fingerprints
    given = goal.price if goal.price is not None and goal.price.source == "--price" else None
    picks = picks_of(given, goal.usd_per_kilowatt_hour, goal.preference)
    return msgspec.structs.replace(known, asked={**known.asked, **picks})


def _wrapper(emission: Emission, recommendation: Recommendation) -> str:
    return wrapper_of(
        recommendation.winner,
        recommendation.baseline,
        goal=emission.goal,
        workload=emission.workload,
        device=emission.hardware.title,
        versions=emission.fingerprints.versions,
        date=emission.date,
        options=emission.workload_options,
        size_arguments=emission.size_arguments,
        layout=emission.layout,
    )
