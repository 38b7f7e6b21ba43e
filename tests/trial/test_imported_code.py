"""Several trials in one process: the user's code, imported once, is for each of them as for the first."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import torch

from advisor.errors import WorkloadError
from advisor.trial.spec import SizeTrial, TrialSpec
from advisor.trial.worker.imported_code import ImportedCode
from advisor.workload._loading import load_workload
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.trial.specs import spec

KEPT = {
    "by itself": ("GENERATOR = numpy.random.default_rng(0)", "GENERATOR.random()"),
    "of torch": ("GENERATOR = torch.Generator().manual_seed(0)", "float(torch.rand(1, generator=GENERATOR))"),
    "of Python": ("GENERATOR = random.Random(0)", "GENERATOR.random()"),
    "in a collection": ("ALL = {'of noise': [numpy.random.RandomState(0)]}", "ALL['of noise'][0].rand()"),
    "in a helper": (
        "class Noise:\n    def __init__(self):\n        self.own = random.Random(0)\nNOISE = Noise()",
        "NOISE.own.random()",
    ),
    "in a closure": (
        "def drawing(generator):\n    return lambda: generator.random()\nDRAWN = drawing(random.Random(0))",
        "DRAWN()",
    ),
    "below a data set": (
        "SAMPLES = [str(one) for one in range(20000)]\nclass Noise:\n    def __init__(self):\n"
        "        self.own = random.Random(0)\nNOISE = Noise()",
        "NOISE.own.random()",
    ),
    "in a loader": (
        "LOADER = torch.utils.data.DataLoader(range(1000), shuffle=True, generator=torch.Generator().manual_seed(0))",
        "float(next(iter(LOADER)))",
    ),
}


@pytest.fixture(autouse=True)
def settings_of_this_process() -> Iterator[None]:
    dtype, folder = torch.get_default_dtype(), os.getcwd()
    yield
    torch.set_default_dtype(dtype)
    os.chdir(folder)


def of_file(folder: Path, text: str) -> TrialSpec:
    path = folder / f"imported_{hashlib.sha256(text.encode()).hexdigest()[:12]}.py"
    path.write_text(f"import random\nimport numpy\nimport torch\n{text}\n")
    source = WorkloadSource(kind=WorkloadKind.FILE, location=str(path), name="mine", fingerprint=path.stem)
    return msgspec.structs.replace(spec(kind=SizeTrial), workload=source)


def model_file(folder: Path, kept: str, drawn: str) -> TrialSpec:
    return of_file(
        folder,
        f"{kept}\ndef build_model():\n    return torch.nn.Linear(2, 2)\n"
        f"def make_batch(batch_size):\n    return torch.full((batch_size, 2), {drawn})",
    )


@pytest.mark.parametrize("kept", KEPT)
def test_a_generator_that_the_file_keeps_begins_every_trial_as_after_the_import(kept: str, tmp_path: Path) -> None:
    trial = model_file(tmp_path, *KEPT[kept])
    imported = ImportedCode()
    drawn = []
    for batches in (2, 1, 3):
        with imported.held(trial):
            make_batch = load_workload(trial.workload).make_batch
            drawn.append([float(make_batch(1)[0, 0]) for _ in range(batches)])
    first, second, third = drawn
    assert first[0] != first[1]
    assert second == first[:1]
    assert third[:2] == first


COUNTED = {
    "a global": ("STEP = 0", "def count():\n    global STEP\n    STEP += 1\n    return STEP"),
    "beside an enumeration": (
        "import enum\nclass Kind(enum.IntEnum):\n    A = 1\n    B = 2\nSTATE = {Kind.A: 0}",
        "def count():\n    STATE[Kind.A] += 1\n    return STATE[Kind.A]",
    ),
    "in a dictionary": ("STATE = {'step': 0}", "def count():\n    STATE['step'] += 1\n    return STATE['step']"),
    "of a class": (
        "class Steps:\n    taken = 0",
        "def count():\n    Steps.taken += 1\n    return Steps.taken",
    ),
    "of a helper": (
        "class Steps:\n    def __init__(self):\n        self.taken = 0\nALL = [Steps()]",
        "def count():\n    ALL[0].taken += 1\n    return ALL[0].taken",
    ),
    "of a function": ("", "def count():\n    count.taken += 1\n    return count.taken\ncount.taken = 0"),
    "in a closure": (
        "def counting():\n    taken = 0\n    def more():\n        nonlocal taken\n        taken += 1\n"
        "        return taken\n    return more",
        "count = counting()",
    ),
    "in a tensor": ("STEPS = torch.zeros(2)", "def count():\n    STEPS[0] += 1\n    return STEPS[0]"),
    "in a new tensor each": (
        "STEPS = torch.zeros(2)",
        "def count():\n    global STEPS\n    STEPS = STEPS + 1\n    return STEPS[0]",
    ),
    "in the buffer of a loss": (
        "LOSS = torch.nn.Sequential(torch.nn.BatchNorm1d(1))",
        "def count():\n    LOSS(torch.zeros(2, 1))\n    return LOSS[0].num_batches_tracked",
    ),
}


@pytest.mark.parametrize("counted", COUNTED)
def test_a_counter_that_the_file_keeps_begins_every_trial_as_after_the_import(counted: str, tmp_path: Path) -> None:
    """The trap: each policy was timed at longer sequences than the one before, by a schedule of the file's own."""
    kept, count = COUNTED[counted]
    trial = model_file(tmp_path, f"{kept}\n{count}\nSEEN = []", "float(count())")
    imported = ImportedCode()
    for batches in (2, 1, 3):
        with imported.held(trial):
            make_batch = load_workload(trial.workload).make_batch
            assert [float(make_batch(1)[0, 0]) for _ in range(batches)] == [1.0, 2.0, 3.0][:batches]


