"""What is exported of methods that spread a training, trained by each trainer on two ranks beside the wrapper."""

from __future__ import annotations

import pytest
import torch

from advisor.exports.export import export_policy
from advisor.exports.rules import Status
from advisor.exports.trainers import get_target
from tests.distributed.ranks import Launcher
from tests.exports import on_ranks
from tests.exports.cells import ON_RANKS
from tests.exports.two_steps import assert_differ, assert_moved_alike

pytestmark = pytest.mark.slow

Found = dict[str, tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]


@pytest.fixture(scope="module")
def found(launcher: Launcher, tmp_path_factory: pytest.TempPathFactory) -> Found:
    first, second = launcher.run(on_ranks.in_every_trainer, 2, tmp_path_factory.mktemp("two"))
    for case in ON_RANKS:
        torch.testing.assert_close(first[case][0], second[case][0], rtol=0, atol=0)
    result: Found = first
    return result


@pytest.mark.parametrize("case", ON_RANKS)
def test_two_ranks_of_the_trainer_reach_the_parameters_of_two_of_the_wrapper(case: str, found: Found) -> None:
    theirs, ours = found[case]
    assert_moved_alike(theirs, ours, ON_RANKS[case].tolerance)


def test_what_deepspeed_sends_in_fewer_bits_is_rounded(found: Found) -> None:
    names = ("deepspeed", "deepspeed, sent in fp16", "deepspeed, sent in bf16")
    assert_differ([found[name][0] for name in names])


@pytest.mark.parametrize("name", ON_RANKS)
def test_the_export_says_whether_it_is_the_same(name: str) -> None:
    case = ON_RANKS[name]
    lines = export_policy(case.file, get_target(case.trainer)).lines
    names = {setting.name for setting in case.settings}
    found = {line.status for line in lines if line.what.split()[0] in names}
    assert found == {Status.EXPORTED if case.same else Status.APPROXIMATED}
