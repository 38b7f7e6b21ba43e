"""Policies for several devices are traced by one process that stands for all, and take what real ranks take."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from advisor.hardware.mesh import DATA_ONLY, Mesh
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.predict.prediction import Category, MemoryPrediction
from advisor.trial.process.runner import Runner
from advisor.trial.spec import PredictTrial, SizeTrial, Trial
from advisor.workload.source import resolve_source
from tests.trial.specs import trial_of

pytestmark = pytest.mark.slow

RANKS = 2
MODEL = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Linear(96, 192), torch.nn.GELU(), torch.nn.Linear(192, 96)) for _ in range(4)
        )
        self.head = torch.nn.Linear(96, 10)

    def forward(self, inputs, labels):
        for block in self.blocks:
            inputs = inputs + block(inputs)
        return torch.nn.functional.cross_entropy(self.head(inputs).mean(1), labels)


def build_model():
    return Net()


def make_batch(batch_size):
    return {"inputs": torch.randn(batch_size, 32, 96), "labels": torch.randint(10, (batch_size,))}
"""


Methods = tuple[MethodSetting, ...]


def ddp(*, bucket_views: bool) -> MethodSetting:
    return use("ddp", bucket_views=bucket_views, static_graph=False)


def fsdp(*, reshard: bool) -> MethodSetting:
    return use("fsdp", mixed_precision="none", offload=False, reshard=reshard)


PREDICTED: tuple[Methods, ...] = (
    (ddp(bucket_views=False),),
    (use("zero_1"),),  # with views
)
SLICED: tuple[Methods, ...] = ((fsdp(reshard=False),), (use("checkpoint", every=1), fsdp(reshard=True)))


STAGED: tuple[Methods, ...] = tuple((use("pipeline", schedule=one),) for one in ("interleaved", "zero_bubble"))
"""The schedules whose devices have two stages."""


class Bed:
    """Runs trials of one workload; all predictions come before anything is measured, as ranks take long to start."""

    def __init__(self, folder: Path, runner: Runner) -> None:
        (folder / "model.py").write_text(MODEL)
        (folder / "chain.py").write_text(MODEL.replace("inputs = inputs + block(inputs)", "inputs = block(inputs)"))
        self._workload = resolve_source(folder / "model.py")
        self._chain = resolve_source(folder / "chain.py")
        self._runner = runner
        self._predictions = {str(methods): self.predicted(*methods) for methods in (*PREDICTED, *SLICED)}

    def result(self, kind: type[Trial[Any]], methods: Methods, ranks: int, **changes: Any) -> Any:
        limits: dict[str, Any] = {"memory_limit_bytes": 2**34, "measure_seconds": 1.0, "time_limit_seconds": 120.0}
        staged = methods in STAGED
        policy = Policy(
            methods=methods,
            micro_batch=8 if staged else 32,
            accumulation_steps=4 if staged else 1,
            gpu_count=ranks,
            mesh=Mesh(pipeline=ranks) if staged else DATA_ONLY,
        )
        workload = self._chain if staged else self._workload
        asked = {"workload": workload, "policy": policy, "device": "cpu", "largest_batch": 64, **limits}
        return self._runner.run(trial_of(kind, {**asked, **changes}))

    def predicted(self, *methods: MethodSetting, ranks: int = RANKS, rank: int = 0) -> MemoryPrediction:
        found = self.result(PredictTrial, methods, ranks, rank=rank)
        assert found.prediction is not None, found.reason
        return found.prediction

    def prediction_of(self, methods: Methods) -> MemoryPrediction:
        return self._predictions[str(methods)]

    def errors(self, methods: Methods) -> list[float]:
        """Relative error of the predicted peak at each batch that ranks ran; above 0 if it is too high."""
        found = self.result(SizeTrial, methods, RANKS)
        assert found.sizing is not None, found.reason
        prediction = self.prediction_of(methods)
        return [prediction.peak(one.micro_batch) / one.memory.peak_bytes - 1 for one in found.sizing.points]


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("ranks")
    with Runner(folder / "trials") as runner:
        yield Bed(folder, runner)


def test_more_devices_take_less_each_where_parameters_and_states_are_sliced(bed: Bed) -> None:
    sliced = SLICED[-1]
    few, many = bed.prediction_of(sliced), bed.predicted(*sliced, ranks=64)
    state = Category.OPTIMIZER_STATE
    assert few.breakdown(32)[state] > 20 * many.breakdown(32)[state], "small parameters are padded to a row each"
    assert few.peak(32) > many.peak(32)


def test_a_communication_hook_is_no_part_of_a_trace(bed: Bed) -> None:
    found = bed.result(PredictTrial, (ddp(bucket_views=True), use("gradient_compression", hook="fp16")), RANKS)
    assert found.prediction is None
    assert "a communication hook of DistributedDataParallel is not traced" in found.reason


@pytest.mark.parametrize("methods", PREDICTED, ids=lambda methods: "+".join(one.name for one in methods))
def test_the_peak_of_a_real_rank_is_predicted(bed: Bed, methods: Methods) -> None:
    errors = bed.errors(methods)
    assert all(abs(error) < 0.001 for error in errors), errors


@pytest.mark.parametrize("methods", STAGED, ids=lambda methods: methods[0].label)
def test_the_peak_of_the_fullest_stages_is_predicted_from_a_trace_of_each_rank(bed: Bed, methods: Methods) -> None:
    """All that is sent is held until the end of the step, beside what waits for its gradients of weights."""
    predicted = [bed.predicted(*methods, rank=rank) for rank in range(RANKS)]
    found = bed.result(SizeTrial, methods, RANKS)
    assert found.sizing is not None, found.reason
    for point in found.sizing.points:
        fullest = max(one.peak(point.micro_batch) for one in predicted)
        assert fullest == pytest.approx(point.memory.peak_bytes, rel=0.005)


@pytest.mark.parametrize("methods", SLICED, ids=lambda methods: "+".join(one.name for one in methods))
def test_where_parameters_are_gathered_the_peak_is_nearly_predicted(bed: Bed, methods: Methods) -> None:
    """When a block's whole parameters go depends on when ranks have sent theirs: it differs from run to run."""
    errors = bed.errors(methods)
    assert all(abs(error) < 0.05 for error in errors), errors
