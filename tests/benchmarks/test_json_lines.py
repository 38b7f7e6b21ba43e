"""Files of JSON lines: appended records are all there or none, and a truncated line costs only itself."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from benchmarks import method_memory, method_table
from benchmarks.json_lines import append, file_of, latest, read
from benchmarks.minutes import __main__ as minutes
from benchmarks.papers import command as papers
from benchmarks.search import record


class Record(msgspec.Struct, frozen=True):
    """A value of a place."""

    place: str
    value: int


DECODER = msgspec.json.Decoder(Record)


def test_a_truncated_line_is_skipped_and_does_not_corrupt_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "records.jsonl"
    assert read(path, DECODER) == []
    append(path, Record("a", 1))
    with path.open("ab") as file:
        file.write(b'{"place":"b","val')
    append(path, Record("c", 3), Record("d", 4))
    assert [record.place for record in read(path, DECODER)] == ["a", "c", "d"]


def test_a_compressed_file_is_read_like_a_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    append(path, Record("a", 1))
    packed = path.with_name("records.jsonl.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed, DECODER) == read(path, DECODER)


def test_the_latest_record_of_a_place_replaces_earlier_ones() -> None:
    records = [Record("a", 1), Record("b", 2), Record("a", 3)]
    assert latest(records) == [Record("a", 3), Record("b", 2)]
    assert latest(records, latest_last=True) == [Record("b", 2), Record("a", 3)]


def test_on_a_full_disk_none_of_the_records_is_appended(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "records.jsonl"
    append(path, Record("a", 1))
    before = path.read_bytes()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 40, len(before) + 40))
        try:
            append(path, *(Record("b", value) for value in range(100)))
        except OSError:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert path.read_bytes() == before


ROOT = Path(__file__).resolve().parents[2]
TRIED_OUT = ROOT / "build" / "results"
"""Git ignores it."""


class Read(Exception):  # noqa: N818 -- it ends a command, and is no error
    """A command looked for the rows that it has."""


@pytest.mark.parametrize("size", ["smoke", "full"])
@pytest.mark.parametrize("command", [method_table, method_memory, record])
def test_a_smoke_run_does_not_touch_what_is_committed(
    command: ModuleType, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(path: Path) -> None:
        raise Read(path)

    monkeypatch.setattr(command, "read", asked)
    with pytest.raises(Read) as found:
        command.main(["--size", size, "--device", "cpu"])
    assert (found.value.args[0].parent == TRIED_OUT) == (size == "smoke")


@pytest.mark.parametrize(
    ("output", "full"),
    [
        (lambda size: papers.options_of("a", "A.", ["--size", size, "--device", "cpu"]).output, "paper"),
        (lambda size: minutes._options(["--size", size, "--device", "cpu"]).output, "full"),
    ],
    ids=["papers", "minutes"],
)
def test_nor_does_one_of_several_models(output: Callable[[str], Path], full: str) -> None:
    assert output("smoke") == TRIED_OUT / output(full).name
    assert output(full).parent == ROOT / "docs" / "results"


def test_a_smoke_run_has_a_folder_of_its_own_also_beside_tables(tmp_path: Path) -> None:
    assert file_of("a", "smoke", tmp_path) == TRIED_OUT / "a.jsonl"
    assert file_of("a", "full", tmp_path) == tmp_path / "a.jsonl"
