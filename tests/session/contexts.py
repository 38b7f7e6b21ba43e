"""A study for tests of one of its parts: on a CPU, with everything that nobody looks at as plain as it can be."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from advisor.decide.candidate import Candidate
from advisor.goal import Goal
from advisor.report.progress import Progress
from advisor.search.space.space import ResolvedSpace
from advisor.session.budget import TimeBudget
from advisor.session.context import StudyContext
from advisor.session.request import TuneRequest
from advisor.trial.folder import StudyFolder
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.decide.examples import goal as any_goal
from tests.report.scenario import CPU
from tests.search.test_build_space import FACTS
from tests.session.ledgers import InMemory

__all__ = ["SPACE", "study"]

SOURCE = WorkloadSource(kind=WorkloadKind.FILE, location="m.py", name="m", fingerprint="f")
SPACE = ResolvedSpace(
    name="test",
    fidelity=any_goal().fidelity,
    axes=(),
    batch_fractions=(1.0,),
    recipes=(),
    refused={},
    dropped_recipes={},
    conflicts={},
)


def study(
    goal: Goal | None = None,
    *,
    seconds: float = 1000.0,
    candidates: Iterable[Candidate] = (),
    trials: int = 100,
    **others: Any,
) -> StudyContext:
    """One that tests look at a part of.

    Args:
        goal: The goal.
        seconds: Of its time limit.
        candidates: Of earlier runs.
        trials: Most policies to measure.
        others: Other attributes of the study.
    """
    aim = any_goal() if goal is None else goal
    whole = StudyContext(
        request=TuneRequest(source=SOURCE, goal=aim.kind, trials=trials),
        folder=StudyFolder(Path("nowhere")),
        hardware=CPU,
        usable_bytes=2**40,
        goal=aim,
        facts=FACTS,
        space=SPACE,
        ledger=InMemory(candidates),
        budget=TimeBudget(seconds),
        progress=Progress(),
    )
    return msgspec.structs.replace(whole, **others)
