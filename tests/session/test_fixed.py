"""Batch and devices, once the workload is known."""

from __future__ import annotations

import msgspec
import pytest

from advisor.errors import OptionError, SearchSpaceError
from advisor.goal import Fidelity, Goal, GoalKind
from advisor.search.space.space_file import load_space
from advisor.session.setup.device_counts import _reasons, build_on_devices, with_global_batch
from tests.search.test_build_space import CPU, FACTS

DEFAULT = load_space("default")


def goal(*counts: int, fidelity: Fidelity = Fidelity.LOSSY) -> Goal:
    return Goal(
        kind=GoalKind.CHEAPEST, global_batch=None, fidelity=fidelity, memory_limit_bytes=2**33, gpu_counts=counts
    )


def test_a_batch_of_the_file_that_cannot_be_split_is_not_blamed_on_an_option() -> None:
    odd = msgspec.structs.replace(FACTS, default_batch=33)
    assert with_global_batch(goal(1, 2), odd).gpu_counts == (1,)
    with pytest.raises(OptionError, match=r"^BATCH_SIZE .* multiple of the number of devices \(2\), but got 33"):
        with_global_batch(goal(2), odd)
    with pytest.raises(OptionError, match=r"^--global-batch must be"):
        with_global_batch(msgspec.structs.replace(goal(2), global_batch=33), FACTS)


def test_shares_that_cannot_be_trained_on_are_left_out() -> None:
    layout = msgspec.structs.replace(FACTS.batch_layout, least_samples=8, multiple=4)
    facts = msgspec.structs.replace(FACTS, default_batch=24, batch_layout=layout)
    assert with_global_batch(goal(1, 2, 3, 4, 6), facts).gpu_counts == (1, 2, 3)
    with pytest.raises(
        OptionError, match="over 4 or 6 are none: only batches of a multiple of 4 samples from 8 on can"
    ):
        with_global_batch(goal(4, 6), facts)
    with pytest.raises(OptionError, match="but it is 22, and only batches of a multiple of 4 samples from 8 on can"):
        with_global_batch(msgspec.structs.replace(goal(1), global_batch=22), facts)


def test_several_devices_that_were_asked_for_need_a_way_and_the_ceiling_is_named() -> None:
    resolved, note = build_on_devices(DEFAULT, FACTS, CPU, goal(1, 2), asked=True)
    assert (resolved.gpu_counts, note) == ((1, 2), None)
    with pytest.raises(SearchSpaceError) as raised:
        build_on_devices(DEFAULT, FACTS, CPU, goal(1, 2, fidelity=Fidelity.EXACT), asked=True)
    assert str(raised.value).startswith("On 2 devices one of ")
    assert str(raised.value).endswith(
        "none does where the fidelity must be at most exact. Allow one with --fidelity rounding, or use --gpus 1."
    )


def test_equal_reasons_are_said_once() -> None:
    assert _reasons({"ddp": "no", "zero_1": "no", "fsdp": "never", "swap": "no"}) == "ddp, zero_1: no; fsdp: never"


def test_several_devices_that_nobody_asked_for_are_left_out_with_a_note() -> None:
    resolved, note = build_on_devices(DEFAULT, FACTS, CPU, goal(1, 2, 4, fidelity=Fidelity.EXACT), asked=False)
    assert resolved.gpu_counts == (1,)
    assert note is not None
    assert note.startswith("2, 4 devices were left out: one of ddp")
    assert note.endswith("at most exact (--fidelity rounding allows one)")
    resolved, note = build_on_devices(load_space("exact"), FACTS, CPU, goal(1, 2), asked=False)
    assert resolved.gpu_counts == (1,)
    assert note is not None
    assert note.endswith("none does: exact lists none of them")
