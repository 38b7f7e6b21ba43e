"""The page of faults counts what passed, names what failed, and names nothing of the machine."""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.json_lines import append
from benchmarks.reliability.__main__ import _portable
from benchmarks.reliability.lines import Line, read
from benchmarks.reliability.page import page

HELD = Line(
    table="hit",
    name="KILL to the command, faster, at answer.json, written",
    group="command",
    fault="KILL",
    seed=0,
    problems=(),
    statuses=(-9, 0),
    seconds=12.0,
    device="a CPU",
    cores=2,
    versions={"torch": "2.11"},
    date="2026-11-24",
)
LEFT = msgspec.structs.replace(
    HELD, name="TERM to the command, bigger, at size, told", fault="TERM", problems=("left running: a worker",)
)


def test_failures_are_counted_and_named_with_their_seed() -> None:
    text = page([HELD, LEFT])
    assert "**1 of 2 scenarios passed.** a CPU, 2 cores; 2026-11-24; seeds 0; torch 2.11." in text
    assert "| command | 1 of 1 | **0 of 1** |" in text
    named = text.partition("### Failed")[2].partition("### Passed")[0]
    assert "TERM to the command, bigger, at size, told (seed 0)\n  - left running: a worker" in named
    assert HELD.name not in named


def test_a_later_line_replaces_an_earlier_one_and_a_truncated_line_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "lines.jsonl"
    append(path, LEFT)
    with path.open("ab") as file:
        file.write(msgspec.json.encode(HELD)[:50])
    better = msgspec.structs.replace(LEFT, problems=())
    append(path, better)
    assert read(path) == [better]


def test_no_path_and_no_process_id_of_the_machine_is_written_down(tmp_path: Path) -> None:
    problem = f"{tmp_path}/out/policy.yaml is not, nor\n  {Path.home()}/x; .answer.json.4711"
    assert _portable(problem, tmp_path) == "FOLDER/out/policy.yaml is not, nor HOME/x; .answer.json.PROCESS"
