"""A model as people keep it in a repository, a policy that was measured for it, and a check in this process."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

import advisor
from advisor.decide.policy_status import PolicyCheck
from advisor.policy.file import load_policy_file, write_policy_file
from advisor.session.check import CheckRequest, run_check
from advisor.session.setup import same_model
from advisor.trial.result import LookResult
from advisor.trial.spec import Trial
from advisor.trial.worker.run_trial import run_trial
from advisor.workload.source import resolve_source

__all__ = ["SHORT", "Project", "forget_modules", "look_here"]

SHORT: dict[str, Any] = {
    "search_space": "smoke",
    "trials": 1,
    "time_limit": 60,
    "memory_limit": "2GiB",
    "device": "cpu",
}

FILES = {
    "model.py": '''\
"""A small model."""

import json
import os
from pathlib import Path

import torch

from parts import Block

WIDTH = json.loads((Path(__file__).parent / "cfg.json").read_text())["width"]
DIM = int(os.environ.get("MODEL_HIDDEN", "16"))
SCALE = float(os.environ.get("LOSS_SCALE", "1"))
LEARNING_RATE = 1e-3
BATCH_SIZE = 4
MAX_GRAD_NORM = 1.0


def build_model():
    return torch.nn.Sequential(*(Block(DIM, WIDTH) for _ in range(2)))


def build_optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=LEARNING_RATE)


def make_batch(batch_size):
    return {"input": torch.randn(batch_size, DIM)}


def compute_loss(model, batch):
    return model(batch["input"]).square().mean() * SCALE
''',
    "parts.py": """\
import torch


class Block(torch.nn.Module):
    def __init__(self, dim, width):
        super().__init__()
        self.inside, self.outside = torch.nn.Linear(dim, width), torch.nn.Linear(width, dim)

    def forward(self, x):
        return x + self.outside(self.inside(x).relu())
""",
    "cfg.json": '{"width": 32}',
}


class Project:
    """A folder with the model.

    Attributes:
        policy: The policy file.
        model: The model file, ``None`` for the one that the policy names.
        options: Of the request.
    """

    def __init__(self, folder: Path, policy: Path | None = None) -> None:
        self.folder = folder
        for name, text in FILES.items():
            (folder / name).write_text(text)
        self.policy = folder / "policy.yaml"
        if policy is not None:
            self.policy.write_text(policy.read_text())
        self.model: str | None = None
        self.options: dict[str, Any] = {}

    def edit(self, name: str, old: str, new: str) -> None:
        """Change a file."""
        path = self.folder / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def restate(self, part: str, **values: Any) -> None:
        """Change what the policy states: ``part`` is a path of fields, such as ``"fingerprints.hardware"``.

        A changed policy is the one that was measured.
        """
        file = load_policy_file(self.policy)

        def changed(record: Any, names: list[str]) -> Any:
            if not names:
                if isinstance(record, dict):
                    return {**record, **values}
                return msgspec.structs.replace(record, **values)
            return msgspec.structs.replace(record, **{names[0]: changed(getattr(record, names[0]), names[1:])})

        file = changed(file, part.split(".") if part else [])
        if part == "policy" and file.fingerprints is not None:
            measured = msgspec.structs.replace(file.fingerprints, policy=file.policy.key)
            file = msgspec.structs.replace(file, fingerprints=measured)
        write_policy_file(file, self.policy, header="")

    def check(self) -> PolicyCheck:
        """Check it."""
        source = None if self.model is None else resolve_source(self.folder / self.model)
        return run_check(CheckRequest(policy_file=self.policy, source=source, **self.options), lambda doing: None)

    def tune(self, output: Path, **options: Any) -> advisor.Answer:
        """Tune it, or get the answer of before."""
        return advisor.tune(self.folder / (self.model or "model.py"), output=output, **{**SHORT, **options})


class _Here:
    """A runner whose trials run in this process."""

    def __init__(self, folder: Path, **options: Any) -> None: ...

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, spec: Trial[Any]) -> LookResult:
        forget_modules()
        try:
            result: LookResult = run_trial(spec, lambda text: None)[0]
            return result
        finally:
            forget_modules()


def look_here(monkeypatch: Any) -> None:
    """Models are built in this process: starting another takes a hundred times as long."""
    monkeypatch.setattr(same_model, "Runner", _Here)


def forget_modules() -> None:
    """Files of the same names were loaded from other folders."""
    for name in [name for name in sys.modules if name.startswith("momadvise_workload_") or name == "parts"]:
        del sys.modules[name]
    sys.path[:] = [path for path in sys.path if not Path(path, "cfg.json").exists()]
