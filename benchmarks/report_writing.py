"""How long a report page takes to write, and how large it is with hundreds of policies in five studies.

    python -m benchmarks.report_writing momadvise-runs/NAME     # a finished study; a few seconds
    python -m benchmarks.report_writing momadvise-runs/NAME --keep pages

Writes the page of the study as it is, of the same study grown to 200 policies, and of five of those side by side. What
is grown has other methods in the place of the study's, each with a profiling run and a measurement of the study: its
numbers mean nothing, and its page is as large as that of a search that went on. Prints a Markdown page and writes it to
``docs/results``.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from advisor.decide.candidate import Candidate
from advisor.hardware.detect import detect_hardware
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.setting import MethodSetting
from advisor.report.page.finished import FinishedStudy, StoredTrial, read_finished
from advisor.report.page.writing import page_of
from advisor.session.setup.versions import versions
from advisor.trial.result import SizeResult
from benchmarks.markdown import number, packages

__all__ = ["Row", "grown", "main", "measured_row", "page"]

_RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "report-writing.md"
_TIMES = 5
_MOST_BYTES = 3_000_000


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One page.

    Attributes:
        what: In words.
        policies: Of all its studies.
        size: Bytes.
        read_seconds: Reading the folders: the median of some times.
        write_seconds: Making the page of them, likewise.
    """

    what: str
    policies: int
    size: int
    read_seconds: float
    write_seconds: float


def grown(study: FinishedStudy, policies: int) -> FinishedStudy:
    """The study with so many measured policies, each with a profiling run."""
    found = study.answer.recommendation
    profiled = [one for one in study.trials if isinstance(one.result, SizeResult)]
    candidates, trials = [], []
    for place, methods in enumerate(itertools.islice(_combinations(), policies - len(found.ranking))):
        like = found.ranking[place % len(found.ranking)]
        candidates.append(_with_methods(like, methods))
        if profiled:
            spec, result = profiled[place % len(profiled)]
            policy = msgspec.structs.replace(spec.policy, methods=methods, settled={})
            trials.append(StoredTrial(msgspec.structs.replace(spec, policy=policy), result))
    recommendation = msgspec.structs.replace(found, ranking=(*found.ranking, *candidates))
    return msgspec.structs.replace(
        study,
        answer=msgspec.structs.replace(study.answer, recommendation=recommendation),
        tried=(*study.tried, *candidates),
        trials=(*study.trials, *trials),
    )


def _combinations() -> Iterator[tuple[MethodSetting, ...]]:
    names = sorted(method.name for method in CATALOGUE)
    for several in itertools.combinations(names, 3):
        yield tuple(MethodSetting(name=name) for name in several)


def _with_methods(like: Candidate, methods: tuple[MethodSetting, ...]) -> Candidate:
    policy = msgspec.structs.replace(like.policy, methods=methods, settled={})
    return msgspec.structs.replace(like, policy=policy)


def measured_row(what: str, studies: Sequence[FinishedStudy], keep: Path | None = None) -> Row:
    """Write one page several times.

    Args:
        what: What it is, in words.
        studies: Its studies.
        keep: A file to leave it in.
    """
    reading, writing = [], []
    text = ""
    for _ in range(_TIMES):
        begin = time.perf_counter()
        for one in studies:
            read_finished(one.folder.path)
        reading.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        text = page_of(studies)
        writing.append(time.perf_counter() - begin)
    if keep is not None:
        keep.write_text(text, encoding="utf-8")
    found = [one.answer.recommendation for one in studies]
    return Row(
        what=what,
        policies=sum(len(one.ranking) + len(one.not_measured) for one in found),
        size=len(text.encode()),
        read_seconds=statistics.median(reading),
        write_seconds=statistics.median(writing),
    )


def page(rows: Sequence[Row], device: str) -> str:
    """The page of results."""
    lines = [
        "# Writing the report page",
        "",
        "`python -m benchmarks.report_writing DIR` writes the page of a finished study as it is, of that study grown",
        "to 200 policies (each with other methods, a profiling run and a measurement of it), and of five of those,",
        "side by side. *Read* is the time to read the study folders as they are, *write* to make the page: medians of",
        f"{_TIMES} times. A page may have {_MOST_BYTES / 1e6:.0f} MB.",
        "",
        f"Measured on {device}, {datetime.date.today().isoformat()}, with {packages([versions()])}.",
        "",
        "| page | policies | MB | read, ms | write, ms |",
        "|---|---|---|---|---|",
    ]
    for one in rows:
        cells = (one.size / 1e6, 1000 * one.read_seconds, 1000 * one.write_seconds)
        lines.append(f"| {one.what} | {one.policies} | {' | '.join(number(cell) for cell in cells)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; returns the exit status, 1 if a page is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, metavar="DIR")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leave the pages there")
    options = parser.parse_args(arguments)
    study = read_finished(options.study)
    large = grown(study, 200)
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)

    def kept(name: str) -> Path | None:
        return None if options.keep is None else Path(options.keep) / f"{name}.html"

    rows = [
        measured_row("a study", [study], kept("study")),
        measured_row("the same with 200 policies", [large], kept("large")),
        measured_row("five of these", [large] * 5, kept("five")),
    ]
    text = page(rows, detect_hardware("cpu").name)
    _RESULTS.write_text(text, encoding="utf-8")
    print(text)
    return 1 if any(one.size > _MOST_BYTES for one in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
