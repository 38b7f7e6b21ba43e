"""Resolving what the user typed: by reading only, with errors that say rule, value and fix."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from advisor.errors import WorkloadError
from advisor.workload.source import resolve_source
from advisor.workload.workload import WorkloadKind

GOOD = """\
import helper
def build_model(): ...
def make_batch(batch_size): ...
"""


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def message(model: str | Path) -> str:
    with pytest.raises(WorkloadError) as caught:
        resolve_source(model)
    return str(caught.value)


def test_a_file_with_both_functions_is_found_without_running_it(tmp_path: Path) -> None:
    path = write(tmp_path / "train.py", GOOD + "raise SystemExit('this file must not run here')\n")
    source = resolve_source(path)
    assert (source.kind, source.location, source.name) == (WorkloadKind.FILE, str(path), "train")
    assert source.import_paths == ()


def test_a_file_is_named_as_from_the_current_folder_and_one_elsewhere_by_its_whole_path_only_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy file that is shared names no folder of this machine; a command that is printed here must find it."""
    source = resolve_source(write(tmp_path / "models" / "train.py", GOOD))
    monkeypatch.chdir(tmp_path)
    assert (source.typed, source.typed_here) == ("models/train.py", "models/train.py")
    monkeypatch.chdir(write(tmp_path / "elsewhere" / "other.py", GOOD).parent)
    assert (source.typed, source.typed_here) == ("train.py", str(tmp_path / "models" / "train.py"))
    write(tmp_path / "elsewhere" / "train.py", GOOD)  # another model, of the same name
    assert source.typed_here == str(tmp_path / "models" / "train.py")


@pytest.mark.parametrize(
    "text",
    [
        "from other import build_model, make_batch",
        "from other import f as build_model\nmake_batch = build_model",
        "from other import *",
        "if True:\n    build_model = make_batch = print",
        "try:\n    from a import build_model\nexcept ImportError:\n    build_model = None\nmake_batch: object = print",
        "with open('x') as make_batch:\n    def build_model(): ...",
    ],
)
def test_names_bound_in_any_way_at_the_top_level_count(tmp_path: Path, text: str) -> None:
    assert resolve_source(write(tmp_path / "m.py", text)).kind is WorkloadKind.FILE


def test_names_bound_inside_functions_and_classes_do_not_count(tmp_path: Path) -> None:
    text = "def outer():\n    def build_model(): ...\nclass C:\n    def make_batch(self): ...\n"
    assert "no build_model and no make_batch" in message(write(tmp_path / "m.py", text))


def test_a_missing_file_names_the_near_ones(tmp_path: Path) -> None:
    write(tmp_path / "gpt2.py", GOOD)
    text = message(tmp_path / "gtp2.py")
    assert f"there is no file {tmp_path / 'gtp2.py'}" in text
    assert f"Did you mean {tmp_path / 'gpt2.py'}?" in text
    assert "There is no folder" in message(tmp_path / "nowhere" / "x.py")


def test_a_syntax_error_shows_file_line_and_place(tmp_path: Path) -> None:
    path = write(tmp_path / "broken.py", "import torch\ndef build_model(:\n    pass\n")
    text = message(path)
    assert f"{path}, line 2" in text
    shown = text.splitlines()[-2:]
    assert shown[0].endswith("def build_model(:")
    assert shown[1].index("^") == shown[0].index("(:") + 1


def test_bytes_that_are_no_python_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.py"
    path.write_bytes(b"\x00\x01\xff\xfe")
    assert "must be valid Python" in message(path)


def test_only_a_class_gets_the_five_lines_to_add(tmp_path: Path) -> None:
    text = """\
import torch
class Part(torch.nn.Module):
    def forward(self, x): ...
class TinyNet(torch.nn.Module):
    def __init__(self, width, depth=2): ...
    def forward(self, pixels, labels=None): ...
"""
    lines = message(write(tmp_path / "m.py", text)).splitlines()
    at = lines.index("    def build_model():")
    assert lines[at : at + 5] == [
        "    def build_model():",
        "        return TinyNet(width=...)",
        "",
        "    def make_batch(batch_size):",
        '        return {"pixels": torch.randn(batch_size, ...)}',
    ]
    assert "class TinyNet" in lines[0]
    assert "compute_loss(model, batch)" in lines[-1]


