"""What identifies a model includes the libraries that its classes come from, and no others."""

from __future__ import annotations

import importlib.util
import os
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch
import transformers
import yaml

from advisor.measure.batches.model_identity import identity_of
from advisor.workload._user_functions import Workload
from tests.methods.tiny import gpt2, text
from tests.methods.tiny import text as text_batch


class Own(torch.nn.Linear):
    """The user's own code is no library; it is told by other means."""


def libraries_of(model: torch.nn.Module) -> dict[str, str]:
    return identity_of(model, Workload(build_model=lambda: model, make_batch=text), text, 0).libraries


def test_libraries_are_those_of_the_models_classes_besides_torch() -> None:
    assert libraries_of(torch.nn.Linear(2, 2)) == {}
    assert libraries_of(Own(2, 2)) == {}
    assert libraries_of(gpt2(1)) == {"transformers": transformers.__version__}


def test_a_library_whose_package_has_another_name_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Own, "__module__", f"{yaml.__name__}.nodes")
    assert {name.lower() for name in libraries_of(Own(2, 2))} == {"pyyaml"}


def test_all_that_is_installed_is_looked_through_for_such_a_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap: that took a fifth of a second of every probe."""
    monkeypatch.setattr(metadata, "packages_distributions", lambda: pytest.fail("transformers is called transformers"))
    assert list(libraries_of(torch.nn.Sequential(gpt2(1), Own(2, 2)))) == ["transformers"]


def test_whole_numbers_and_words_of_the_optimizer_make_another_study_and_its_rates_do_not() -> None:
    """Iterations or a rank decide how long a step takes; they are in no shape of the model."""
    model = torch.nn.Linear(4, 4, bias=False)

    def optimizer(**options: object) -> str:
        def build(parameters: object) -> torch.optim.Optimizer:
            return torch.optim.Muon(parameters, **options)  # type: ignore[arg-type]

        workload = Workload(build_model=lambda: model, make_batch=text, build_optimizer=build)
        return identity_of(model, workload, text, 0).optimizer

    usual = optimizer(lr=1e-3)
    assert usual == optimizer(lr=1e-2, momentum=0.9)
    assert "ns_steps=5" in usual
    assert optimizer(ns_steps=10) != usual
    assert optimizer(adjust_lr_fn="match_rms_adamw") != usual
    assert optimizer(weight_decay=0.0) != usual, "whether it is in use"


def code_of(folder: Path, text: str, monkeypatch: pytest.MonkeyPatch, *, known: bool = False) -> dict[str, str]:
    """What is kept of a module of the user's own in some folder."""
    path = folder / "layers.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("layers", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "layers", module)
    exec(compile(text, str(path), "exec"), module.__dict__)
    model = module.Layer()
    workload = Workload(build_model=lambda: model, make_batch=text_batch)
    files = [os.path.realpath(path)] if known else []
    return identity_of(model, workload, text_batch, 0, files).code


LAYER = "import torch\n\n\nclass Layer(torch.nn.Module):\n    def forward(self, x):\n        return x\n"


def test_code_that_is_neither_installed_nor_known_is_told_by_its_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = code_of(tmp_path, LAYER, monkeypatch)
    assert list(first) == ["layers"]
    assert code_of(tmp_path, f"# Layers.\n{LAYER}", monkeypatch) == first
    assert code_of(tmp_path, LAYER.replace("return x", "return x * 2"), monkeypatch) != first
    assert code_of(tmp_path, LAYER, monkeypatch, known=True) == {}
