"""PREDICT answers with the memory of every batch, or with the reason why a policy cannot be traced."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import advisor.methods.catalogue
import advisor.methods.compose
import tests.search.cutting_methods
from advisor.hardware.mesh import Mesh
from advisor.methods.setting import ParameterValue, use
from advisor.phase import Phase
from advisor.policy.policy import Policy
from advisor.training.training import Training
from advisor.trial.outcome import Outcome
from advisor.trial.result import PredictResult, TimeResult
from advisor.trial.spec import PredictTrial, TimeTrial
from advisor.trial.worker import predicting
from advisor.trial.worker.predicting import traced_batches
from advisor.trial.worker.run_trial import run_trial
from tests.trial.divided_models import trial
from tests.trial.specs import spec


def predicted(name: str = "tiny", **changes: object) -> PredictResult:
    return run_trial(spec(name, kind=PredictTrial, **changes), lambda text: None)[0]


def measured(policy: Policy) -> TimeResult:
    return run_trial(spec(kind=TimeTrial, policy=policy), lambda text: None)[0]


@pytest.mark.parametrize(("around", "traced"), [(1, (2, 4)), (4, (2, 4)), (5, (2, 5)), (64, (32, 64))])
def test_two_batches_are_traced_where_the_prediction_is_wanted(around: int, traced: tuple[int, int]) -> None:
    assert traced_batches(around) == traced


@pytest.mark.parametrize(
    "policy",
    [Policy(micro_batch=48), Policy(micro_batch=48, accumulation_steps=2)],
    ids=["one pass", "two passes"],
)
def test_it_says_what_a_real_step_takes(policy: Policy) -> None:
    prediction = predicted(policy=Policy(micro_batch=8, accumulation_steps=policy.accumulation_steps)).prediction
    real = measured(policy).measurement
    assert prediction is not None
    assert real is not None
    assert prediction.peak(48) == pytest.approx(real.memory.peak_bytes, abs=256)  # scalars that the engine makes
    assert prediction.accumulation_steps == policy.accumulation_steps


def test_of_several_devices_the_work_of_one_is_counted() -> None:
    sharded = use("fsdp", reshard=True, mixed_precision="none", offload=False)
    asked = trial((sharded,), count=2, kind=PredictTrial, counts_work=True)
    alone = trial(kind=PredictTrial, counts_work=True)
    works = [run_trial(one, lambda text: None)[0].work.work_at(4) for one in (asked, alone)]
    flops = [sum(one.flops for one in work) for work in works]
    assert flops[0] == flops[1] > 0, "each device has whole samples"
    assert "chunk_cat" in {one.operator for one in works[0]}, "what is copied to be sent is work of the device"


def test_the_work_of_many_passes_follows_from_two() -> None:
    """Two are traced; the optimizer steps once however many there are."""

    def flops_and_optimizer(passes: int) -> tuple[float, float]:
        policy = Policy(micro_batch=4, accumulation_steps=passes)
        work = predicted(policy=policy, counts_work=True).work
        assert work is not None
        at = work.work_at(4 * passes)
        optimizer = sum(one.moved_bytes for one in at if one.phase is Phase.OPTIMIZER)
        return sum(one.flops for one in at), optimizer

    once, twice, often = flops_and_optimizer(1), flops_and_optimizer(2), flops_and_optimizer(6)
    assert twice == (2 * once[0], once[1])
    assert often == (pytest.approx(6 * once[0]), once[1])


def test_a_model_that_reads_values_while_it_is_built_is_built_with_them() -> None:
    result = predicted("reading", model_size={"when": 1})
    assert result.prediction is not None, result.reason
    assert result.prediction.peak(8) == predicted("reading", model_size={"when": 0}).prediction.peak(8)  # type: ignore[union-attr]


def test_a_step_that_reads_values_is_not_traced_and_the_reason_says_so() -> None:
    result = predicted("reading", model_size={"when": 2})
    assert result.outcome is Outcome.OK
    assert result.prediction is None
    assert result.reason == "a step reads the value of a tensor (.item(), an if on a tensor), and a trace has no values"


def test_a_step_whose_shapes_depend_on_values_is_not_traced() -> None:
    result = predicted("reading", model_size={"when": 3})
    assert result.prediction is None
    assert "shape of a result depends on values" in result.reason


def test_a_method_that_does_not_apply_is_refused_as_in_every_trial() -> None:
    result = predicted(policy=Policy(methods=(use("few_bit_activation", bits=4),), micro_batch=4))
    assert result.outcome is Outcome.REFUSED
    assert result.prediction is None


@pytest.mark.parametrize(("limit_bytes", "trainings"), [(None, [(2, 4)]), (2**30, [(2,), (4,)])])
def test_an_allocator_is_replayed_from_the_first_step_of_each_training(
    limit_bytes: int | None, trainings: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trap: state that is made before the first step lies at the beginning, and nothing is in chunks."""
    traced: list[tuple[int, ...]] = []

    def trace(bench: object, micro_batches: tuple[int, ...]) -> list[object]:
        traced.append(micro_batches)
        return [object() for _ in micro_batches]

    monkeypatch.setattr(predicting, "_traced", trace)
    monkeypatch.setattr(predicting, "are_alike", lambda *_: True)
    asked = SimpleNamespace(policy=Policy(micro_batch=4), stands_for=None, allocator_limit_bytes=limit_bytes)
    assert len(predicting._traces(SimpleNamespace(spec=asked), (2, 4))) == 2  # type: ignore[arg-type]
    assert traced == trainings


