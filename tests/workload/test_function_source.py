"""Functions given to ``advisor.tune``: found again by name in another process, or refused with the fix."""

from __future__ import annotations

import functools
import importlib
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.errors import WorkloadError
from advisor.workload._loading import load_workload
from advisor.workload.function_source import source_from_functions
from advisor.workload.source import resolve_source
from advisor.workload.workload import WorkloadKind, WorkloadSource


def build_model(width: int = 2) -> Any:
    import torch

    return torch.nn.Linear(width, 1)


def make_batch(batch_size: int) -> Any:
    import torch

    return torch.zeros(batch_size, 2)


class Maker:
    @staticmethod
    def make_batch(batch_size: int) -> Any:
        return make_batch(batch_size)

    def bound(self, batch_size: int) -> Any:
        return make_batch(batch_size)


def refused(**functions: Any) -> str:
    with pytest.raises(WorkloadError) as caught:
        source_from_functions(**{"build_model": build_model, "make_batch": make_batch, **functions})
    return str(caught.value)


def test_functions_are_named_by_module_and_come_back_as_themselves() -> None:
    source = source_from_functions(build_model=build_model, make_batch=Maker.make_batch)
    assert source.kind is WorkloadKind.FUNCTIONS
    assert source.functions == {
        "build_model": f"{__name__}:build_model",
        "make_batch": f"{__name__}:Maker.make_batch",
    }
    workload = load_workload(source)
    assert workload.build_model.__wrapped__ is build_model  # type: ignore[attr-defined]
    assert workload.make_batch is Maker.make_batch
    assert workload.compute_loss is None


def test_a_record_of_functions_survives_json() -> None:
    source = source_from_functions(build_model=build_model, make_batch=make_batch, count_targets=make_batch)
    assert msgspec.json.decode(msgspec.json.encode(source), type=WorkloadSource) == source


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda batch_size: None, "a lambda"),
        (functools.partial(make_batch, 2), "partial"),
        (Maker().bound, "is not the object that was passed"),
        (3, "of type int"),
    ],
)
def test_what_cannot_be_found_by_name_is_refused_with_the_fix(function: Any, said: str) -> None:
    text = refused(make_batch=function)
    assert text.startswith("make_batch must be")
    assert said in text
    assert "top level of a .py file" in text


@pytest.mark.parametrize("missing", ["build_model", "make_batch"])
def test_both_functions_must_be_given(missing: str) -> None:
    assert f"there is no {missing}" in refused(**{missing: None})


def test_a_function_inside_a_function_is_refused() -> None:
    def build_model() -> Any: ...

    assert "is defined inside another function" in refused(build_model=build_model)


def test_a_name_that_was_assigned_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    original = make_batch
    monkeypatch.setitem(globals(), "make_batch", lambda batch_size: None)
    with pytest.raises(WorkloadError, match="not the object that was passed"):
        source_from_functions(build_model=build_model, make_batch=original)


PROGRAM = """\
    import sys, msgspec
    import neighbour
    from advisor.workload.function_source import source_from_functions
    BATCH_SIZE = 3
    def build_model(): return neighbour.model()
    def make_batch(batch_size): ...
    if __name__ == "__main__":
        source = source_from_functions(build_model=build_model, make_batch=make_batch)
        print(msgspec.json.encode(source).decode())
"""


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=cwd, capture_output=True, text=True, check=False)


def program_in(folder: Path) -> Path:
    path = folder / "bootstrap.py"
    path.write_text(textwrap.dedent(PROGRAM))
    (folder / "neighbour.py").write_text("def model():\n    import torch\n    return torch.nn.Linear(2, 1)\n")
    return path


def test_functions_of_the_program_itself_are_found_by_its_file(tmp_path: Path) -> None:
    path = program_in(tmp_path)
    result = run("bootstrap.py", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    source = msgspec.json.decode(result.stdout, type=WorkloadSource)
    assert source.functions["build_model"] == f"{path}:build_model"
    assert str(tmp_path) in source.import_paths
    loaded = load_workload(source)
    assert loaded.batch_size == 3
    assert loaded.build_model().in_features == 2
    before = source.fingerprint
    (tmp_path / "neighbour.py").write_text("# changed\n")
    assert json.loads(run("bootstrap.py", cwd=tmp_path).stdout)["fingerprint"] != before


def test_functions_of_a_module_run_with_m_are_found_by_its_name(tmp_path: Path) -> None:
    program_in(tmp_path)
    result = run("-m", "bootstrap", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["functions"]["build_model"] == "bootstrap:build_model"


def test_functions_typed_on_the_command_line_are_refused(tmp_path: Path) -> None:
    program_in(tmp_path)
    result = run("-c", textwrap.dedent(PROGRAM), cwd=tmp_path)
    assert "there is no file to import it from" in result.stderr


def test_functions_of_a_file_are_the_same_workload_as_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "momadvise_test_functions.py"
    path.write_text("def build_model(): ...\ndef make_batch(batch_size): ...\ndef compute_loss(model, batch): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module(path.stem)
    given = {name: getattr(module, name) for name in ("build_model", "make_batch", "compute_loss")}
    file = resolve_source(path)
    assert (source_from_functions(**given).fingerprint, source_from_functions(**given).files) == (
        file.fingerprint,
        file.files,
    )
    del given["compute_loss"]
    assert source_from_functions(**given).fingerprint != file.fingerprint, "the model's own loss is another"