def test_functions_of_another_name_are_used_in_the_lines_to_add(tmp_path: Path) -> None:
    text = "def create_model(): ...\ndef get_batch(size): ...\n"
    shown = message(write(tmp_path / "m.py", text))
    assert "return create_model()" in shown
    assert "return get_batch(batch_size)" in shown


def test_what_is_there_is_not_asked_for_again(tmp_path: Path) -> None:
    shown = message(write(tmp_path / "m.py", "def build_model(): ...\n"))
    assert "has no make_batch" in shown
    assert "def build_model():\n" not in shown


def test_the_fingerprint_follows_the_file_and_its_local_imports_only(tmp_path: Path) -> None:
    path = write(tmp_path / "train.py", GOOD)
    helper = write(tmp_path / "helper.py", "import deeper.part\n")
    deep = write(tmp_path / "deeper" / "part.py", "def f():\n    from . import late\n")
    late = write(tmp_path / "deeper" / "late.py", "x = 1\n")
    stranger = write(tmp_path / "stranger.py", "x = 1\n")
    seen = {resolve_source(path).fingerprint}
    for file in (path, helper, deep, late):
        file.write_text(file.read_text() + "\nprint('changed')\n")
        fingerprint = resolve_source(path).fingerprint
        assert fingerprint not in seen, file
        seen.add(fingerprint)
    stranger.write_text("x = 2\n")
    assert resolve_source(path).fingerprint == fingerprint
    helper.write_text('"""What it is for."""\n# A comment.\n\n' + helper.read_text())
    assert resolve_source(path).fingerprint == fingerprint, "comments, docstrings and layout do not count"


def test_the_fingerprint_does_not_depend_on_where_the_folder_is(tmp_path: Path) -> None:
    paths = [write(tmp_path / name / "train.py", GOOD) for name in ("a", "b")]
    for path in paths:
        write(path.parent / "helper.py", "x = 1\n")
    assert len({resolve_source(path).fingerprint for path in paths}) == 1


def test_modules_that_import_each_other_end(tmp_path: Path) -> None:
    path = write(tmp_path / "train.py", GOOD)
    write(tmp_path / "helper.py", "import train\nimport helper\n")
    assert resolve_source(path).fingerprint


def test_a_file_inside_a_package_is_known_by_the_package(tmp_path: Path) -> None:
    write(tmp_path / "mine" / "__init__.py", "raise SystemExit('not run')")
    write(tmp_path / "mine" / "parts.py", "x = 1\n")
    path = write(tmp_path / "mine" / "train.py", GOOD + "from .parts import x\n")
    before = resolve_source(path)
    assert before.import_paths == (str(tmp_path),)
    (tmp_path / "mine" / "parts.py").write_text("x = 2\n")
    assert resolve_source(path).fingerprint != before.fingerprint


def test_an_importable_module_is_found_without_importing_its_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "momadvise_test_package" / "__init__.py", "raise SystemExit('not run')")
    path = write(tmp_path / "momadvise_test_package" / "train.py", GOOD)
    monkeypatch.syspath_prepend(str(tmp_path))
    source = resolve_source("momadvise_test_package.train")
    assert (source.location, source.import_paths, source.name) == (str(path), (str(tmp_path),), "train")
    assert "neither a file nor a module 'momadvise_test_package.nothing'" in message("momadvise_test_package.nothing")
    assert "must be a Python file" in message("math")


