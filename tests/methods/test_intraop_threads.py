"""Fewer threads than torch takes by itself: the number is the process's, and changes back when the training closes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.hardware.rates import Bandwidth, DeviceRates
from advisor.methods.compose import apply_settings, judge
from advisor.methods.expected_time import expected_time_ratio
from advisor.methods.process.intraop_threads import IntraopThreads
from advisor.methods.setting import MethodSetting, use
from advisor.training.process_setting import disputed
from advisor.workload.facts import Facts
from tests.methods.tiny import cpu, facts_of, gpu, training_of


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    yield
    torch.set_num_threads(before)


def count(number: int) -> MethodSetting:
    return use("intraop_threads", count=number)


def with_rates(**thread_rates: float) -> Facts:
    """Facts of a probe that ran operators with so many threads, called ``one``, ``two``, ``four``."""
    numbers = {"one": 1, "two": 2, "four": 4}
    rates = DeviceRates(
        matmul_flops_per_second={"float32": 1e11},
        bandwidth=Bandwidth.constant(1e10),
        fresh_bandwidth=Bandwidth.constant(1e10),
        thread_rates={numbers[name]: rate for name, rate in thread_rates.items()},
        measured=True,
    )
    return msgspec.structs.replace(facts_of("convnet"), device_rates=rates)


def test_steps_are_made_with_so_many_threads_until_the_training_closes() -> None:
    training = training_of("convnet")
    apply_settings(training, (count(2),))
    assert torch.get_num_threads() == 2
    assert training.notes == []
    training.close()
    assert torch.get_num_threads() == 4


def test_where_the_process_has_no_more_threads_it_says_that_it_changed_nothing() -> None:
    training = training_of("convnet")
    apply_settings(training, (count(4),))
    assert torch.get_num_threads() == 4
    (note,) = training.notes
    assert "changed nothing" in note
    assert "no more than 4" in note


def test_two_trainings_in_one_process_agree_on_the_same_number() -> None:
    """The trap: the second found the first one's threads, took them for the process's own and held none."""
    one, other, third = (training_of("convnet") for _ in range(3))
    for training in (one, other):
        apply_settings(training, (count(2),))
    assert "intraop_threads" not in disputed(2)
    assert other.notes == []
    apply_settings(third, (count(1),))
    assert "intraop_threads" in disputed(3)
    for training in (one, other, third):
        training.close()
    assert torch.get_num_threads() == 4


def test_it_is_for_cpus() -> None:
    verdict = judge((count(1),), facts=None, hardware=gpu((9, 0)))
    assert not verdict.applicable
    assert "threads of a CPU's operators" in verdict.reason
    training = training_of("convnet")
    training.device = torch.device("cuda")  # nothing is moved there
    with pytest.raises(MethodRefusedError, match="on cuda"):
        IntraopThreads().apply(training, count=1)


def test_only_fewer_threads_than_the_probe_had_are_offered() -> None:
    facts = with_rates(one=9e3, two=17e3)
    assert judge((count(1),), facts=facts, hardware=cpu()).applicable
    assert not judge((count(2),), facts=facts, hardware=cpu()).applicable
    verdict = judge((count(1),), facts=with_rates(), hardware=cpu())
    assert not verdict.applicable
    assert "no more than 1" in verdict.reason


def test_what_is_expected_of_it_is_what_the_probe_measured() -> None:
    method = IntraopThreads()
    idle, busy = with_rates(one=9e3, two=16e3, four=30e3), with_rates(one=7e3, two=13e3, four=1e2)
    assert expected_time_ratio(method, count(1), cpu(), idle) == pytest.approx(30 / 9)
    assert expected_time_ratio(method, count(1), cpu(), busy) == pytest.approx(1 / 70)
    assert expected_time_ratio(method, count(2), cpu(), busy) < expected_time_ratio(method, count(1), cpu(), busy)
    assert expected_time_ratio(method, count(1), cpu(), facts_of("convnet")) == 1, "not measured"
