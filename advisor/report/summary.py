"""An answer or a check as Markdown, for the summary of a job or the text of a change request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from advisor.decide.answer import Answer
from advisor.decide.candidate import Candidate, Role
from advisor.decide.policy_status import PolicyCheck
from advisor.files import add_line
from advisor.report.answer import confirmation_words
from advisor.report.check_view import difference_words, verdict_words
from advisor.report.headline import gain_is_open
from advisor.report.wording import batch_words, candidate_words, confirmed_beyond, rate_words
from advisor.text.printable import printable
from advisor.text.units import format_bytes

__all__ = ["add_summary", "answer_summary", "check_summary"]

_MOST_ROWS = 10
_SPECIAL = str.maketrans({one: f"\\{one}" for one in "\\`*_[]<>|#"})


def answer_summary(answer: Answer) -> str:
    """What to train with, why, and the best that were measured."""
    found = answer.recommendation
    lines = [f"### momadvise: {_text(answer.workload)} on {_text(answer.hardware.title)}", ""]
    lines += [_text(" ".join(found.why)), ""]
    if found.confirmation is not None:
        floor = None if found.growth is None else found.growth.floor_samples_per_second
        beyond, open_gain = confirmed_beyond(found, answer.goal), gain_is_open(found)
        words = confirmation_words(found.confirmation, floor=floor, beyond=beyond, open_gain=open_gain)
        lines += [_text(words), ""]
    rows = [(str(rank), *_cells(one, answer)) for rank, one in enumerate(found.ranking, 1)]
    special = (found.winner, found.baseline)
    kept = [row for row, one in zip(rows, found.ranking, strict=True) if int(row[0]) <= _MOST_ROWS or one in special]
    lines += _table(("#", "policy", "batch", "samples/s", "peak", ""), kept)
    reused = " (measured before and reused)" if answer.cached else ""
    lines += ["", f"Measured on {answer.date}, {answer.trials} policies{reused}."]
    return "\n".join(lines)


def check_summary(check: PolicyCheck) -> str:
    """The verdict and the differences."""
    lines = [f"### momadvise check: {_text(check.workload)} on {_text(check.device)}", "", _text(verdict_words(check))]
    lines += [""] * bool(check.differences)
    lines += [f"- {_text(difference_words(one))}" for one in check.differences]
    lines += [f"- note: {_text(note)}" for note in check.notes]
    return "\n".join(lines)


def add_summary(text: str, path: Path) -> None:
    """Append it to a file, which is made if it is not there.

    Raises:
        OSError: It cannot be written.
    """
    add_line(path, text.encode() + b"\n")


def _cells(one: Candidate, answer: Answer) -> tuple[str, ...]:
    found = answer.recommendation
    roles = ["winner"] * (one == found.winner) + [one.role.value] * (one.role is not Role.SEARCHED)
    peak = "" if one.measurement is None else format_bytes(one.measurement.memory.peak_bytes)
    return (
        _text(" + ".join(candidate_words(one))),
        _text(batch_words(one.policy)),
        _text(rate_words(one)),
        _text(peak),
        _text(", ".join(roles)),
    )


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [headings, ["---"] * len(headings), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def _text(text: str) -> str:
    """Text that Markdown shows as it is."""
    return " ".join(printable(text).split()).translate(_SPECIAL)
