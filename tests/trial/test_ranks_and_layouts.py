"""Several ranks train on what one process would, wherever a batch has its samples and however its loss is reduced."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import FidelityTrial, ProbeTrial, Trial, TrialSpec
from advisor.workload.batch_layout import BatchLayout
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.trial.specs import my_children, spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_MODEL = """
import torch
from torch import nn
from torch.nn import functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(12, 8), nn.Linear(8, 12)

    def forward(self, ids):
        return self.head(torch.tanh(self.table(ids)))

def build_model():
    return Net()

def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""

_WORKLOADS = {
    "time first": """
def make_batch(batch_size):
    ids = torch.randint(12, (9, batch_size))
    return ids, ids.roll(-1, 0)

def compute_loss(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
""",
    "a list of sequences of any length": """
def make_batch(batch_size):
    return [torch.randint(12, (int(torch.randint(2, 9, ())),)) for _ in range(batch_size)]

def compute_loss(model, batch):
    return torch.stack([F.cross_entropy(model(one), one.flip(0)) for one in batch]).mean()
""",
    "a sum over samples": """
def make_batch(batch_size):
    return {"ids": torch.randint(12, (batch_size, 5)), "temperature": torch.tensor(2.0)}

def compute_loss(model, batch):
    ids = batch["ids"]
    logits = model(ids).flatten(0, 1) / batch["temperature"]
    return F.cross_entropy(logits, ids.flip(1).flatten(), reduction="sum")
""",
    "a mean over targets that are not padding": """
def make_batch(batch_size):
    ids = torch.randint(1, 12, (batch_size, 8))
    lengths = torch.randint(1, 9, (batch_size,))
    ids[torch.arange(8) >= lengths[:, None]] = 0
    return ids, lengths.tolist()

def compute_loss(model, batch):
    ids, lengths = batch
    assert len(lengths) == len(ids)
    return F.cross_entropy(model(ids).flatten(0, 1), ids.flatten(), ignore_index=0)
""",
}


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner
    assert my_children() == []


@pytest.mark.parametrize("name", list(_WORKLOADS))
def test_two_ranks_have_the_losses_of_one_process(runner: Runner, tmp_path: Path, name: str) -> None:
    text = _MODEL + _WORKLOADS[name]
    path = tmp_path / "workload.py"
    path.write_text(text)
    digest = hashlib.sha256(text.encode()).hexdigest()
    source = WorkloadSource(kind=WorkloadKind.FILE, location=str(path), name="layouts", fingerprint=digest)

    def trial(kind: type[Trial[Any]], policy: Policy, layout: BatchLayout | None = None) -> TrialSpec:
        steps = {"fidelity_steps": 8} if kind is FidelityTrial else {}
        return spec(kind=kind, workload=source, policy=policy, layout=layout, **steps)

    probed = runner.run(trial(ProbeTrial, Policy(micro_batch=4)))
    assert probed.facts is not None, probed
    layout = probed.facts.batch_layout

    def losses(policy: Policy) -> tuple[float, ...]:
        result = runner.run(trial(FidelityTrial, policy, layout))
        assert result.outcome is Outcome.OK, (result, runner.tail_of_log(result.key))
        assert result.fidelity is not None
        return result.fidelity.losses

    alone = losses(Policy(micro_batch=6))
    ddp = use("ddp", bucket_views=True, static_graph=False)
    assert losses(Policy(methods=(ddp,), micro_batch=3, gpu_count=2)) == pytest.approx(alone, rel=1e-4)
    assert losses(Policy(micro_batch=2, accumulation_steps=3)) == pytest.approx(alone, rel=1e-4)
    assert len(set(alone)) > 4, "it trains"
