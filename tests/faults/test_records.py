"""Readers of a study folder and of caches: a damaged record costs itself, and nothing else."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advisor.decide.answer import Answer, load_answer
from advisor.decide.candidate import Candidate
from advisor.errors import OutputFolderError
from advisor.goal import GoalKind
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.session.ledger import Ledger, read_candidates
from advisor.session.prediction_cache import KeptPrediction, PredictionCache
from advisor.session.setup.ranks import failing_together
from advisor.session.setup.same_model import model_of
from advisor.session.study import StudyMarker, check_folder, open_study
from advisor.text.records import DamagedError, decode_record, encode_record, read_record
from advisor.trial.folder import StudyFolder, TrialFolder
from advisor.trial.outcome import Outcome
from advisor.trial.result import TimeResult, TrialResult
from advisor.trial.spec import TrialSpec
from advisor.workload.code.fingerprint import digest_of
from advisor.workload.identity import Identity
from advisor.workload.reads import Reads
from tests.decide.examples import baseline, lost, measured, measurement
from tests.session.test_prediction_cache import ANSWER, QUESTION
from tests.session.test_study import MARKER
from tests.trial.specs import spec

from .hostile import damaged, explained, texts, valid_or_explained

CHECKPOINT = use("checkpoint", every=2)

LEDGER = [
    baseline(10),
    measured(20, CHECKPOINT),
    lost(Outcome.FAILED, CHECKPOINT, reason="RuntimeError: a [b] \x1b[31m é"),
]
RESULT = TimeResult(key="k", outcome=Outcome.OK, measurement=measurement(10.0), notes=("one", "two"))
IDENTITY = Identity.of(Reads(environment=("PATH", "NOBODY_SET_THIS"), files=(__file__,)), None)
KEPT = KeptPrediction(question="q", date="2026-02-28", result=ANSWER, identity=IDENTITY)

RECORDS = [*LEDGER, RESULT, IDENTITY, KEPT, MARKER, QUESTION]
KINDS = (Candidate, TrialResult, TrialSpec, Identity, KeptPrediction, StudyMarker, Answer, Policy)


@pytest.mark.parametrize("record", RECORDS)
def test_a_whole_record_is_read_as_it_was_written(record: msgspec.Struct) -> None:
    assert decode_record(encode_record(record), type(record)) == record


@given(st.sampled_from(RECORDS).flatmap(lambda record: damaged(encode_record(record))), st.sampled_from(KINDS))
def test_a_damaged_record_is_one_of_its_kind_or_damaged(data: bytes, kind: type[msgspec.Struct]) -> None:
    with contextlib.suppress(DamagedError):
        assert isinstance(decode_record(data, kind), kind)


@pytest.mark.parametrize(
    "data",
    [
        b'{"name": "\xff"}',
        b'{"name": "\xed\xa0\x80"}',
        b'{"name": "\\ud800"}',
        b'{"name": ' + b"[" * 100_000,
        b'{"name": ' + b"9" * 400 + b"}",
        b'{"name": NaN}',
        b'{"name": 1e400}',
        b'{"name"',
        b"",
    ],
)
def test_what_is_no_json_of_ours_is_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        decode_record(data, dict[str, object])


def test_a_value_that_a_type_refuses_is_damage_and_no_failure_of_ours() -> None:
    twice = b'{"methods": [{"name": "swap"}, {"name": "swap"}], "micro_batch": 1}'
    with pytest.raises(DamagedError, match="sorted and distinct"):
        decode_record(twice, Policy)
    with pytest.raises(DamagedError, match="micro_batch"):
        decode_record(b'{"micro_batch": 0}', Policy)


def test_digits_inside_a_text_are_no_number() -> None:
    digits = "9" * 40
    assert decode_record(encode_record({"a\\": f'"{digits}', digits: 1.5}), dict[str, object])[digits] == 1.5


@given(st.lists(texts, max_size=3))
def test_a_text_that_no_encoding_knows_is_written_with_escapes(notes: list[str]) -> None:
    result = msgspec.structs.replace(RESULT, notes=tuple(notes), reason="".join(notes))
    read = decode_record(encode_record(result), TrialResult)
    assert read.measurement == RESULT.measurement
    assert len(read.notes) == len(notes)
    if "".join(notes).isprintable():
        assert read == result


@given(texts, texts)
def test_every_text_has_a_digest_of_its_own(one: str, other: str) -> None:
    assert (digest_of(one) == digest_of(other)) == (one == other)


def test_a_variable_and_a_folder_with_names_that_are_not_utf8_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOT_UTF8", os.fsdecode(b"\xff"))
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")).touch()
    identity = Identity.of(Reads(environment=("NOT_UTF8",), folders=(str(tmp_path),)), None)
    assert decode_record(encode_record(identity), Identity).changes() == []
    monkeypatch.setenv("NOT_UTF8", os.fsdecode(b"\xfe"))
    assert [one.words for one in identity.changes()] == ["the environment variable NOT_UTF8 changed"]


@given(st.integers(0, 2), st.data())
def test_a_damaged_line_of_the_ledger_costs_that_line(tmp_path: Path, position: int, data: st.DataObject) -> None:
    lines = [encode_record(candidate) for candidate in LEDGER]
    lines[position] = data.draw(damaged(lines[position])).replace(b"\n", b"")
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b"\n".join(lines) + b"\n")
    others = [one for one in LEDGER if one is not LEDGER[position]]
    assert [one for one in read_candidates(ledger) if one in others] == others


def test_what_is_appended_to_a_torn_ledger_is_read(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b"\xff\xfe[[[")
    Ledger(StudyFolder(tmp_path), GoalKind.FASTER).add(LEDGER[0])
    assert read_candidates(ledger) == LEDGER[:1]


@given(damaged(encode_record(RESULT)))
def test_a_damaged_result_is_a_result_or_none(tmp_path: Path, data: bytes) -> None:
    folder = TrialFolder(tmp_path)
    folder.result.write_bytes(data)
    folder.spec.write_bytes(data)
    assert folder.read_spec() is None
    result = folder.read_result(spec())
    assert result is None or isinstance(result, TimeResult)


@given(damaged(encode_record(IDENTITY)))
def test_a_damaged_identity_or_answer_is_none(tmp_path: Path, data: bytes) -> None:
    folder = StudyFolder(tmp_path)
    for file in (folder.answer, folder.identity, folder.policy, folder.wrapper):
        file.write_bytes(data)
    assert load_answer(folder) is None
    assert isinstance(model_of(folder), str)


@given(damaged(encode_record(MARKER)))
def test_a_damaged_marker_is_this_studys_or_explained(tmp_path: Path, data: bytes) -> None:
    folder, _ = open_study(tmp_path / "study", MARKER)
    folder.marker.write_bytes(data)
    with valid_or_explained(OutputFolderError):
        found = check_folder(folder.path, MARKER)
        assert found is not None
        assert found.workload["fingerprint"] == MARKER.workload["fingerprint"]
        assert [found.hardware[name] for name in ("kind", "name")] == [
            MARKER.hardware[name] for name in ("kind", "name")
        ]
        assert found.asked == MARKER.asked
    folder.marker.write_bytes(encode_record(MARKER))


@pytest.mark.parametrize("key", [b'"kind"', b'"name":"a GPU"', b'"torch"'])
def test_a_marker_that_does_not_say_what_measured_it_is_explained(tmp_path: Path, key: bytes) -> None:
    """What older studies did not state yet is not compared, but these they did."""
    folder, _ = open_study(tmp_path / "study", MARKER)
    content = encode_record(MARKER)
    assert key in content
    folder.marker.write_bytes(content.replace(key, key.replace(b'"', b'"0', 1)))
    assert "study.json" in explained(lambda: check_folder(folder.path, MARKER), OutputFolderError)


def test_a_marker_that_is_not_utf8_is_explained(tmp_path: Path) -> None:
    folder, _ = open_study(tmp_path / "study", MARKER)
    folder.marker.write_bytes(b'{"schema": "\xff"}')
    assert "study.json" in explained(lambda: check_folder(folder.path, MARKER), OutputFolderError)


@given(damaged(encode_record(KEPT)))
def test_a_damaged_prediction_is_traced_again(tmp_path: Path, data: bytes) -> None:
    cache = PredictionCache(tmp_path)
    cache.path(QUESTION, "a CPU").write_bytes(data)
    assert cache.find(QUESTION, "a CPU") is None
    cache.keep(QUESTION, "a CPU", ANSWER)
    found = cache.find(QUESTION, "a CPU")
    assert found is not None
    assert found.result == ANSWER


@pytest.mark.parametrize("name", ["~nobody-at-all", "a" * 300, "\udcff", "\x1b[31m"])
def test_a_cache_folder_of_any_name_is_used_or_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MOMADVISE_CACHE", name)
    cache = PredictionCache()
    cache.keep(QUESTION, "a CPU", ANSWER)
    found = cache.find(QUESTION, "a CPU")
    assert (found is None) == (len(name) > 255)


@given(st.binary(max_size=30) | st.sampled_from([b"[" * 100_000, b'{"launch": "\xff"}']))
def test_a_damaged_word_of_another_rank_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "failure.json").write_bytes(data)
    with failing_together(StudyFolder(tmp_path), "launch"):
        pass


def test_a_folder_in_a_files_place_is_no_record(tmp_path: Path) -> None:
    assert read_record(tmp_path, Identity) is None