@pytest.mark.parametrize(
    ("packages", "module", "typed"),
    [
        ((), "in_folders.model", "in_folders.model"),
        (("in_folders",), "in_folders.model", "in_folders/model.py"),
        (("in_folders/inner",), "in_folders.inner.model", "in_folders.inner.model"),
        ((), "model", "model.py"),
    ],
)
def test_a_module_is_typed_by_its_name_where_its_path_does_not_tell_its_folder(
    packages: tuple[str, ...], module: str, typed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # another test may have left a module of a usual name on the path
    for package in packages:
        write(tmp_path / package / "__init__.py", "")
    write(tmp_path / f"{module.replace('.', '/')}.py", GOOD)
    source = resolve_source(module)
    assert (source.typed, source.typed_here) == (typed, typed)
    assert resolve_source(source.typed).fingerprint == source.fingerprint
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Path(source.typed_here).is_absolute()


def test_a_config_file_and_its_folder_are_the_same_workload(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny-gpt2" / "config.json", json.dumps({"model_type": "gpt2", "n_layer": 1}))
    source = resolve_source(path)
    assert (source.kind, source.location, source.name) == (WorkloadKind.HUGGING_FACE, str(path), "tiny-gpt2")
    assert resolve_source(path.parent) == source
    path.write_text(json.dumps({"model_type": "gpt2", "n_layer": 2}))
    assert resolve_source(path).fingerprint != source.fingerprint


def test_what_decides_nothing_of_training_leaves_a_config_the_same_workload(tmp_path: Path) -> None:
    config: dict[str, Any] = {"model_type": "gemma3", "text_config": {"num_hidden_layers": 2, "dtype": "bfloat16"}}
    path = write(tmp_path / "config.json", json.dumps({**config, "transformers_version": "5.23.0"}))
    source = resolve_source(path)
    saved_again = {"torch_dtype": "float16", "use_cache": False, "transformers_version": "5.24.1", "_name_or_path": "x"}
    path.write_text(json.dumps({**saved_again, **config, "text_config": {"num_hidden_layers": 2}}, indent=4))
    assert resolve_source(path).fingerprint == source.fingerprint
    path.write_text(json.dumps({**config, "text_config": {"num_hidden_layers": 3}}))
    assert resolve_source(path).fingerprint != source.fingerprint


@pytest.mark.parametrize(
    ("content", "said"), [("{", "must be valid JSON"), ("[]", "model_type"), ('{"model_type": 3}', "model_type")]
)
def test_a_config_must_be_json_with_a_model_type(tmp_path: Path, content: str, said: str) -> None:
    assert said in message(write(tmp_path / "config.json", content))


def test_a_folder_without_a_config_names_the_python_files_in_it(tmp_path: Path) -> None:
    write(tmp_path / "train.py", GOOD)
    assert "train.py" in message(tmp_path)


def test_a_model_type_is_taken_as_it_is_and_checked_by_the_worker() -> None:
    source = resolve_source("hf:gpt2")
    assert (source.kind, source.location) == (WorkloadKind.HUGGING_FACE, "gpt2")
    assert source.fingerprint != resolve_source("hf:bert").fingerprint
    assert "hf:bert" in message("hf:")


def test_a_folder_or_a_config_may_be_named_behind_hf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "own" / "config.json", '{"model_type": "gpt2"}')
    monkeypatch.chdir(tmp_path)
    for named in ("hf:./own", "hf:own/", f"hf:{tmp_path / 'own'}", "hf:./own/config.json", "hf:own/config.json"):
        assert resolve_source(named) == resolve_source("own")


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    assert "a file of another kind" in message(write(tmp_path / "model.txt", "hello"))


def test_resolving_loads_neither_torch_nor_transformers(tmp_path: Path) -> None:
    path = write(tmp_path / "train.py", GOOD)
    program = (
        "import sys; from advisor.workload.source import resolve_source;"
        "from advisor.hardware.detect import list_devices;"
        f"resolve_source({str(path)!r}); resolve_source('hf:bert'); list_devices();"
        "print(sorted({'torch', 'transformers', 'numpy', 'optuna'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
