"""Readers of what is given as MODEL: the name, the file, a config."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given

from advisor.errors import OptionError, WorkloadError
from advisor.session.study import default_folders
from advisor.text.paths import path_of
from advisor.workload.source import resolve_source
from tests.session.test_study import MARKER as STUDY

from .hostile import assert_explains, damaged, explained, steering, texts, valid_or_explained

MODEL = b"""\
# a model
from beside import thing
BATCH_SIZE = 4
SIZES = {"width": [4, 8]}
def build_model(width=4):
    return width
def make_batch(batch_size):
    return [batch_size] * 3
"""

CONFIG = b'{"model_type": "bert", "hidden_size": 8, "layer_norm_eps": 1e-12, "architectures": ["BertModel"]}'


def _refused(path: Path | str) -> str | None:
    try:
        resolve_source(path)
    except WorkloadError as error:
        return str(error)
    return None


@given(texts)
def test_a_name_is_a_workload_or_an_error(text: str) -> None:
    for name in (text, f"{text}.py", f"{text}.json", f"hf:{text}", f"package.{text}"):
        error = _refused(name)
        if error is not None:
            assert_explains(error.partition(" Add these lines to it:")[0])


@given(texts)
def test_a_path_can_be_handed_on_or_is_refused(text: str) -> None:
    with valid_or_explained(OptionError):
        path = path_of(text, "--output", OptionError)
        assert str(path.absolute()).encode()


@given(damaged(MODEL))
def test_a_damaged_model_file_is_a_workload_or_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.py").write_bytes(content)
    error = _refused(tmp_path / "model.py")
    assert error is None or "model.py" in error  # the lines to add, or the line that is wrong, follow


@pytest.mark.parametrize(
    "content",
    [b"(" * 100_000, b"-" * 100_000 + b"1", b"x = 1" + b"+1" * 100_000, b"x = 0x" + b"f" * 5000, b"x = " + b"9" * 5000],
)
def test_a_model_file_without_end_is_a_workload_or_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.py").write_bytes(MODEL + content)
    error = _refused(tmp_path / "model.py")
    assert error is None or "must be valid Python" in error


@given(damaged(CONFIG))
def test_a_damaged_config_is_a_workload_or_an_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with valid_or_explained(WorkloadError):
        resolve_source(tmp_path)


@given(texts)
def test_a_model_type_is_a_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": text}))
    with valid_or_explained(WorkloadError):
        resolve_source(tmp_path)


@pytest.mark.parametrize("name", [b"\xff.py", b"a\x1b[31m.py", b"a\nb.py", b"a\rb.py"])
def test_a_file_whose_name_cannot_be_handed_on_is_refused_with_the_name(tmp_path: Path, name: bytes) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/" + name)
    Path(path).write_bytes(MODEL)
    assert ".py'" in explained(lambda: resolve_source(path), WorkloadError)


def test_files_beside_it_are_named_without_what_steers_a_terminal(tmp_path: Path) -> None:
    for name in (b"model\x1b[31m.py", b"model\n2.py", b"model\xff.py"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).touch()
    assert "x1b" in explained(lambda: resolve_source(str(tmp_path / "model.py")), WorkloadError)
    assert "x1b" in explained(lambda: resolve_source(str(tmp_path)), WorkloadError)


def test_a_file_that_may_not_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_bytes(CONFIG)

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert "Permission denied" in explained(lambda: resolve_source(tmp_path), WorkloadError)


def test_a_long_name_of_a_model_still_gets_a_folder(tmp_path: Path) -> None:
    import msgspec

    for name in ("é" * 120, "n" * 250):
        folder = next(default_folders(msgspec.structs.replace(STUDY, workload={"name": name, "fingerprint": "f"})))
        (tmp_path / folder).mkdir(parents=True)
        assert not steering(str(folder))
