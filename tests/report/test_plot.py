from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from advisor.methods.setting import use
from advisor.report.answer import AnswerView
from advisor.report.plot import CostPlot
from tests.decide.costs import decide, timed

from .cost_scenario import cost_goal, cost_recommendation
from .scenario import BF16, shown, words


def plot(*, width: int = 80) -> list[str]:
    return shown(CostPlot(cost_recommendation()), width=width).splitlines()


def canvas(lines: list[str]) -> list[str]:
    """What is right of the axis, from the top."""
    return [line.split("│", 1)[1] for line in lines if "│" in line]


def place(label: str) -> tuple[int, int]:
    """Column and row from the top of a label."""
    for row, line in enumerate(canvas(plot())):
        found = re.search(rf"(?<![\d\[]){re.escape(label)}(?![\d\]])", line)
        if found:
            return found.start(), row
    raise AssertionError(f"{label} is not drawn")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_plot_fits_its_terminal(width: int) -> None:
    assert max(len(line) for line in plot(width=width)) <= width


def test_every_point_of_the_table_is_drawn_and_the_pick_is_in_brackets() -> None:
    drawn = re.findall(r"\[?\d\]?", " ".join(canvas(plot())))
    assert sorted(drawn) == ["1", "2", "4", "5", "6", "7", "8", "[3]"]


def test_faster_is_left_and_cheaper_is_below() -> None:
    first, second, third = place("1"), place("2"), place("[3]")
    assert third[0] < second[0] < first[0]
    assert third[1] < second[1] <= first[1]
    assert place("7")[0] == max(place(label)[0] for label in ("1", "2", "[3]", "4", "5", "6", "7", "8"))


def test_the_ends_of_the_axes_are_labelled() -> None:
    text = "\n".join(plot())
    for label in ("$0.91", "$2.62", "301 ms", "1.92 s"):
        assert label in text


def test_an_axis_that_spans_much_is_logarithmic_and_says_so() -> None:
    text = "\n".join(plot())
    assert "latency of an iteration (log scale)" in text
    assert "$ for 1000 iterations\n" in text
    near = shown(CostPlot(decide([timed(1.0), timed(0.6, BF16, gpu_count=2)])))
    assert "log scale" not in near


def test_points_at_the_same_place_are_drawn_side_by_side_or_named() -> None:
    crowd = [timed(1.0 + step / 10000, use("checkpoint", every=1 + step)) for step in range(8)]
    text = shown(CostPlot(decide([*crowd, timed(0.4, BF16, gpu_count=4)])))
    drawn = re.findall(r"\[?\d\]?", " ".join(canvas(text.splitlines())))
    missing = re.search(r"Not drawn for lack of room: ([\d, ]+)\.", words(text))
    assert missing is not None
    assert len(drawn) + len(missing.group(1).split(",")) == 9


def test_the_caption_says_which_numbers_are_the_frontier() -> None:
    assert "[3]: picked. 1 to 3: the frontier. Low and left is better." in plot()
    alone = shown(CostPlot(decide([timed(1.0), timed(1.5, BF16)])))
    assert "[1]: picked. It alone is the frontier." in alone


def test_a_single_point_needs_no_plot() -> None:
    assert shown(CostPlot(decide([timed(1.0)]))) == ""
    answer = AnswerView(decide([timed(1.0)]), cost_goal(), files={}, apply_lines=())
    assert "\n\n\n" not in shown(answer), "nothing has one blank line, not two"


def test_a_stream_that_knows_only_ascii_gets_a_plot_too() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    Console(file=stream, width=80).print(CostPlot(cost_recommendation()))
    stream.flush()
    assert "|" in raw.getvalue().decode("ascii")