class Stages(tests.search.cutting_methods.Stages):
    """The last stage has 1 MiB more of the model than the first."""

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        assert training.world.pipeline.size == 2
        if training.world.pipeline.rank == 1:
            training.model.head = torch.nn.Parameter(torch.zeros(2**18))


def test_a_prediction_stands_for_the_rank_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (advisor.methods.catalogue, advisor.methods.compose):
        monkeypatch.setattr(module, "CATALOGUE", (*advisor.methods.catalogue.CATALOGUE, Stages()))
    cut = Policy(methods=(use("stages"),), micro_batch=8, accumulation_steps=4, gpu_count=2, mesh=Mesh(pipeline=2))
    first, last = (predicted(policy=cut, rank=rank).prediction for rank in cut.axes.distinct_ranks(2))
    assert first is not None
    assert last is not None
    assert last.peak(8) == first.peak(8) + 2**20
    assert first.accumulation_steps == 4, "a pipeline has many micro-batches under way"
    assert spec(kind=PredictTrial, policy=cut).key == spec(kind=PredictTrial, policy=cut, rank=0).key
    assert spec(kind=PredictTrial, policy=cut).key != spec(kind=PredictTrial, policy=cut, rank=1).key


@pytest.mark.parametrize(
    ("mesh", "ranks"),
    [
        (Mesh(), [0]),
        (Mesh(tensor=4), [0]),
        (Mesh(pipeline=2), [0, 4]),
        (Mesh(tensor=2, pipeline=4), [0, 2, 4, 6]),
    ],
)
def test_one_rank_of_each_stage_is_traced(mesh: Mesh, ranks: list[int]) -> None:
    assert list(mesh.distinct_ranks(8)) == ranks


CHAIN = """
import torch


class Block(torch.nn.Module):
    def __init__(self, wide, deep):
        super().__init__()
        self.inner = torch.nn.Linear(wide, deep)

    def forward(self, hidden):
        return self.inner(hidden)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(8, 8) for _ in range(4))

    def forward(self, hidden):
        for block in self.blocks:
            hidden = block(hidden)
        return hidden.square().mean()


def build_model():
    return Model()


def make_batch(batch_size):
    return {"hidden": torch.randn(batch_size, 8)}


BLOCKS = (Block,)
"""


@pytest.mark.parametrize(
    ("change", "rank", "outcome", "reason"),
    [
        (
            ("hidden = block(hidden)", "hidden = hidden + block(hidden)"),
            1,
            Outcome.REFUSED,
            "is also used by something",
        ),
        (
            ("Block(8, 8) for _ in range(4)", "Block(8 - n, 7 - n) for n in range(4)"),
            0,
            Outcome.OK,
            "the blocks of stage 0 return hidden states of another shape ([2, 6]) than they are given ([2, 8])",
        ),
    ],
)
def test_a_stage_that_cannot_be_followed_alone_is_not_guessed_at(
    tmp_path: Path, change: tuple[str, str], rank: int, outcome: Outcome, reason: str
) -> None:
    path = tmp_path / "chain.py"
    path.write_text(CHAIN.replace(*change))
    stages = (use("pipeline", schedule="gpipe"),)
    asked = trial(stages, mesh=Mesh(pipeline=2), count=2, accumulation_steps=2, path=path, kind=PredictTrial, rank=rank)
    found, _ = run_trial(asked, lambda text: None)
    assert found.outcome is outcome
    assert found.prediction is None
    assert reason in found.reason
    assert "Error" not in found.reason
