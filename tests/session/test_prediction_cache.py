"""The same question is traced once; what cannot be read or answers another question is traced again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from advisor.policy.policy import Policy
from advisor.predict.prediction import Affine, MemoryPrediction, Moment
from advisor.session import prediction_cache
from advisor.session.prediction_cache import PredictionCache
from advisor.trial.outcome import Outcome
from advisor.trial.result import PredictResult
from advisor.trial.spec import PredictTrial
from advisor.workload.identity import ModelIdentity
from tests.trial.specs import spec

QUESTION = spec(kind=PredictTrial)
PREDICTION = MemoryPrediction(
    moments=(Moment(phase="backward", live=Affine(100, 10), parts={}),), activations=Affine(0, 5), traced_at=(2, 4)
)
ANSWER = PredictResult(key=QUESTION.key, outcome=Outcome.OK, prediction=PREDICTION)


@pytest.fixture
def cache(tmp_path: Path) -> PredictionCache:
    return PredictionCache(tmp_path / "of" / "predictions")


def test_an_answer_is_found_by_its_question_and_by_no_other(cache: PredictionCache) -> None:
    assert cache.find(QUESTION, "a CPU") is None
    cache.keep(QUESTION, "a CPU", ANSWER)
    found = cache.find(QUESTION, "a CPU")
    assert found is not None
    assert found.result == ANSWER
    assert cache.find(QUESTION, "another CPU") is None
    assert cache.find(msgspec.structs.replace(QUESTION, policy=Policy(micro_batch=5)), "a CPU") is None


def test_other_versions_ask_another_question(cache: PredictionCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.keep(QUESTION, "a CPU", ANSWER)
    monkeypatch.setattr(prediction_cache, "versions", lambda: {"torch": "0"})
    assert cache.find(QUESTION, "a CPU") is None


def test_another_version_of_the_library_that_the_model_is_of_is_another_model(cache: PredictionCache) -> None:
    known = ModelIdentity(
        class_name="Net", parameters=1, trainable=1, buffers=0, structure="s", libraries={"torch": "0.9"}
    )
    cache.keep(QUESTION, "a CPU", msgspec.structs.replace(ANSWER, identity=known))
    assert cache.find(QUESTION, "a CPU") is None


def test_a_change_of_this_package_asks_another_question(
    cache: PredictionCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.keep(QUESTION, "a CPU", ANSWER)
    monkeypatch.setattr(prediction_cache, "_package_stamp", lambda: "changed")
    assert cache.find(QUESTION, "a CPU") is None


@pytest.mark.parametrize(
    "content", [b"", b"\x00garbage", b"{}", b'{"question": "another", "date": "", "result": {}}', b"[1, 2"]
)
def test_what_is_corrupt_or_foreign_is_ignored_and_replaced(cache: PredictionCache, content: bytes) -> None:
    cache.keep(QUESTION, "a CPU", ANSWER)
    cache.path(QUESTION, "a CPU").write_bytes(content)
    assert cache.find(QUESTION, "a CPU") is None
    cache.keep(QUESTION, "a CPU", ANSWER)
    assert cache.find(QUESTION, "a CPU") is not None


def test_an_answer_under_the_name_of_another_question_is_not_believed(cache: PredictionCache) -> None:
    cache.keep(QUESTION, "a CPU", ANSWER)
    foreign = cache.path(QUESTION, "another CPU")
    foreign.write_bytes(cache.path(QUESTION, "a CPU").read_bytes())
    assert cache.find(QUESTION, "another CPU") is None


def test_where_nothing_can_be_written_nothing_is_kept_and_nothing_fails(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = PredictionCache(tmp_path / "file" / "predictions")
    cache.keep(QUESTION, "a CPU", ANSWER)
    assert cache.find(QUESTION, "a CPU") is None


def test_the_oldest_make_room(cache: PredictionCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prediction_cache, "_MOST_FILES", 3)
    for number in range(5):
        cache.keep(QUESTION, f"CPU {number}", ANSWER)
    folder = cache.path(QUESTION, "a CPU").parent
    assert len(list(folder.iterdir())) == 3
    assert cache.find(QUESTION, "CPU 4") is not None


def test_the_folder_is_the_one_that_the_environment_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOMADVISE_CACHE", str(tmp_path))
    assert PredictionCache().path(QUESTION, "a CPU").parent == tmp_path / "predictions"
