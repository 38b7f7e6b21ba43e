"""What an iteration costs, in each currency."""

from __future__ import annotations

import pytest

from advisor.decide.cost import cost_evidence, cost_of

from .costs import PRICE, cheapest, timed


def test_the_cost_is_price_times_devices_times_time() -> None:
    cost = cost_of(timed(0.25, gpu_count=4), cheapest())
    assert cost.latency_seconds == 0.25
    assert cost.cost_usd == pytest.approx(3.6 * 4 * 0.25 / 3600)
    assert cost.joules is None
    assert cost.energy_usd is None


def test_energy_is_a_second_currency_that_is_not_added() -> None:
    cost = cost_of(timed(1.0, joules=7.2e6), cheapest(usd_per_kilowatt_hour=0.30))
    assert cost.joules == 7.2e6
    assert cost.energy_usd == pytest.approx(0.60)
    assert cost.cost_usd == pytest.approx(0.001)


def test_energy_without_a_price_stays_joules() -> None:
    assert cost_of(timed(1.0, joules=300), cheapest()).energy_usd is None
    assert cost_of(timed(1.0), cheapest(usd_per_kilowatt_hour=0.30)).energy_usd is None


def test_without_a_price_there_is_no_cost() -> None:
    with pytest.raises(AssertionError, match="has a price"):
        cost_of(timed(1.0), cheapest(price=None))


def test_the_evidence_names_the_price_its_source_and_date() -> None:
    evidence = cost_evidence(timed(0.5, gpu_count=2, joules=80), cheapest())
    assert (evidence.latency_seconds, evidence.usd_per_iteration) == pytest.approx((0.5, 0.001))
    assert (evidence.gpu_count, evidence.joules_per_iteration) == (2, 80)
    assert (evidence.usd_per_hour, evidence.price_source, evidence.price_date) == (3.6, PRICE.source, PRICE.date)
