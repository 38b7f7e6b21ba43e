"""The answer of a session, and how it is stored in the study folder."""

from __future__ import annotations

from pathlib import Path

import msgspec

from advisor.decide.candidate import Recommendation
from advisor.files import sync_folder, write_whole
from advisor.goal import Goal
from advisor.hardware.hardware import Hardware
from advisor.policy.policy import Policy
from advisor.text.records import encode_record, read_record
from advisor.trial.folder import StudyFolder
from advisor.workload.batch_layout import SampleDims
from advisor.workload.facts import Facts
from advisor.workload.reduction import Reduction

__all__ = ["Answer", "load_answer", "store_answer", "withdraw_answer"]


class Answer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer of one tuning.

    Attributes:
        workload: Name of the workload.
        goal: The goal, with the memory limit that trials ran under.
        folder: The study folder.
        hardware: The device that was measured.
        versions: Package -> version.
        date: Day of the measurement, ISO format.
        trials: Number of measured policies.
        trial_budget: The ``--trials`` of the search.
        time_budget_seconds: Its ``--time-limit``.
        complete: Whether the search ended by itself (not by Ctrl-C).
        exhausted: Whether every policy of the space was tried.
        cached: Whether this answer was read back instead of measured now.
        digests: Name of a file that applies it -> digest of its content.
        timings: Activity of the run -> seconds, in the order of first occurrence.
    """

    recommendation: Recommendation
    workload: str
    goal: Goal
    folder: str
    hardware: Hardware
    facts: Facts
    versions: dict[str, str]
    date: str
    trials: int
    trial_budget: int
    time_budget_seconds: float
    complete: bool
    exhausted: bool
    notes: tuple[str, ...] = ()
    cached: bool = False
    digests: dict[str, str] = {}
    timings: dict[str, float] = {}

    @property
    def policy(self) -> Policy:
        """The policy to train with."""
        return self.recommendation.winner.policy

    @property
    def sample_dims(self) -> SampleDims | None:
        """Dimensions of a batch's samples, if not the default ones."""
        return self.facts.batch_layout.sample_dims

    @property
    def reduction(self) -> Reduction | None:
        """How the loss of a batch follows from those of its micro-batches, if not in the default way."""
        return self.facts.batch_layout.reduction

    @property
    def files(self) -> dict[str, Path]:
        """Description -> path of each written file."""
        folder = StudyFolder(Path(self.folder))
        files = {"policy": folder.policy, "wrapper": folder.wrapper, "study": folder.database}
        return {**files, "report": folder.page} if folder.page.exists() else files

    @property
    def policy_path(self) -> Path:
        """The policy file."""
        return StudyFolder(Path(self.folder)).policy

    @property
    def wrapper_path(self) -> Path:
        """The emitted wrapper."""
        return StudyFolder(Path(self.folder)).wrapper


def store_answer(answer: Answer, folder: StudyFolder) -> None:
    """Write the answer: the old one or this one is there at every moment."""
    write_whole(folder.answer, msgspec.json.format(encode_record(answer)))


def load_answer(folder: StudyFolder) -> Answer | None:
    """Read the stored answer back; ``None`` if there is none that this version understands."""
    answer = read_record(folder.answer, Answer)
    return None if answer is None else msgspec.structs.replace(answer, cached=True, folder=str(folder.path))


def withdraw_answer(folder: StudyFolder) -> None:
    """Remove the stored answer, if there is one, before something that it rests on is changed."""
    if folder.answer.exists():
        folder.answer.unlink(missing_ok=True)
        sync_folder(folder.path)
