"""DistributedDataParallel of LLaMA-Factory on two ranks, beside the wrapper, where it is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.exports.export import export_policy
from advisor.exports.rules import Status
from advisor.exports.trainers import get_target
from tests.distributed.ranks import Launcher
from tests.exports import on_ranks_elsewhere
from tests.exports.cells import ON_RANKS_ELSEWHERE
from tests.exports.two_steps import assert_moved_alike

pytestmark = pytest.mark.slow


def test_two_ranks_of_llamafactory_reach_the_wrappers_parameters(launcher: Launcher, tmp_path: Path) -> None:
    pytest.importorskip("llamafactory")
    found, _ = launcher.run(on_ranks_elsewhere.in_llamafactory, 2, tmp_path)
    assert list(found) == list(ON_RANKS_ELSEWHERE)
    for name, (theirs, ours) in found.items():
        case = ON_RANKS_ELSEWHERE[name]
        lines = export_policy(case.file, get_target(case.trainer)).lines
        (status,) = (line.status for line in lines if line.what.startswith("ddp"))
        assert status is (Status.EXPORTED if case.same else Status.APPROXIMATED)
        assert_moved_alike(theirs, ours, case.tolerance)


def test_axolotl_is_given_no_ddp_on_cpus() -> None:
    file = ON_RANKS_ELSEWHERE["llamafactory"].file  # measured on a CPU
    (line,) = (line for line in export_policy(file, get_target("axolotl")).lines if line.what.startswith("ddp"))
    assert line.status is Status.ADAPTER
    assert not line.keys
