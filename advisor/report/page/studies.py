"""The finished studies in a folder, for whoever names the folder of them all."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path
from typing import NamedTuple

from advisor.decide.answer import Answer, load_answer
from advisor.decide.candidate import Recommendation
from advisor.errors import OptionError
from advisor.report.headline import gain_is_open
from advisor.report.page.finished import RULE, require_files
from advisor.report.wording import promised_times
from advisor.text.printable import shown
from advisor.text.units import format_count, format_rate
from advisor.trial.folder import StudyFolder

__all__ = ["refuse_folder_of_studies"]

_RUNS = "momadvise-runs"
"""Where studies are, unless --output says otherwise."""

_MOST_LINES = 20
_LONGEST_PATH = 4096


class _Found(NamedTuple):
    """A study with an answer that this version can read."""

    path: Path
    answer: Answer
    written: float


def refuse_folder_of_studies(path: Path) -> None:
    """Say which studies a folder holds, if it is none itself but a folder of them, or of the runs that hold them.

    Raises:
        OptionError: It is one; the message has a line with the command for each finished study, newest first.
    """
    place, studies = path, _studies_in(path)
    if not studies:
        place = path / _RUNS
        studies = _studies_in(place)
    if not studies:
        return
    found = sorted(
        filter(None, map(_finished, studies)), key=lambda one: (one.answer.date, one.written, one.path), reverse=True
    )
    others = len(studies) - len(found)
    if not found:
        held = "one that has" if others == 1 else f"{others:,} that have"
        raise OptionError(
            f"{RULE}, but {shown(place)} is a folder of studies, with {held} no answer that this version can read. Run "
            "the command that began one again: it continues."
        )
    raise OptionError(
        "\n".join(
            (
                f"{RULE}, but {shown(place)} is a folder of studies. Name one of them, or several for one page:",
                *_lines(found[:_MOST_LINES]),
                *_rest(len(found) - _MOST_LINES, others),
            )
        )
    )


def _studies_in(path: Path) -> list[StudyFolder]:
    with contextlib.suppress(OSError):  # whoever reads it as a study says why it cannot be read
        if not StudyFolder(path).marker.exists():
            return [folder for folder in map(StudyFolder, path.iterdir()) if folder.marker.is_file()]
    return []


def _finished(folder: StudyFolder) -> _Found | None:
    with contextlib.suppress(OSError, OptionError):
        require_files(folder)
        answer = load_answer(folder)
        if answer is not None:
            return _Found(folder.path, answer, folder.answer.stat().st_mtime)
    return None


def _lines(found: list[_Found]) -> list[str]:
    """Date, goal, model and speed in columns, and last the command, to be copied."""
    rows = [
        (
            one.answer.date,
            one.answer.goal.kind.value,
            shown(one.answer.workload),
            _speed(one.answer.recommendation),
        )
        for one in found
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}  "
        f"momadvise report {shlex.quote(shown(one.path, _LONGEST_PATH))}"
        for row, one in zip(rows, found, strict=True)
    ]


def _speed(found: Recommendation) -> str:
    """As the answer's first lines say it: what was promised over the baseline, else the winner's throughput."""
    confirmation = found.confirmation
    if confirmation is None or confirmation.promise is None or found.growth is not None:
        return f"{format_rate(found.winner.samples_per_second)} samples/s"
    doubt = ", not certain" if gain_is_open(found) else ""
    doubt = doubt if confirmation.as_promised else ", not reproducible"
    return f"{promised_times(confirmation.promise)} the baseline{doubt}"


def _rest(older: int, others: int) -> list[str]:
    """What is not listed."""
    lines = [f"  and {format_count(older, 'older one')}"] if older > 0 else []
    if others:
        lines.append(f"  and {format_count(others, 'study', 'studies')} without an answer that this version can read")
    return lines
