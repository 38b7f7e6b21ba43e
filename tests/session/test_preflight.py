"""What reading can tell is told before anything runs; what it cannot tell is left to those who know."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.errors import OptionError, SearchSpaceError
from advisor.goal import GoalKind
from advisor.policy.baseline import Baseline
from advisor.policy.policy import Policy
from advisor.search.space.space_file import load_space
from advisor.session.request import TuneRequest
from advisor.session.setup.device_counts import check_preflight
from advisor.trial.nodes import Nodes
from advisor.workload.workload import Stated, WorkloadKind, WorkloadSource

DEFAULT, SMOKE = load_space("default"), load_space("smoke")


def asked(location: Path | str = "m", kind: WorkloadKind = WorkloadKind.FUNCTIONS, **options: Any) -> TuneRequest:
    source = WorkloadSource(kind=kind, location=str(location), name="m", fingerprint="f")
    return TuneRequest(source=source, **options)


@pytest.mark.parametrize(
    ("text", "told"),
    [("WIDTH = 8\n", True), ("BATCH_SIZE = 8\n", False), ("from mine import *\n", False), ("import BATCH_SIZE", False)],
)
def test_cheapest_needs_a_batch_and_a_file_says_whether_it_has_one(tmp_path: Path, text: str, told: bool) -> None:
    (tmp_path / "model.py").write_text(text)
    request = asked(tmp_path / "model.py", WorkloadKind.FILE, goal=GoalKind.CHEAPEST)
    if told:
        with pytest.raises(OptionError, match="none is stated"):
            check_preflight(request, DEFAULT, (1,))
    else:
        check_preflight(request, DEFAULT, (1,))


def test_functions_may_have_a_batch_and_a_config_never_has_one() -> None:
    check_preflight(asked(goal=GoalKind.CHEAPEST), DEFAULT, (1,))
    config = asked("gpt2", WorkloadKind.HUGGING_FACE, goal=GoalKind.CHEAPEST)
    with pytest.raises(OptionError, match="none is stated"):
        check_preflight(config, DEFAULT, (1,))


def test_a_batch_stated_beside_the_model_is_a_batch() -> None:
    config = asked("gpt2", WorkloadKind.HUGGING_FACE, goal=GoalKind.CHEAPEST)
    source = msgspec.structs.replace(config.source, stated=Stated(batch_size=8))
    check_preflight(msgspec.structs.replace(config, source=source), DEFAULT, (1,))
    own = Baseline(policy=Policy(micro_batch=8), origin="own.yaml")
    check_preflight(msgspec.structs.replace(config, baseline=own), DEFAULT, (1,))
    without = msgspec.structs.replace(own, states_batch=False)
    with pytest.raises(OptionError, match="--batch N"):
        check_preflight(msgspec.structs.replace(config, baseline=without), DEFAULT, (1,))


def test_a_global_batch_must_be_split_over_one_of_the_numbers_of_devices() -> None:
    data_alone = msgspec.structs.replace(DEFAULT, methods={"ddp": {}})
    check_preflight(asked(global_batch=33, gpu_counts=(1, 2)), data_alone, (1, 2))
    with pytest.raises(OptionError, match=r"--global-batch must be a multiple .*\(2 or 4\), but got 33"):
        check_preflight(asked(global_batch=33, gpu_counts=(2, 4)), data_alone, (2, 4))


def test_devices_that_hold_one_model_together_need_not_divide_the_global_batch() -> None:
    check_preflight(asked(global_batch=33, gpu_counts=(2, 4)), DEFAULT, (2, 4))


def test_several_devices_that_were_asked_for_need_a_method_in_the_space() -> None:
    check_preflight(asked(gpu_counts=(1,)), SMOKE, (1,))
    check_preflight(asked(), SMOKE, (1, 2))  # nobody asked: they are left out later, with a note
    check_preflight(asked(global_batch=33, gpu_counts=(1, 2)), SMOKE, (1, 2))  # only one device remains
    two_machines = Nodes(count=2, endpoint="first:29400")
    for request in (asked(gpu_counts=(1, 2)), asked(nodes=two_machines)):
        with pytest.raises(SearchSpaceError, match=r"On 2 devices one of .* smoke lists none of them"):
            check_preflight(request, SMOKE, (1, 2))
