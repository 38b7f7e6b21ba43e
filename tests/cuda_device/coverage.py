"""Which CUDA tests ran with values, without, or not at all, and why: from what pytest wrote about its runs.

``python -m tests.cuda_device.coverage --values WITH.xml --plain WITHOUT.xml``, the files of ``pytest --junitxml=FILE``.
"""

from __future__ import annotations

import argparse
import xml.etree.ElementTree as ET  # pytest's own files
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

__all__ = ["main", "table"]

_COMPUTES_ITSELF = "tests.cuda_device.test_values"
"""Modules whose tests run commands on machines that compute values, whatever they run on themselves."""

WITH, WITHOUT, FAILED, NOT = "with values", "without values", "failed", "not at all"


def _outcomes(path: Path, values: bool) -> Iterable[tuple[str, str, str]]:
    """Of each test its name without parameters, what became of it, and the reason."""
    for case in ET.parse(path).iter("testcase"):
        module = case.get("classname", "")
        name = f"{module}::{case.get('name', '').partition('[')[0]}"
        skipped = case.find("skipped")
        broken = case.find("failure") if case.find("failure") is not None else case.find("error")
        if broken is not None:
            yield name, FAILED, (broken.get("message") or "").splitlines()[0][:160]
        elif skipped is not None:
            yield name, NOT, skipped.get("message") or ""
        else:
            yield name, WITH if values or module.startswith(_COMPUTES_ITSELF) else WITHOUT, ""


def table(with_values: Sequence[Path], without: Sequence[Path]) -> str:
    """A table in Markdown: one line for each test and outcome, with the number of its cases."""
    cases: dict[tuple[str, str, str], int] = defaultdict(int)
    for paths, values in ((with_values, True), (without, False)):
        for path in paths:
            for name, outcome, reason in _outcomes(path, values):
                cases[name, outcome, reason] += 1
    lines = ["| test | cases | ran | why not |", "|---|---|---|---|"]
    for (name, outcome, reason), count in sorted(cases.items()):
        lines.append(f"| {name} | {count} | {outcome} | {reason} |")
    return "\n".join(lines)


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(prog="python -m tests.cuda_device.coverage", description=__doc__)
    parser.add_argument("--values", type=Path, action="append", default=[], help="a run on a device with values")
    parser.add_argument("--plain", type=Path, action="append", default=[], help="a run without")
    given = parser.parse_args()
    print(table(given.values, given.plain))


if __name__ == "__main__":
    main()
