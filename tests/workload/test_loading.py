"""Loading the user's code in the worker: constants are validated, and errors are the user's own."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from advisor.errors import WorkloadError
from advisor.workload._loading import load_workload
from advisor.workload._user_functions import Workload
from advisor.workload.importing import refuse_while_importing
from advisor.workload.source import resolve_source

BASE = """\
from __future__ import annotations
import dataclasses
import torch

@dataclasses.dataclass
class Sizes:
    width: int = 2

class Block(torch.nn.Linear): ...

def build_model(width: int = 2):
    return torch.nn.Sequential(Block(width, width), Block(width, 1))

def make_batch(batch_size):
    return torch.zeros(batch_size, Sizes().width)
"""


@pytest.fixture(autouse=True)
def _restore_imports() -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith(("momadvise_workload_", "momadvise_test_"))]:
        del sys.modules[name]


def load(tmp_path: Path, extra: str = "", base: str = BASE) -> Workload:
    path = tmp_path / "train.py"
    path.write_text(base + extra)
    return load_workload(resolve_source(path))


def message(tmp_path: Path, extra: str, base: str = BASE) -> str:
    with pytest.raises(WorkloadError) as caught:
        load(tmp_path, extra, base)
    return str(caught.value)


def test_an_edit_of_the_same_length_and_second_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    stamp = 1_700_000_000
    for width in (2, 3):
        path = tmp_path / "train.py"
        path.write_text(BASE.replace("width: int = 2", f"width: int = {width}"))
        os.utime(path, (stamp, stamp))
        sys.modules.pop("momadvise_workload_train", None)
        workload = load_workload(resolve_source(path))
        assert workload.make_batch(1).shape == (1, width)


def test_functions_and_constants_are_found_by_name(tmp_path: Path) -> None:
    workload = load(
        tmp_path,
        "MAX_GRAD_NORM = 1\nBATCH_SIZE = 4\nBLOCKS = (Block,)\nSIZES = {'width': [2, 4]}\n"
        "def compute_loss(model, batch): return model(batch).sum()\n",
    )
    model = workload.build_model(width=3)
    assert isinstance(model, torch.nn.Sequential)
    assert model[0].in_features == 3
    assert workload.make_batch(5).shape == (5, 2)
    assert (workload.max_grad_norm, workload.batch_size) == (1.0, 4)
    assert workload.sizes == {"width": (2, 4)}
    assert isinstance(model[0], workload.blocks[0])
    assert workload.compute_loss is not None
    assert workload.build_optimizer is workload.count_targets is workload.linear_head is None


def test_classes_of_the_file_can_be_pickled(tmp_path: Path) -> None:
    model = load(tmp_path).build_model()
    assert type(pickle.loads(pickle.dumps(model))[0]) is type(model[0])  # type: ignore[index]


def test_a_file_is_run_once_however_often_it_is_loaded(tmp_path: Path) -> None:
    first, second = load(tmp_path), load(tmp_path)
    assert first.make_batch is second.make_batch


def test_modules_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "momadvise_test_neighbour.py").write_text("WIDTH = 7\n")
    workload = load(tmp_path, "import momadvise_test_neighbour\nBATCH_SIZE = momadvise_test_neighbour.WIDTH\n")
    assert workload.batch_size == 7


def test_a_file_of_a_package_may_use_relative_imports(tmp_path: Path) -> None:
    package = tmp_path / "momadvise_test_mine"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "sizes.py").write_text("SIZE = 6\n")
    path = package / "train.py"
    path.write_text(BASE + "from .sizes import SIZE as BATCH_SIZE\n")
    assert load_workload(resolve_source(path)).batch_size == 6


def test_a_script_beside_an_init_file_may_import_its_neighbours_by_name_as_python_lets_it(tmp_path: Path) -> None:
    folder = tmp_path / "momadvise_test_script"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "momadvise_test_sizes.py").write_text("SIZE = 6\n")
    path = folder / "train.py"
    path.write_text(BASE + "from momadvise_test_sizes import SIZE as BATCH_SIZE\n")
    source = resolve_source(path)
    assert load_workload(source).batch_size == 6
    assert [Path(file).name for file in source.files] == ["train.py", "momadvise_test_sizes.py"]
    (folder / "momadvise_test_sizes.py").write_text("SIZE = 7\n")
    assert resolve_source(path).fingerprint != source.fingerprint, "an edit of the neighbour is another workload"


def test_an_exception_at_import_keeps_the_users_frames_and_not_ours(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError) as caught:
        load(tmp_path, "def broken():\n    raise RuntimeError('no such corpus')\nbroken()\n")
    assert "RuntimeError: no such corpus" in str(caught.value)
    text = caught.value.traceback_text
    assert text is not None
    assert "in broken" in text
    assert "advisor/workload" not in text
    assert "importlib" not in text


def test_a_file_that_failed_is_run_again_the_next_time(tmp_path: Path) -> None:
    message(tmp_path, "1 / 0\n")
    assert load(tmp_path).batch_size is None


def test_a_program_that_exits_when_imported_is_told_so(tmp_path: Path) -> None:
    assert "raised SystemExit: 3" in message(tmp_path, "import sys; sys.exit(3)\n")


def test_a_program_that_tunes_when_imported_is_stopped(tmp_path: Path) -> None:
    refuse_while_importing("advisor.tune")  # outside of an import it may
    extra = "from advisor.workload.importing import refuse_while_importing\nrefuse_while_importing('advisor.tune')\n"
    assert 'if __name__ == "__main__"' in message(tmp_path, extra)


def test_a_star_import_that_brings_nothing_is_found_out(tmp_path: Path) -> None:
    text = message(tmp_path, "", base="from math import *\ndef build_model(): ...\n")
    assert "has no make_batch" in text


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return None", "None (is there a return statement?)"),
        ("return Block", "the class Block (call it: Block(...))"),
        ("return 3", "an object of type int"),
    ],
)
def test_build_model_must_return_a_module(tmp_path: Path, body: str, said: str) -> None:
    workload = load(tmp_path, f"def build_model():\n    {body}\n")
    with pytest.raises(WorkloadError, match=r"must return a torch\.nn\.Module") as caught:
        workload.build_model()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("BATCH_SIZE = 0", "BATCH_SIZE must be a whole number of samples from 1"),
        ("BATCH_SIZE = 4.0", "it is 4.0"),
        ("BATCH_SIZE = True", "it is True"),
        ("MAX_GRAD_NORM = -1", "MAX_GRAD_NORM must be a positive number"),
        ("MAX_GRAD_NORM = float('nan')", "it is nan"),
        ("BLOCKS = ('Block',)", "BLOCKS must hold classes"),
        ("BLOCKS = (Sizes,)", "BLOCKS must hold classes"),
        ("SIZES = [1, 2]", "SIZES must map argument names"),
        ("SIZES = {'width': [4, 2]}", "'width' is [4, 2]"),
        ("SIZES = {'width': []}", "'width' is []"),
        ("compute_loss = 3", "compute_loss must be a function"),
    ],
)
def test_constants_of_the_wrong_kind_are_refused_with_rule_and_value(tmp_path: Path, line: str, said: str) -> None:
    assert said in message(tmp_path, line + "\n")


def test_a_function_that_only_exists_in_the_main_program_is_explained(tmp_path: Path) -> None:
    source = resolve_source(_written(tmp_path))
    from advisor.workload.workload import WorkloadKind, WorkloadSource

    functions = {"build_model": f"{source.location}:build_model", "make_batch": f"{source.location}:absent"}
    asked = WorkloadSource(
        kind=WorkloadKind.FUNCTIONS, location="", functions=functions, name="x", fingerprint=source.fingerprint
    )
    with pytest.raises(WorkloadError, match="outside any condition on __name__"):
        load_workload(asked)


def _written(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(BASE)
    return path
