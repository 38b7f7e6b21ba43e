from __future__ import annotations

import re

import msgspec
import pytest
from rich.text import Text

from advisor.report.cells import Folded
from advisor.report.table import RankingTable, not_measured_part, not_measured_table, refused_settings_table
from advisor.text.units import format_bytes
from advisor.trial.outcome import Outcome
from tests.decide.examples import baseline, goal, lost, measured, on
from tests.decide.test_leader import compared

from .scenario import ADAM, BF16, CHECKPOINT, CHUNKED, IN_BACKWARD, REFUSED, recommendation, shown, words


def lines_of(width: int) -> list[str]:
    return shown(RankingTable(recommendation(), goal()), width=width).splitlines()


def row_of(policy: str) -> str:
    """The policy's line at 80 columns and the one below it."""
    lines = lines_of(80)
    at = next(number for number, line in enumerate(lines) if re.fullmatch(rf"\d+ +{re.escape(policy)}", line.rstrip()))
    return words(" ".join(lines[at : at + 2]))


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_every_measured_figure_of_the_winner_is_in_its_row(width: int) -> None:
    text = words(" ".join(lines_of(width)))
    for figure in ("132 ±1.0%", "+115%", "48", "7.20 GiB", "precision", "0.4%", "winner"):
        assert figure in text


@pytest.mark.parametrize("width", [80, 120, 160])
def test_nothing_is_wider_than_the_terminal_or_cut(width: int) -> None:
    lines = lines_of(width)
    assert max(len(line) for line in lines) <= width
    assert "…" not in "".join(lines)


def test_rows_are_ranked_and_roles_are_named() -> None:
    assert row_of("plain").startswith("6 plain 61.3 ±1.0% base 8 4.00 GiB exact 0% baseline")
    assert "hand-tuned" in row_of("precision bf16")
    assert row_of("chunked_cross_entropy chunks=8 + precision bf16").endswith("winner")


def test_a_candidate_that_may_not_win_says_why() -> None:
    text = words(" ".join(lines_of(80)))
    assert "cannot win: loss drift 9.3% is above the tolerance 5.0%" in text
    assert "9.3%!" in text


def test_an_early_figure_is_marked_and_has_no_interval() -> None:
    row = row_of("checkpoint every=2")
    assert "~80.0 early" in row
    assert "±" not in row
    assert "64 x 4" in row
    assert "stopped early" in row


def test_the_winner_the_baseline_and_the_hand_tuned_setting_are_shown_whatever_their_rank() -> None:
    answer = recommendation()
    slower = tuple(measured(100 - number, CHECKPOINT, micro_batch=number + 1) for number in range(30))
    many = msgspec.structs.replace(answer, ranking=(*answer.ranking[:4], *slower, *answer.ranking[4:]))
    text = shown(RankingTable(many, goal(), rows=2))
    for role in ("winner", "baseline", "hand-tuned"):
        assert role in text
    assert text.count("checkpoint every=2") == 1  # only the fastest, which has it among its methods
    assert "and 31 more that were slower" in text


def test_what_is_not_shown_and_was_faster_than_a_winner_by_a_tie_is_not_called_slower() -> None:
    answer = recommendation()
    between = tuple(measured(150 - number, CHECKPOINT, micro_batch=number + 1) for number in range(3))
    others = [one for one in answer.ranking if one != answer.winner]
    many = msgspec.structs.replace(answer, ranking=(*between, answer.winner, *others))
    (hidden,) = [one for one in shown(RankingTable(many, goal(), rows=1)).splitlines() if one.startswith("and ")]
    assert hidden.rstrip().endswith(" more")


def test_without_a_baseline_there_is_no_gain() -> None:
    answer = msgspec.structs.replace(recommendation(), baseline=None)
    assert "115%" not in shown(RankingTable(answer, goal()))


def test_predicted_figures_stand_under_their_own_heading() -> None:
    text = shown(not_measured_table(recommendation().not_measured), width=120)
    heading = next(number for number, line in enumerate(text.splitlines()) if "outcome and reason" in line)
    assert "predicted" in text.splitlines()[heading - 1]
    assert "9.10 GiB" in text
    assert "predicted" not in shown(RankingTable(recommendation(), goal()), width=160)


def test_without_a_prediction_there_is_no_column_for_it() -> None:
    assert "predicted" not in shown(not_measured_table([lost(Outcome.FAILED, BF16, reason="boom")]))


def test_what_was_not_measured_has_its_outcome_and_reason_with_brackets_kept() -> None:
    text = words(shown(not_measured_table(recommendation().not_measured), width=160))
    assert "out of memory: the allocator asked for 1.2 GiB more [limit 8.00 GiB]" in text
    assert "failed: RuntimeError: expected [Half] but found Float" in text


def test_batches_that_ended_alike_share_a_row() -> None:
    same = [lost(Outcome.OUT_OF_MEMORY, BF16, reason="too big", micro_batch=batch) for batch in (64, 48, 32, 16)]
    text = shown(not_measured_table(same))
    assert text.count("too big") == 1
    assert "64" in text
    assert "..." in text


