"""A repository on the hub: its config is fetched or read from the cache, and every way to fail says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors

from advisor.errors import WorkloadError
from advisor.workload import hub
from advisor.workload._loading import load_workload
from advisor.workload.source import resolve_source
from advisor.workload.workload import WorkloadKind

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {"model_type": "gpt2", "n_layer": 1, "n_embd": 32, "n_head": 2, "n_positions": 32}


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Hugging Face cache without a network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path


def cached(cache: Path, repository: str, config: dict[str, object]) -> Path:
    folder = cache / f"models--{repository.replace('/', '--')}"
    path = folder / "snapshots" / COMMIT / "config.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(config))
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return path


def test_a_cached_repository_works_without_a_network(offline: Path) -> None:
    path = cached(offline, "some-org/tiny-gpt", CONFIG)
    source = resolve_source("hf:some-org/tiny-gpt")
    assert (source.kind, source.location, source.name) == (WorkloadKind.HUGGING_FACE, str(path), "tiny-gpt")
    assert type(load_workload(source).build_model()).__name__ == "GPT2LMHeadModel"


def test_a_repository_is_typed_again_by_its_name_and_one_that_moved_on_by_its_commit(offline: Path) -> None:
    path = cached(offline, "some-org/tiny-gpt", CONFIG)
    source = resolve_source("hf:some-org/tiny-gpt")
    assert (source.typed, source.typed_here) == ("hf:some-org/tiny-gpt",) * 2
    (path.parents[2] / "refs" / "main").write_text("f" * 40)
    assert source.typed == f"hf:some-org/tiny-gpt@{COMMIT}"
    assert resolve_source(source.typed).location == str(path)


def test_only_the_content_of_its_config_counts(offline: Path) -> None:
    first = cached(offline, "org/one", CONFIG)
    cached(offline, "org/two", CONFIG)
    same = resolve_source("hf:org/one").fingerprint
    assert resolve_source("hf:org/two").fingerprint == same == resolve_source(first).fingerprint
    first.write_text(json.dumps({**CONFIG, "n_layer": 2}))
    assert resolve_source("hf:org/one").fingerprint != same


def test_without_network_and_cache_the_error_says_three_ways_on(offline: Path) -> None:
    with pytest.raises(
        WorkloadError, match=r"'hf:org/name' must be .*HF_HUB_OFFLINE or .*config.json.*hf download org"
    ):
        resolve_source("hf:org/name")


def _of_hub(kind: type[errors.HfHubHTTPError], status: int = 404) -> Exception:
    response: Any = SimpleNamespace(headers={}, request=None, status_code=status)
    return kind("no", response=response)


class ConnectError(Exception):
    """Of an HTTP library."""


class Hub:
    """A hub that fails in one way, and the clock that runs meanwhile."""

    def __init__(self, failure: Exception | None, seconds: float) -> None:
        self.failure, self.seconds = failure, seconds
        self.now, self.asked = 0.0, 0

    def get_hf_file_metadata(self, url: str, *, timeout: float) -> None:
        assert url.endswith("org/name/resolve/main/config.json")
        self.asked += 1
        self.now += min(self.seconds, timeout)
        if self.failure is not None:
            raise self.failure

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize(
    ("failure", "seconds", "asked", "why"),
    [
        (ConnectError("Name not known\nand so on"), 0.0, 2, "it does not answer: ConnectError: Name not known"),
        (ConnectError("timed out"), 60.0, 1, "it does not answer: ConnectError: timed out"),
        (_of_hub(errors.HfHubHTTPError, 503), 0.1, 2, "it does not answer: HfHubHTTPError: no"),
        (_of_hub(errors.RepositoryNotFoundError), 0.1, 1, None),
        (None, 0.1, 1, None),
    ],
    ids=["no network", "firewall", "server down", "refusal", "answer"],
)
def test_a_hub_that_does_not_answer_is_asked_once_more_and_then_the_cache(
    failure: Exception | None,
    seconds: float,
    asked: int,
    why: str | None,
    offline: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = Hub(failure, seconds)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", made.get_hf_file_metadata)
    monkeypatch.setattr(hub, "time", made)
    downloads: list[bool] = []

    def download(*_: object, local_files_only: bool, **__: object) -> str:
        downloads.append(local_files_only)
        raise errors.LocalEntryNotFoundError("none")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", download)
    with pytest.raises(WorkloadError, match=re.escape(why or "it stopped answering")):
        resolve_source("hf:org/name")
    assert (made.asked, downloads) == (asked, [why is not None])
    assert made.now < 6


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (lambda: _of_hub(errors.RepositoryNotFoundError), "there is no 'hf:org/name', or it is private. Check"),
        (lambda: _of_hub(errors.GatedRepoError), "gated. Accept its terms .* log in with `hf auth login`"),
        (lambda: _of_hub(errors.RemoteEntryNotFoundError), "has none .*Write a Python file"),
        (lambda: _of_hub(errors.HfHubHTTPError), "readable from the hub, but that failed: HfHubHTTPError: no"),
        (lambda: errors.HFValidationError("two dots"), "hf:google-bert/bert-base-uncased, but got 'hf:org/name': two"),
    ],
    ids=["absent", "gated", "no config", "server", "name"],
)
def test_what_the_hub_refuses_is_the_users_error(
    failure: Callable[[], Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise failure()

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(WorkloadError, match=message):
        resolve_source("hf:org/name")


def test_a_revision_that_is_none_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, revision: str | None, **__: object) -> None:
        assert revision == "v9"
        raise _of_hub(errors.RevisionNotFoundError)

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(WorkloadError, match=r"the repository has no 'v9'\. Leave it out"):
        resolve_source("hf:org/name@v9")


def test_a_repositorys_own_code_is_not_run(offline: Path) -> None:
    config = {"model_type": "own", "auto_map": {"AutoConfig": "code.Own", "AutoModelForCausalLM": "code.OwnModel"}}
    path = cached(offline, "org/own", config)
    (path.parent / "code.py").write_text("raise SystemExit('this must not run')\n")
    with pytest.raises(WorkloadError, match=r"must be one that transformers .* accepts.*custom code"):
        load_workload(resolve_source("hf:org/own"))
