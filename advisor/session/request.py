"""What is asked of a session: every option, checked, before anything starts."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from advisor.errors import OptionError
from advisor.problem.goal import Fidelity, GoalKind
from advisor.problem.workload import WorkloadSource

__all__ = ["DEFAULT_TIME_LIMIT_SECONDS", "DEFAULT_TRIALS", "TuneRequest"]

DEFAULT_TIME_LIMIT_SECONDS = 210.0
DEFAULT_TRIALS = 40


class TuneRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One tuning, as asked for.

    Attributes:
        source: The workload.
        goal: What to optimize.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or ``None`` for the best there is.
        memory_limit_bytes: Upper limit of device memory, or ``None`` for what is free.
        fidelity: Worst class of method that may win, or ``None`` for the search space's own ceiling.
        search_space: Name of a shipped space or path of a YAML file.
        trials: Most policies to measure.
        time_limit_seconds: Most seconds to spend, confirmation included.
        global_batch: Samples per optimizer step if that must stay fixed.
        output: Folder for everything that is written, or ``None`` for one named after the workload.
        seed: Seed of the models, batches and proposals.
        wait: Whether to wait while another process tunes into the same folder (else that is an error).
    """

    source: WorkloadSource
    goal: GoalKind = GoalKind.FASTER
    device: str | None = None
    memory_limit_bytes: int | None = None
    fidelity: Fidelity | None = None
    search_space: str = "default"
    trials: int = DEFAULT_TRIALS
    time_limit_seconds: float = DEFAULT_TIME_LIMIT_SECONDS
    global_batch: int | None = None
    output: Path | None = None
    seed: int = 0
    wait: bool = False

    def check(self) -> None:
        """Check every option that can be checked without looking at the machine.

        Raises:
            OptionError: An option is outside its rule.
        """
        if self.goal is not GoalKind.FASTER:
            raise OptionError(
                f"--goal must be 'faster' in this version, but got {self.goal.value!r}. "
                "The goals 'bigger' and 'cheapest' are not built yet."
            )
        if self.trials < 1:
            raise OptionError(f"--trials >= 1 must hold, but got {self.trials}.")
        if not self.time_limit_seconds > 0:
            raise OptionError(f"--time-limit must be longer than zero, but got {self.time_limit_seconds:g} s.")
        if self.global_batch is not None and self.global_batch < 1:
            raise OptionError(f"--global-batch >= 1 must hold, but got {self.global_batch}.")
        if self.memory_limit_bytes is not None and self.memory_limit_bytes < 1:
            raise OptionError(f"--memory-limit must be above zero, but got {self.memory_limit_bytes} bytes.")

    def fingerprint(self, space_text: str) -> str:
        """Hash over everything that decides the answer except budgets (trials, time), source and hardware.

        Args:
            space_text: The search space's content, so that an edited space is another request.
        """
        identity = (
            self.goal,
            self.memory_limit_bytes,
            self.fidelity,
            space_text,
            self.global_batch,
            self.seed,
        )
        return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:16]