def test_numbers_of_devices_are_told_apart() -> None:
    two, four = (on(count, measured(100 + count, BF16)) for count in (2, 4))
    answer = msgspec.structs.replace(recommendation(), ranking=(four, two), winner=four, baseline=two)
    text = words(shown(RankingTable(answer, goal())))
    assert "precision bf16 on 4 devices" in text
    assert "precision bf16 on 2 devices" in text
    assert "batch: micro-batch x accumulation steps of each device." in text
    assert "of each device" not in shown(RankingTable(recommendation(), goal()))
    failed = lost(Outcome.OUT_OF_MEMORY, BF16, reason="too big")
    assert words(shown(not_measured_table([on(2, failed), on(4, failed)]))).count("too big") == 2


def test_many_reasons_are_cut_with_a_count() -> None:
    many = [lost(Outcome.FAILED, BF16, reason=f"reason {number}") for number in range(9)]
    text = shown(not_measured_table(many, rows=4))
    assert "reason 3" in text
    assert "reason 4" not in text
    assert "and 5 more" in text


def test_settings_with_the_same_reason_share_a_row() -> None:
    text = shown(refused_settings_table({"one": "no GPU", "two": "no GPU", **REFUSED}))
    assert text.count("no GPU") == 1
    assert "one, two" in text
    assert "swap" in text


def test_colour_adds_nothing_that_is_not_also_said_in_words() -> None:
    plain = shown(RankingTable(recommendation(), goal()))
    coloured = Text.from_ansi(shown(RankingTable(recommendation(), goal()), color=True)).plain
    assert [line.rstrip() for line in coloured.splitlines()] == [line.rstrip() for line in plain.splitlines()]


def test_a_policy_is_folded_between_methods_only() -> None:
    folded = Folded(["precision bf16", "selective_checkpoint attention", "swap"])
    assert folded.lines(100) == ["precision bf16 + selective_checkpoint attention + swap"]
    assert folded.lines(38) == ["precision bf16", "+ selective_checkpoint attention", "+ swap"]
    assert folded.lines(5) == ["precision bf16", "+ selective_checkpoint attention", "+ swap"]


def test_a_full_policy_at_80_columns_stays_whole() -> None:
    worst = measured(1234.5, ADAM, BF16, CHECKPOINT, CHUNKED, IN_BACKWARD, micro_batch=1024, accumulation_steps=16)
    answer = msgspec.structs.replace(recommendation(), ranking=(worst, baseline(1)), winner=worst, baseline=baseline(1))
    text = shown(RankingTable(answer, goal()))
    for method in ("adam_8bit", "precision bf16", "chunked_cross_entropy chunks=8", "1,024 x 16", format_bytes(2**32)):
        assert method in text
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize("width", [80, 160])
def test_what_was_compared_comes_first_and_the_best_expected_of_it(width: int) -> None:
    candidates = [
        lost(Outcome.SCREENED, ADAM, reason="one sample does not fit"),
        compared(90, CHECKPOINT),
        lost(Outcome.FAILED, CHUNKED, reason="boom"),
        compared(130, BF16),
    ]
    text = words(shown(not_measured_table(candidates), width=width))
    assert text.startswith("Compared by short steps, or not measured")
    order = ["precision bf16", "checkpoint every=2", "adam_8bit", "chunked_cross_entropy"]
    positions = [text.index(name) for name in order]
    assert positions == sorted(positions)


def test_in_short_what_was_compared_names_the_best_of_it() -> None:
    """Trap: "1.01 times" a leader was said, and not of what."""
    candidates = (compared(90, CHECKPOINT), lost(Outcome.FAILED, CHUNKED, reason="boom"), compared(130, BF16))
    answer = msgspec.structs.replace(recommendation(), not_measured=candidates)
    part = not_measured_part(answer, verbose=False)
    assert part is not None
    title, *lines = shown(part).splitlines()
    assert title.rstrip() == "Not measured at length (-v lists all, with their reasons)"
    assert [line.rstrip() for line in lines] == [
        "  compared (2): 130 samples/s expected at most, of precision bf16",
        "  failed: boom",
    ]


def test_what_hides_below_the_rows_is_the_least_expected() -> None:
    candidates = [compared(100 + batch, BF16, micro_batch=batch) for batch in (1, 2, 3)]
    candidates = [msgspec.structs.replace(one, reason=f"batch {one.policy.micro_batch}") for one in candidates]
    text = words(shown(not_measured_table(candidates, rows=2), width=120))
    assert text.index("batch 3") < text.index("batch 2")
    assert "batch 1" not in text
    assert "and 1 more" in text


def test_a_comma_ends_a_line_and_begins_none() -> None:
    folded = Folded(["layers=4", "width=96", "own size"], separator=", ")
    assert folded.lines(80) == ["layers=4, width=96, own size"]
    assert folded.lines(19) == ["layers=4, width=96,", "own size"]
    assert folded.lines(18) == ["layers=4,", "width=96, own size"]
    assert folded.lines(10) == ["layers=4,", "width=96,", "own size"]


def test_of_one_policy_that_is_not_shown_the_table_says_was() -> None:
    tables = [shown(RankingTable(recommendation(), goal(), rows=rows)) for rows in range(1, 8)]
    hidden = {line for text in tables for line in text.splitlines() if line.startswith("and ")}
    assert "and 1 more that was slower" in {line.rstrip() for line in hidden}
