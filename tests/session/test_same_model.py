"""A study is of one model: what its code reads, and what it is, must be what they were; a comment may change."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import advisor
from advisor.errors import OutputFolderError, WorkloadError
from advisor.report.progress import Progress

pytestmark = pytest.mark.slow

_MODEL = """
import importlib
import json
import os
from pathlib import Path

import torch

HERE = Path(__file__).parent
WIDTH = json.loads((HERE / "config.json").read_text())["width"]

def build_model():
    layers = int(os.environ.get("MODEL_LAYERS", "2"))
    activation = importlib.import_module("choice" + "s").activation
    sizes = [8] + [WIDTH] * layers
    pairs = zip(sizes, sizes[1:])
    return torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(*pair), activation()) for pair in pairs))

def make_batch(batch_size):
    return torch.randn(batch_size, 8)

def compute_loss(model, batch):
    return model(batch).square().mean() * float(os.getenv("LOSS_SCALE", "1"))
"""


class Noted(Progress):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class Project:
    """A model beside its config and a module that is imported by a computed name, and an advisor that is asked."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.model = folder / "model.py"
        self.model.write_text(_MODEL)
        self.config = folder / "config.json"
        self.config.write_text('{"width": 16}')
        self.choices = folder / "choices.py"
        self.choices.write_text("import torch\nactivation = torch.nn.GELU\n")
        self.notes: list[str] = []
        monkeypatch.chdir(folder)

    def tune(self, output: str | None = "out") -> Any:
        progress = Noted()
        try:
            return advisor.tune(
                self.model,
                search_space="smoke",
                trials=1,
                time_limit=60,
                memory_limit="4GiB",
                device="cpu",
                output=None if output is None else self.folder / output,
                progress=progress,
            )
        finally:
            self.notes = progress.notes

    def studies(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted(one.name for one in (self.folder / "momadvise-runs").iterdir())
        return []


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path, monkeypatch)
    monkeypatch.delenv("MODEL_LAYERS", raising=False)
    monkeypatch.delenv("LOSS_SCALE", raising=False)
    return project


def test_what_changes_nothing_of_the_model_is_the_same_study(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not project.tune().cached
    project.model.write_text("# A comment.\n" + _MODEL.replace("WIDTH = ", "WIDTH  =  "))
    project.choices.write_text(project.choices.read_text() + "\n# Another one.\n")
    project.config.touch()
    monkeypatch.setenv("NOBODY_READS_THIS", "1")
    assert project.tune().cached


def test_each_thing_that_the_model_reads_is_part_of_the_study(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.tune()
    before = (project.folder / "out" / "answer.json").read_text()
    with monkeypatch.context() as changed:
        changed.setenv("MODEL_LAYERS", "3")
        with pytest.raises(OutputFolderError, match="the environment variable MODEL_LAYERS changed"):
            project.tune()
    with monkeypatch.context() as changed:
        changed.setenv("LOSS_SCALE", "2")
        with pytest.raises(OutputFolderError, match="the environment variable LOSS_SCALE"):
            project.tune()
    project.config.write_text('{"width": 32}')
    with pytest.raises(OutputFolderError, match=r"the file .*config\.json"):
        project.tune()
    project.config.write_text('{"width": 16}')
    project.choices.write_text("import torch\nactivation = torch.nn.ReLU\n")
    with pytest.raises(OutputFolderError, match=r"the file .*choices\.py"):
        project.tune()
    project.choices.write_text("import torch\nactivation = torch.nn.GELU\n")
    assert (project.folder / "out" / "answer.json").read_text() == before, "nothing in the folder was changed"
    assert project.tune().cached, "and what is as it was is known again"


def test_without_a_named_folder_another_model_gets_another_one(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.tune(output=None)
    (first,) = project.studies()
    monkeypatch.setenv("MODEL_LAYERS", "3")
    assert not project.tune(output=None).cached
    assert project.studies() == [first, f"{first}-2"]
    assert any("is not used: the environment variable MODEL_LAYERS changed" in one for one in project.notes)
    assert project.tune(output=None).cached
    monkeypatch.delenv("MODEL_LAYERS")
    assert project.tune(output=None).cached
    assert project.studies() == [first, f"{first}-2"]


def test_a_value_that_was_read_is_not_written_anywhere(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSS_SCALE", "1.000000073")
    project.tune()
    written = [path for path in (project.folder / "out").rglob("*") if path.is_file()]
    assert written
    assert not any(b"1.000000073" in path.read_bytes() for path in written)


def test_a_model_that_is_another_for_a_reason_that_nobody_sees_is_told_by_its_parameters(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_a_file = _MODEL.replace('int(os.environ.get("MODEL_LAYERS", "2"))', '(HERE / "one.layer").exists() + 2')
    project.model.write_text(by_a_file)
    project.tune()
    (project.folder / "one.layer").touch()
    with pytest.raises(OutputFolderError, match=r"model: parameters 416 -> 688"):
        project.tune()


def test_a_model_that_can_no_longer_be_built_is_no_answer_of_yesterday(project: Project) -> None:
    broken = 'if (HERE / "broken").exists():\n    raise ValueError("broken")\n\ndef make_batch'
    project.model.write_text(_MODEL.replace("def make_batch", broken))
    project.tune()
    (project.folder / "broken").touch()
    with pytest.raises(WorkloadError, match="no longer can be"):
        project.tune()
