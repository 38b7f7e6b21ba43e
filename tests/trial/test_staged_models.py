"""Trials of models whose blocks are in stages: predicted, measured, guarded, lost, and applied by a wrapper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.hardware.mesh import Mesh
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import FidelityTrial, PredictTrial, SizeTrial
from tests.trial.divided_models import TINY, ran, trains_as_plain_training_does, trial, wrapper_trains_as_a_plain_loop

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def staged(**changes: Any) -> Any:
    stages = (use("pipeline", schedule="1f1b"),)
    return trial(stages, mesh=Mesh(pipeline=2), count=2, micro_batch=2, accumulation_steps=2, **changes)


def test_a_staged_model_is_sized_timed_where_it_was_found_best_to_cut_and_applied_by_its_wrapper(
    runner: Runner, tmp_path: Path
) -> None:
    sized = ran(runner, staged(kind=SizeTrial, largest_batch=8))
    alone = ran(runner, trial(micro_batch=2, accumulation_steps=2, kind=SizeTrial, largest_batch=8))
    for point, whole in zip(sized.sizing.points, alone.sizing.points, strict=True):
        assert point.memory.peak_bytes < 0.9 * whole.memory.peak_bytes
    # What was sized is cut evenly, as is what a policy without settled bounds predicts.
    predicted = [ran(runner, staged(kind=PredictTrial, rank=rank)).prediction for rank in range(2)]
    for point in sized.sizing.points:
        fullest = max(one.peak(point.micro_batch) for one in predicted)
        assert fullest == pytest.approx(point.memory.peak_bytes, rel=0.01)
    settled = sized.sizing.settled
    assert set(settled) == {"pipeline"}
    assert settled["pipeline"].split(",")[0] == "0"
    assert settled["pipeline"].split(",")[-1] == "6"
    policy = msgspec.structs.replace(staged().policy, settled=settled)
    timed = ran(runner, staged(policy=policy))
    assert timed.measurement.samples_per_second == pytest.approx(4 / timed.measurement.step_seconds)
    wrapper_trains_as_a_plain_loop(policy, tmp_path)


def test_the_first_gradient_and_the_losses_are_those_of_plain_training(runner: Runner) -> None:
    trains_as_plain_training_does(runner, staged(kind=FidelityTrial, fidelity_steps=8), Policy(micro_batch=4))


_COUNTING = """
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("all_calls", torch.zeros(()))
        self.calls, self.kept = 0, {"calls": 0}

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += inputs.detach().mean()
        self.all_calls = self.all_calls + 1
        self.calls += 1
        self.kept["calls"] += 1
"""


def test_what_blocks_of_every_stage_keep_changes_as_in_plain_training(runner: Runner, tmp_path: Path) -> None:
    """Trap: passes that only show what a stage needs counted, and later stages were not looked at."""
    forward = "\n    def forward(self, inputs: torch.Tensor) -> torch.Tensor:\n"
    path = tmp_path / "counting.py"
    path.write_text(TINY.read_text().replace(forward, _COUNTING, 1))
    wanted = {"path": path, "kind": FidelityTrial, "fidelity_steps": 3}
    plain = trial(micro_batch=2, accumulation_steps=2, **wanted)
    gradient = str(runner.gradient_file(plain.key))
    exact = ran(runner, msgspec.structs.replace(plain, write_gradient_to=gradient)).fidelity.state
    blocks = [f"blocks.{number}" for number in range(6)]
    assert {name: exact.get(name) for name in exact if name.endswith("calls")} == {
        f"{block}.{name}": 2.0 for block in blocks for name in ("all_calls", "calls", "kept.calls")
    }
    found = ran(runner, staged(**wanted, reference_gradient=gradient, watched_state=tuple(exact))).fidelity.state
    assert found == pytest.approx(exact, rel=1e-3)


def test_a_larger_batch_for_which_one_stage_has_no_memory_ends_the_ladder_on_all(
    runner: Runner, tmp_path: Path
) -> None:
    """Trap: the others only hear that a stage failed, and the combination was taken for a broken one."""
    text = TINY.read_text()
    loss = "return self.blocks(inputs).square().mean()"
    assert loss in text
    path = tmp_path / "workload.py"
    path.write_text(text.replace(loss, f"loss = self.last(self.blocks(inputs))\n{_LAST}"))
    sized = ran(runner, staged(path=path, kind=SizeTrial, largest_batch=8)).sizing
    assert [point.micro_batch for point in sized.points] == [2]
    assert sized.out_of_memory_at == 4


_LAST = """
        return loss

    def last(self, hidden: torch.Tensor) -> torch.Tensor:
        if len(hidden) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return hidden.square().mean()
"""


@pytest.mark.parametrize(
    ("change", "outcome", "reason"),
    [
        (("range(6)", "range(1)"), Outcome.REFUSED, "every stage of a pipeline needs a block"),
        (
            ("self.blocks(inputs).square().mean()", "self.blocks(inputs).mean() + self.blocks[0].inside.bias.sum()"),
            Outcome.FAILED,
            "is in another stage of the pipeline",
        ),
    ],
)
def test_what_cannot_be_cut_is_said_and_nobody_waits(
    runner: Runner, tmp_path: Path, change: tuple[str, str], outcome: Outcome, reason: str
) -> None:
    text = TINY.read_text()
    assert change[0] in text
    path = tmp_path / "workload.py"
    path.write_text(text.replace(*change) + "\n\nBLOCKS = (Block,)\n")
    result = runner.run(staged(path=path))
    assert result.outcome is outcome, (result, runner.tail_of_log(result.key))
    assert reason in f"{result.reason} {runner.tail_of_log(result.key)}"
