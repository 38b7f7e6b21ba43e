"""Readers of a storage that workers share: its name, the file, and what others wrote into it."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advisor.errors import OptionError
from advisor.search.study.sampler import Proposer
from advisor.search.study.storage import check_opens, check_storage
from advisor.search.study.study_sync import is_dead, new_worker
from tests.search.test_shared_storage import SPACE, asked, tell, worker

from .conftest import EXAMPLES
from .hostile import damaged, explained, texts, valid_or_explained, values

URLS = (
    "postgresql://u:p@h:abc/d",
    "postgresql://u:p@h:99999999999999999999999/d",
    "postgresql://u:p@[::1/d",
    "postgresql+nobody://u@h/d",
    "mysql://h:" + "9" * 5000 + "/d",
    "sqlite://",
    "sqlite:///",
    "sqlite:///:memory:",
    "://",
    "oracle://h/d",
    "a" * 3000,
    ".journal",
)


@pytest.mark.parametrize("url", URLS)
def test_a_name_that_is_no_storage_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.chdir(tmp_path)

    def use_it() -> None:
        check_storage(url)
        check_opens(url)

    assert url[:8] in explained(use_it, OptionError)


@pytest.mark.parametrize("url", ["postgresql://u:secret@h:abc/d", "postgresql//u:secret@h/d", "oracle://u:secret@h/d"])
def test_no_message_repeats_a_password(url: str) -> None:
    assert "secret" not in explained(lambda: check_storage(url), OptionError)


@given(texts)
def test_any_text_is_a_storage_or_explained(text: str) -> None:
    for name in (text, f"{text}.journal", f"sqlite:///{text}", f"postgresql://{text}"):
        with valid_or_explained(OptionError):
            check_storage(name)


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("journal") / "study.journal"
    one = worker(str(path))
    for _ in range(2):
        tell(one, asked(one))
    one.close()
    return path.read_bytes()


LINES = (
    b"5",
    b"[]",
    b"null",
    b"{}",
    b'{"op_code": 99}',
    b'{"op_code": 0}',
    b'{"op_code": "\xff"}',
    b"[" * 100_000,
    b'{"op_code": 4, "study_id": 0, "worker_id": "x", "datetime_start": "2026-02-30T00:00:00"}',
)


@pytest.mark.parametrize("line", LINES)
def test_a_journal_with_a_line_of_something_else_is_explained(tmp_path: Path, journal: bytes, line: bytes) -> None:
    path = tmp_path / "study.journal"
    begin, _, rest = journal.partition(b"\n")
    path.write_bytes(begin + b"\n" + line + b"\n" + rest)
    assert "study.journal" in explained(lambda: check_opens(str(path)), OptionError)


@pytest.mark.parametrize("operation", range(11))
@pytest.mark.parametrize("wrong", [{}, {"trial_id": 10**400}, {"study_id": -1}, {"values": "x"}, {"state": 17}])
def test_a_line_that_optuna_would_not_write_opens_or_is_explained(
    tmp_path: Path, journal: bytes, operation: int, wrong: dict[str, object]
) -> None:
    known = {"op_code": operation, "worker_id": "x", "study_id": 0, "trial_id": 0, "user_attr": {}, "param_name": "a"}
    path = tmp_path / "study.journal"
    path.write_bytes(journal + json.dumps({**known, **wrong}).encode() + b"\n")
    with valid_or_explained(OptionError):
        check_opens(str(path))


@settings(max_examples=max(10, EXAMPLES // 3))
@given(data=st.data())
def test_a_damaged_journal_opens_or_is_explained(tmp_path: Path, journal: bytes, data: st.DataObject) -> None:
    path = tmp_path / "study.journal"
    path.write_bytes(data.draw(damaged(journal)))
    with valid_or_explained(OptionError):
        check_opens(str(path))


def test_a_journal_that_is_damaged_while_it_is_in_use_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "study.journal"
    one = worker(str(path))
    with path.open("ab") as file:
        file.write(b"torn\n{}\n")
    assert "study.journal" in explained(one.ask, OptionError)


@settings(max_examples=max(5, EXAMPLES // 10))
@given(content=st.binary(max_size=300))
def test_a_file_that_is_no_database_is_explained(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "study.db").write_bytes(b"SQLite format 4\0" + content + b"x" * 100)
    assert "study.db" in explained(lambda: check_opens(f"sqlite:///{tmp_path}/study.db"), OptionError)


def test_a_folder_that_is_not_there_and_an_option_that_is_none_are_explained(tmp_path: Path) -> None:
    explained(lambda: check_opens(f"sqlite:///{tmp_path}/no/folder/study.db"), OptionError)
    url = f"sqlite:///{tmp_path}/study.db?check_same_thread=abc"
    assert "'abc'" in explained(lambda: check_opens(url), OptionError)


@given(values)
def test_a_worker_of_any_name_is_dead_or_not(name: object) -> None:
    for started in (None, datetime.datetime(2000, 1, 1)):
        assert is_dead(name, started) in (True, False)  # type: ignore[arg-type]


def test_a_worker_of_this_process_lives() -> None:
    assert not is_dead(new_worker(), datetime.datetime.now())


@settings(max_examples=max(10, EXAMPLES // 6))
@given(value=st.none() | st.booleans() | st.integers(-10, 10) | st.text(max_size=5) | st.just(math.inf) | st.just([1]))
def test_what_another_program_wrote_beside_a_trial_is_left_alone(value: object) -> None:
    one = Proposer(SPACE, storage=None, study_name="alone", maximize=(True,), seed=0)
    proposal = asked(one)
    tell(one, proposal)
    finished = one._study.get_trials(deepcopy=False)[proposal.number]
    for attribute in ("record", "noise", "micro_batch", "largest_batch", "worker"):
        finished.user_attrs[attribute] = value
    one.standings()
    assert asked(one).number != proposal.number
