"""State that no module has in its buffers: training on pieces is refused where every piece would change it again."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.trial.outcome import Outcome
from advisor.trial.spec import ProbeTrial
from tests.trial.test_run_trial import Bed
from tests.truth.catalogue import Workload, with_loss

_TEACHER = """
import copy

class Taught(nn.Module):
    def __init__(self):
        super().__init__()
        self.student = nn.Linear(8, 6)
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x):
        return self.student(x)

def build_model():
    return Taught()
"""
_SCHEDULER = """
SCHEDULERS = []

def build_optimizer(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    SCHEDULERS[:] = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)]
    return optimizer
"""
_CROSS_ENTROPY = "return F.cross_entropy(model(batch[0]), batch[1])"

CHANGED = {
    "a teacher that is moved in the loss": (
        with_loss(
            "with torch.no_grad():\n"
            "    for slow, fast in zip(model.teacher.parameters(), model.student.parameters()):\n"
            "        slow.data.lerp_(fast.data, 1e-3)\n"
            "return F.cross_entropy(model(batch[0]), model.teacher(batch[0]).softmax(-1))",
            _TEACHER,
        ),
        "teacher.weight",
    ),
    "a counter at the loss function": (
        with_loss(f"compute_loss.step += 1\n{_CROSS_ENTROPY}") + "\ncompute_loss.step = 0\n",
        "compute_loss.step",
    ),
    "a scheduler that is stepped in the loss": (
        with_loss(f"SCHEDULERS[0].step()\n{_CROSS_ENTROPY}") + _SCHEDULER,
        "the optimizer's lr",
    ),
    "a counter that the loss function encloses": (
        with_loss("return loss(model, batch)")
        + "\ndef counted():\n    steps = 0\n    def loss(model, batch):\n        nonlocal steps\n        steps += 1\n"
        "        return F.cross_entropy(model(batch[0]), batch[1]) / steps\n    return loss\n"
        "\ncompute_loss = counted()\n",
        "loss.steps.value",
    ),
    "a list that a layer's forward encloses": (
        with_loss(
            _CROSS_ENTROPY,
            """
def build_model():
    calls = [0]

    class Counting(nn.Linear):
        def forward(self, x):
            calls[0] += 1
            return super().forward(x) * (1 + 1 / calls[0])

    return Counting(8, 6)
""",
        ),
        "forward.calls.0",
    ),
    "a history in a collection": (
        with_loss(f"model.history.append(0)\n{_CROSS_ENTROPY}").replace(
            "    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 6))",
            "    model = nn.Linear(8, 6)\n    model.history = []\n    return model",
        ),
        "len(history)",
    ),
}


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("name", CHANGED)
def test_what_every_pass_changes_is_named(name: str, tmp_path: Path) -> None:
    text, place = CHANGED[name]
    result = Bed(tmp_path).run(Workload(text).source, kind=ProbeTrial, micro_batch=2)
    assert result.facts is not None, result
    assert place in result.facts.batch_layout.changes_when_split


def test_an_average_that_pieces_leave_as_the_batch_does_is_no_reason(tmp_path: Path) -> None:
    """A teacher that is moved after the update is moved once in a step, however many pieces that has."""
    text = with_loss("return F.cross_entropy(model(batch[0]), model.teacher(batch[0]).softmax(-1))", _TEACHER)
    result = Bed(tmp_path).run(Workload(text).source, kind=ProbeTrial, micro_batch=2)
    assert result.facts is not None, result
    assert not result.facts.batch_layout.changes_when_split


def test_the_reason_is_of_the_look_that_is_furthest_off(tmp_path: Path) -> None:
    """Trap: a last look that happened to add up gave "off by 1e-05 %"."""
    batch = """
def make_batch(batch_size):
    y = torch.randn(batch_size, 6)
    y[torch.rand(y.shape) < 0.4] = float("nan")
    return torch.randn(batch_size, 8), y
"""
    loss = "there = ~batch[1].isnan()\nreturn F.mse_loss(model(batch[0])[there], batch[1][there])"
    result = Bed(tmp_path).run(Workload(with_loss(loss, batch=batch)).source, kind=ProbeTrial, micro_batch=2)
    assert result.facts is not None, result
    off = result.facts.batch_layout.changes_when_split.partition("off by ")[2].partition("%")[0].replace(",", "")
    assert float(off) > 0.1


MISTAKES = {
    "an optimizer that computes the loss itself": (
        with_loss(_CROSS_ENTROPY) + "\ndef build_optimizer(parameters):\n    return torch.optim.LBFGS(parameters)\n",
        "step() can be called with nothing, but that of LBFGS needs a closure",
    ),
    "layers that are built on first use": (
        with_loss(_CROSS_ENTROPY, "def build_model():\n    return nn.Sequential(nn.LazyLinear(6))\n"),
        "every layer must be built before training",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_what_cannot_be_trained_so_is_one_line(name: str, tmp_path: Path) -> None:
    text, line = MISTAKES[name]
    result = Bed(tmp_path).run(Workload(text).source, kind=ProbeTrial, micro_batch=2)
    assert result.outcome is Outcome.FAILED
    assert line in result.reason
    assert "\n" not in result.reason
    assert result.traceback_text is None
