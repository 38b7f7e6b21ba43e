"""What stays the same from the first trial of a study to its answer."""

from __future__ import annotations

import msgspec

from advisor.goal import Goal
from advisor.hardware.hardware import Hardware
from advisor.hardware.mesh import DATA_ONLY
from advisor.report.progress import Progress
from advisor.search.space.space import Combination, ResolvedSpace
from advisor.session.budget import TimeBudget
from advisor.session.ledger import Ledger
from advisor.session.request import TuneRequest
from advisor.trial.folder import StudyFolder
from advisor.workload.facts import Facts

__all__ = ["StudyContext"]


class StudyContext(msgspec.Struct, frozen=True, kw_only=True):
    """One study while it runs: made once, when the probe has shown what the workload is.

    Attributes:
        request: What is asked for.
        folder: The study folder.
        hardware: The device.
        usable_bytes: The memory limit of profiling runs: all that is free on the device.
        goal: The goal, with the global batch and the numbers of devices that this workload allows.
        facts: What the probe learned.
        space: What may be combined here.
        ledger: Everything that was tried.
        budget: The clock of this run.
        progress: Told of everything that happens.
    """

    request: TuneRequest
    folder: StudyFolder
    hardware: Hardware
    usable_bytes: int
    goal: Goal
    facts: Facts
    space: ResolvedSpace
    ledger: Ledger
    budget: TimeBudget
    progress: Progress

    def plainest(self, gpu_count: int) -> Combination | None:
        """The plainest combination on a number of devices: without methods, but for those that a mesh needs."""
        return self.space.on_devices((), gpu_count)

    def reference(self, shares: int) -> Combination | None:
        """Plain training on as many devices as a batch has shares: what losses are compared with.

        Where devices divide the model, that is on fewer of them; it sees the same batches, with the same dropout.
        """
        return self.space.on_devices((), shares, DATA_ONLY)
