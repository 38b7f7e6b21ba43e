"""Whatever hits a run, nothing is left, nothing finished is lost, and the same command ends with a confirmed answer.

MOMADVISE_FAULT_SEEDS=0,1 plays every row of the matrix with these seeds, and every damaged study, instead of a few;
`python -m benchmarks.reliability` does as well, and writes down what did not hold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from advisor.trial.process import fork_client
from tests.faults.damage import DAMAGE_SAMPLE, Damage, damages, play_damage, undamaged
from tests.faults.matrix import SAMPLE, Fault, Goal, Row, Who, rows
from tests.faults.play import play
from tests.faults.scene import Scene
from tests.session.command import run_here

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_SEEDS = [int(seed) for seed in os.environ.get("MOMADVISE_FAULT_SEEDS", "").split(",") if seed]
_ROWS = [row for seed in _SEEDS for row in rows(seed)] or list(SAMPLE)
_DAMAGES = [damage for seed in _SEEDS for damage in damages(seed)] or list(DAMAGE_SAMPLE)


@pytest.fixture(autouse=True, scope="module")
def one_process_forks_for_all() -> Iterator[None]:
    """What tells the rows' folders apart is no reason to load torch again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fork_client, "_READ_LATE", fork_client._READ_LATE | {"TMPDIR", "MOMADVISE_CACHE"})
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """A study that nobody has damaged."""
    return undamaged(tmp_path_factory.mktemp("whole"), run_here)


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row.name)
def test_a_run_that_was_hit_leaves_nothing_and_goes_on(row: Row, tmp_path: Path) -> None:
    assert play(row, tmp_path / "row", run_here).problems == ()


@pytest.mark.parametrize("damage", _DAMAGES, ids=lambda damage: damage.name)
def test_a_damaged_study_is_used_for_what_it_is_worth_or_refused(damage: Damage, whole: Scene, tmp_path: Path) -> None:
    assert play_damage(damage, whole, tmp_path / "row", run_here).problems == ()


def test_the_few_rows_hit_everybody_with_everything_in_every_goal() -> None:
    assert {row.who for row in SAMPLE} == set(Who)
    assert {row.goal for row in SAMPLE} == set(Goal)
    assert {row.fault.signal for row in SAMPLE} == {fault.signal for fault in Fault}


def test_the_matrix_hits_everybody_with_every_fault_and_the_same_seed_draws_the_same_rows() -> None:
    drawn = list(rows(3))
    assert drawn == list(rows(3))
    assert {(row.who, row.fault) for row in drawn} == {
        (who, fault) for who in Who for fault in Fault if (who, fault) != (Who.COMMAND, Fault.STOP)
    }
    assert {(row.who, row.goal) for row in drawn} == {
        (who, goal) for who in Who for goal in Goal if (who, goal) != (Who.RANK, Goal.BIGGER)
    }