def test_what_the_file_does_once_for_the_process_stays_done(tmp_path: Path) -> None:
    once = "DONE = False\nDATA = None\ndef data():\n    global DONE, DATA\n    assert DATA is None or DONE"
    trial = model_file(tmp_path, f"{once}\n    DONE, DATA = True, DATA or [1.0]\n    return DATA[0]", "data()")
    imported = ImportedCode()
    for _ in range(2):
        with imported.held(trial):
            assert load_workload(trial.workload).make_batch(1)[0, 0] == 1.0


def test_a_loss_that_was_moved_or_shortened_stays_so_with_the_values_of_before(tmp_path: Path) -> None:
    trial = model_file(tmp_path, "LOSS = torch.nn.BatchNorm1d(1)", "float(LOSS.running_mean)")
    imported = ImportedCode()
    with imported.held(trial):
        loss = load_workload(trial.workload).make_batch.__globals__["LOSS"]
        loss.double()(torch.ones(2, 1, dtype=torch.float64))
        assert loss.running_mean > 0
    with imported.held(trial):
        assert loss.running_mean.dtype is torch.float64
        assert loss.running_mean == 0


READ_ONLY = {
    "a mapped file": "torch.from_numpy(numpy.memmap(FILE, dtype='float32', mode='r', shape=(4,)))",
    "expanded": "torch.zeros(1).expand(4)",
    "of inference": "torch.inference_mode()(lambda: torch.zeros(4))()",
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("table", READ_ONLY)
def test_a_table_that_cannot_be_written_to_is_left_alone(table: str, tmp_path: Path) -> None:
    """The trap: writing its own values into a mapped file ended the process with SIGSEGV."""
    (tmp_path / "table").write_bytes(bytes(16))
    kept = f"FILE = {str(tmp_path / 'table')!r}\nTABLE = {READ_ONLY[table]}"
    trial = model_file(tmp_path, kept, "float(TABLE[0])")
    imported = ImportedCode()
    for _ in range(2):
        with imported.held(trial):
            assert load_workload(trial.workload).make_batch(1)[0, 0] == 0


def test_what_the_file_sets_holds_in_every_trial_and_what_a_trial_sets_in_none_after_it(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    trial = of_file(
        tmp_path,
        f"torch.set_default_dtype(torch.float64)\nimport os\nos.chdir({str(tmp_path / 'data')!r})\n"
        "def build_model():\n    return torch.nn.Linear(2, 2)\ndef make_batch(batch_size):\n    return None",
    )
    imported = ImportedCode()
    for _ in range(2):
        with imported.held(trial):
            assert load_workload(trial.workload).build_model().weight.dtype is torch.float64
            assert Path.cwd() == tmp_path / "data"
            torch.set_default_dtype(torch.float32)
            os.chdir(tmp_path)


def test_what_cannot_be_imported_is_left_to_the_trial(tmp_path: Path) -> None:
    trial = of_file(tmp_path, "raise SystemExit(3)")
    with ImportedCode().held(trial), pytest.raises(WorkloadError, match="raised SystemExit"):
        load_workload(trial.workload)
