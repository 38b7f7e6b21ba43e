"""State that a model keeps in its classes, in globals, or in lists: methods under which it is wrong are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advisor.decide.guard import observed_class, why_worse
from advisor.goal import Fidelity
from advisor.measure.fidelity import FidelityMeasurement, compared
from advisor.methods.setting import use
from advisor.trial.spec import FidelityTrial, ProbeTrial
from tests.trial.test_run_trial import Bed

_HEAD = """
import torch
from torch import nn
from torch.nn import functional as F

SEEN = 0
CALLS = [0]
KEPT = torch.zeros(4)

class Block(nn.Module):
    scale = 1.0
    calls = 0

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        {body}
        return x + self.b(torch.tanh(Block.scale * self.a(x)))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.out = nn.ModuleList(Block() for _ in range(4)), nn.Linear(8, 6)

    def body(self, x):
        for number, block in enumerate(self.blocks):
            {before}
            x = block(x)
        return x

    def forward(self, x, y):
        {forward}

def build_model():
    return Net()

def make_batch(batch_size):
    return torch.randn(batch_size, 8), torch.randint(6, (batch_size,))

def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""
_ONE_PASS = "return F.cross_entropy(self.out(self.body(x)), y)"
_TWO_PASSES = (
    "Block.scale = 1.0; first = self.body(x); Block.scale = 0.3; second = self.body(x); "
    "return F.cross_entropy(self.out(first), y) + F.cross_entropy(self.out(second), y)"
)


def model(body: str = "pass", before: str = "pass", forward: str = _ONE_PASS) -> str:
    return _HEAD.format(body=body, before=before, forward=forward)


STATES = {
    "a condition in the class, set between two passes": (model(forward=_TWO_PASSES), "off the reference run's"),
    "a depth in the class, set before each block": (
        model(before="Block.scale = 1 / (1 + number)"),
        "off the reference run's",
    ),
    "a counter in the class": (model(body="Block.calls += 1"), "changes Block.calls by 8, that of plain training by 4"),
    "a global counter": (
        model(body="global SEEN; SEEN += len(x)"),
        "changes the global SEEN by 16, that of plain training by 8",
    ),
    "a counter in a global list": (model(body="CALLS[0] += 1"), "changes sum(the global CALLS) by 8"),
    "a global tensor": (model(body="KEPT.add_(1)"), "changes the global KEPT by 16, that of plain training by 8"),
}

Compare = Callable[[str], FidelityMeasurement]


@pytest.fixture(scope="module")
def compare(tmp_path_factory: pytest.TempPathFactory) -> Compare:
    """A short training with recomputed blocks beside the exact one, as a search makes it."""
    bed = Bed(tmp_path_factory.mktemp("compared"))
    Path(bed.folder / "trials").mkdir()

    def beside(text: str) -> FidelityMeasurement:
        def record(**more: Any) -> Any:
            result = bed.run(text, kind=FidelityTrial, micro_batch=2, fidelity_steps=3, **more)
            assert result.fidelity is not None, result
            return result.fidelity

        gradient = str(bed.folder / "trials" / "gradient.pt")
        exact = record(write_gradient_to=gradient)
        own = record(
            methods=(use("checkpoint", every=1),), reference_gradient=gradient, watched_state=tuple(exact.state)
        )
        found = compared(own, exact, reference="plain", micro_batch=2)
        assert found is not None
        return found

    return beside


@pytest.mark.parametrize("name", STATES)
def test_recomputation_that_gets_it_wrong_is_refused(name: str, compare: Compare) -> None:
    text, reason = STATES[name]
    found = compare(text)
    assert observed_class(Fidelity.EXACT, found) is None
    finding = why_worse(Fidelity.EXACT, found)
    assert finding is not None
    assert reason in finding.what


def test_and_without_such_state_it_is_exact(compare: Compare) -> None:
    assert observed_class(Fidelity.EXACT, compare(model())) is Fidelity.EXACT


def test_micro_batches_count_in_a_global_as_often_as_there_are_any(tmp_path: Path) -> None:
    result = Bed(tmp_path).run(model(body="CALLS[0] += 1"), kind=ProbeTrial, micro_batch=2)
    assert result.facts is not None
    assert "a forward pass changes sum(the global CALLS)" in result.facts.batch_layout.changes_when_split
