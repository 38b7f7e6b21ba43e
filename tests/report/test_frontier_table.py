from __future__ import annotations

import re

import msgspec
import pytest
from rich.text import Text

from advisor.goal import Preference
from advisor.methods.setting import use
from advisor.report.frontier_table import DOMINATED_ROWS, FrontierTable
from tests.decide.costs import PRICE, cheapest, decide, timed

from .cost_scenario import cost_goal, cost_recommendation
from .scenario import ADAM, BF16, CHECKPOINT, CHUNKED, IN_BACKWARD, shown, words


def table(*, width: int = 80, energy: bool = False, preference: Preference | None = None) -> str:
    goal = cost_goal(preference, usd_per_kilowatt_hour=0.3 if energy else None)
    return shown(FrontierTable(cost_recommendation(goal, energy=energy), goal), width=width)


@pytest.mark.parametrize("width", [60, 79, 80, 120, 160])
@pytest.mark.parametrize("energy", [False, True])
def test_nothing_is_wider_than_the_terminal_or_cut(width: int, energy: bool) -> None:
    text = table(width=width, energy=energy)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_every_point_has_its_figures_the_cheapest_first() -> None:
    text = words(table())
    rows = [
        "1 chunked_cross_entropy chunks=8 + precision bf16 1 912 ms ±0.5% $0.91 32 4.00 GiB precision 0.4%",
        "2 chunked_cross_entropy chunks=8 + precision bf16 2 498 ms ±0.5% $1.00 16 4.00 GiB precision 0.4%",
        "[3] precision bf16 4 301 ms ±0.5% $1.20 8 4.00 GiB precision 0.4% picked, knee",
    ]
    positions = [text.index(row) for row in rows]
    assert positions == sorted(positions)


def test_energy_has_a_column_where_it_was_measured() -> None:
    assert "energy" not in table()
    text = words(table(energy=True))
    assert "[3] precision bf16 4 301 ms ±0.5% $1.20 361 J 8 4.00 GiB" in text
    assert "energy: of all devices, per iteration" in text


def test_a_dominated_point_says_what_dominates_it() -> None:
    text = words(table(width=120))
    assert "6 4 checkpoint every=2 + precision bf16 8 372 ms $1.49 1.24x time, 1.24x cost of 3" in text
    assert "4 1 precision bf16 [hand-tuned] 32 1.03 s $1.03 1.13x time, 1.13x cost of 1" in text
    assert "8 2 swap 16 ~1.31 s $2.62 2.63x time, 2.63x cost of 2" in text


def test_on_a_narrow_terminal_methods_keep_their_names_and_reasons_stand_below_the_figures() -> None:
    text = words(table(width=60))
    assert "6 checkpoint every=2 + precision bf16 4 372 ms $1.49 8 1.24x time, 1.24x cost of 3" in text
    assert "4 precision bf16 [hand-tuned] 1 1.03 s $1.03 32 1.13x time, 1.13x cost of 1" in text


def test_a_tie_says_that_it_is_one() -> None:
    answer = decide([timed(1.0), timed(0.993, CHECKPOINT)])
    text = words(shown(FrontierTable(answer, cheapest()), width=120))
    assert "0.99x time, 0.99x cost of 1 (inside the noise)" in text


def test_what_may_not_win_says_why() -> None:
    assert "450 ms $0.90 cannot win: loss drift 9.3% is above the tolerance 5.0%" in words(table(width=160))


def test_the_price_has_its_source_and_date() -> None:
    assert f"price: $3.60 per device-hour, {PRICE.source}, {PRICE.date}" in words(table())


def test_processes_on_a_cpu_are_said_to_be_priced_as_machines() -> None:
    note = "2 or 4 processes share this one machine: each is counted as a device at its full price"
    shared = msgspec.structs.replace(cost_goal(), shares_memory=True)
    assert note in words(shown(FrontierTable(cost_recommendation(), shared)))
    assert "processes share" not in table()
    assert "processes share" not in shown(FrontierTable(decide([timed(1.0)], shared), shared))


def test_a_whole_run_is_shown_where_one_was_asked_for() -> None:
    text = words(table(preference=Preference(iterations=5000)))
    assert "picked, knee, 5,000 iterations: 25m05s, $6.02" in text
    assert "5,000 iterations: 1h16m, $4.56" in text


def test_many_dominated_points_are_cut_with_a_count_and_the_baseline_stays() -> None:
    answer = cost_recommendation()
    assert answer.frontier is not None
    slower = [timed(1.1 + step / 50, use("checkpoint", every=10 + step)) for step in range(20)]
    text = shown(FrontierTable(decide([*answer.ranking, *slower]), cheapest()), width=120)
    shown_of_those = [step for step in range(20) if f"every={10 + step} " in text]
    assert shown_of_those == list(range(len(shown_of_those))), "the cheapest are shown"
    assert 0 < len(shown_of_those) <= DOMINATED_ROWS
    assert "[baseline]" in text
    assert re.search(r"and 1\d more that are worse or may not win", text)


def test_a_frontier_of_one_point_stands_alone() -> None:
    text = shown(FrontierTable(decide([timed(1.0)]), cheapest()))
    assert "Not on the frontier" not in text
    assert "knee" not in text
    assert "picked" in text


def test_colour_adds_nothing_that_is_not_also_said_in_words() -> None:
    goal = cost_goal()
    coloured = Text.from_ansi(shown(FrontierTable(cost_recommendation(goal), goal), color=True)).plain
    assert [line.rstrip() for line in coloured.splitlines()] == [line.rstrip() for line in table().splitlines()]


def test_a_full_policy_at_80_columns_stays_whole() -> None:
    worst = timed(1.0, ADAM, BF16, CHECKPOINT, CHUNKED, IN_BACKWARD, gpu_count=2, accumulation_steps=16)
    text = shown(FrontierTable(decide([worst]), cheapest()))
    for method in ("adam_8bit", "precision bf16", "chunked_cross_entropy chunks=8", "1 x 16"):
        assert method in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_a_recommendation_without_a_frontier_has_no_such_table() -> None:
    with pytest.raises(AssertionError, match="only the goal 'cheapest'"):
        FrontierTable(msgspec.structs.replace(cost_recommendation(), frontier=None), cost_goal())
