"""What is asked is checked before anything starts."""

from __future__ import annotations

import math
from typing import Any

import pytest

from advisor.errors import OptionError
from advisor.goal import GoalKind, Preference, Price
from advisor.goal_text import parse_gpu_counts
from advisor.search.propose.proposal import SamplerName
from advisor.session.request import TuneRequest
from advisor.workload.workload import WorkloadKind, WorkloadSource

SOURCE = WorkloadSource(kind=WorkloadKind.FILE, location="/m.py", name="m", fingerprint="f")


def cheapest(**options: Any) -> TuneRequest:
    return TuneRequest(source=SOURCE, goal=GoalKind.CHEAPEST, **options)


def price(usd: float) -> Price:
    return Price(usd_per_hour=usd, source="--price", date="as given")


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_what_is_reckoned_with_is_above_zero_and_finite(value: float) -> None:
    requests = {
        "--price": cheapest(price=price(value)),
        "--kwh-price": cheapest(usd_per_kilowatt_hour=value),
        "--max-cost": cheapest(preference=Preference(max_cost_usd=value)),
        "--max-latency": cheapest(preference=Preference(max_latency_seconds=value)),
        "--deadline": cheapest(preference=Preference(deadline_seconds=value, iterations=10)),
    }
    for option, request in requests.items():
        with pytest.raises(OptionError, match=f"{option} must be a finite number above zero, but got {value:g}"):
            request.check()


@pytest.mark.parametrize("count", [0, -3, 0.5])
def test_a_run_has_an_iteration_at_least(count: Any) -> None:
    with pytest.raises(OptionError, match="--iterations"):
        cheapest(preference=Preference(iterations=count)).check()


def test_a_price_belongs_to_one_goal() -> None:
    cheapest(price=price(2.49), usd_per_kilowatt_hour=0.3, preference=Preference(iterations=1)).check()
    with pytest.raises(OptionError, match="--price belongs to --goal cheapest"):
        TuneRequest(source=SOURCE, price=price(2.49)).check()


@pytest.mark.parametrize("value", [2.0, 1.5, None])
def test_a_number_of_devices_that_is_no_whole_number_is_the_users_mistake(value: Any) -> None:
    with pytest.raises(OptionError, match="--gpus must be whole numbers from 1"):
        parse_gpu_counts(value)


def test_another_price_or_preference_is_the_same_study() -> None:
    plain = cheapest().fingerprint("space")
    assert cheapest(price=price(2.0)).fingerprint("space") == plain
    assert cheapest(usd_per_kilowatt_hour=0.3).fingerprint("space") == plain
    assert cheapest(preference=Preference(max_cost_usd=1.0, iterations=10)).fingerprint("space") == plain
    assert cheapest(global_batch=8).fingerprint("space") != plain


def test_devices_are_asked_for_again_if_they_were_named() -> None:
    assert cheapest().options_again == {}
    assert cheapest(gpu_counts=(1, 2)).options_again == {"--gpus": "1,2"}


def test_another_sampler_or_storage_is_the_same_study() -> None:
    plain = TuneRequest(source=SOURCE).fingerprint("space")
    assert TuneRequest(source=SOURCE, sampler=SamplerName.TPE).fingerprint("space") == plain
    assert TuneRequest(source=SOURCE, storage="study.journal").fingerprint("space") == plain


def test_a_storage_is_for_goals_whose_workers_share_what_they_measure() -> None:
    TuneRequest(source=SOURCE, storage="study.journal").check()
    with pytest.raises(OptionError, match=r"--storage belongs to --goal faster and cheapest.*but the goal is 'bigger'"):
        TuneRequest(source=SOURCE, goal=GoalKind.BIGGER, storage="study.journal").check()
