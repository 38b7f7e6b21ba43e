"""A process whose trials cannot be forked builds a large model from a config once, and trains copies that are the same.

A user's own model is built for every trial: what it means besides its parameters is not in a copy.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy
import pytest
import torch

from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import CountTrial, PredictTrial
from advisor.trial.worker import model_copy
from advisor.trial.worker.model_copy import ModelCopy
from advisor.trial.worker.run_trial import run_trial
from advisor.workload.workload import Stated, WorkloadKind, WorkloadSource
from tests.trial.logged import Logged
from tests.trial.specs import my_children, spec

_SMALL = {
    "model_type": "bert",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 256,
    "max_position_embeddings": 64,
}


class Rich(torch.nn.Module):
    """Tied and frozen parameters, buffers of both kinds, parts that evaluate, tensors in other layouts."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(10, 8)
        self.head = torch.nn.Linear(8, 10, bias=False)
        self.head.weight = self.embedding.weight
        self.norm = torch.nn.BatchNorm1d(8).eval()
        self.frozen = torch.nn.Parameter(torch.randn(4, 6).t(), requires_grad=False)
        self.register_buffer("table", torch.rand(3), persistent=False)
        self.register_buffer("part_of_it", self.table[1:])
        self.scale = random.random()
        self.offset = numpy.random.rand()


class Counted:
    """A function that builds, and how often it did."""

    def __init__(self, build: Callable[[], torch.nn.Module] = Rich) -> None:
        self._build = build
        self.count = 0

    def __call__(self) -> torch.nn.Module:
        self.count += 1
        return self._build()


def from_config(**changes: Any) -> Any:
    """A trial of a model that is built from a config."""
    source = WorkloadSource(kind=WorkloadKind.HUGGING_FACE, location="gpt2", name="gpt2", fingerprint="gpt2")
    return msgspec.structs.replace(spec(**changes), workload=source)


@pytest.fixture(autouse=True)
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is large enough, and loaded sooner than it is built."""
    monkeypatch.setattr(model_copy, "_WORTH_SECONDS", 0.0)
    begin, ticks = time.perf_counter(), iter(range(100, 0, -1))
    monkeypatch.setattr(model_copy, "time", SimpleNamespace(perf_counter=lambda: begin - next(ticks) ** 2))


def drawn() -> tuple[float, float, float]:
    return torch.rand(1).item(), random.random(), numpy.random.rand()


# ---- what a copy is


def test_a_second_trial_gets_the_model_as_it_was_built() -> None:
    build, copy = Counted(), ModelCopy()
    first = copy.model(from_config(), build)
    state = {name: value.clone() for name, value in first.state_dict().items()}
    table, scale, offset = first.table.clone(), first.scale, first.offset
    then = drawn()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()  # what training does
    second = copy.model(from_config(), build)
    assert build.count == 1
    assert drawn() == then, "what a method draws afterwards is the same"
    assert {name: value.tolist() for name, value in second.state_dict().items()} == {
        name: value.tolist() for name, value in state.items()
    }
    assert (second.table.tolist(), second.scale, second.offset) == (table.tolist(), scale, offset)
    assert second.head.weight is second.embedding.weight
    assert second.part_of_it.untyped_storage()._cdata == second.table.untyped_storage()._cdata
    assert (second.frozen.requires_grad, second.frozen.stride()) == (False, (1, 6))
    assert (second.training, second.norm.training) == (True, False)


def test_every_trial_gets_a_model_of_its_own() -> None:
    build, copy = Counted(), ModelCopy()
    models = [copy.model(from_config(), build) for _ in range(3)]
    assert build.count == 1
    assert len({parameter.data_ptr() for model in models for parameter in model.parameters()}) == 3 * 4


def test_another_seed_size_or_model_is_built() -> None:
    build, copy = Counted(), ModelCopy()
    plain = from_config()
    other = msgspec.structs.replace(plain.workload, fingerprint="other")
    for number, changes in enumerate(({}, {"seed": 1}, {"model_size": {"layers": 2}}, {"workload": other}), 1):
        copy.model(msgspec.structs.replace(plain, **changes), build)
        assert build.count == number


# ---- when there is none


@pytest.mark.parametrize("kind", [WorkloadKind.FILE, WorkloadKind.FUNCTIONS])
def test_a_users_model_is_built_for_every_trial(kind: WorkloadKind) -> None:
    build, copy, plain = Counted(), ModelCopy(), spec()
    own = msgspec.structs.replace(plain, workload=msgspec.structs.replace(plain.workload, kind=kind))
    for number in range(1, 3):
        copy.model(own, build)
        assert (build.count, copy.held_bytes) == (number, 0)


@pytest.mark.parametrize("kind", [PredictTrial, CountTrial])
def test_what_is_built_on_fake_tensors_is_neither_kept_nor_a_copy(kind: type[Any]) -> None:
    build, copy = Counted(), ModelCopy()
    copy.model(from_config(kind=kind), build)
    assert copy.held_bytes == 0
    copy.model(from_config(), build)
    assert copy.held_bytes > 0
    copy.model(from_config(kind=kind), build)
    assert build.count == 3


def _with_a_lambda() -> torch.nn.Module:
    model = torch.nn.Linear(4, 4)
    model.scaled = lambda x: model.weight * x
    return model


def _parametrized() -> torch.nn.Module:
    return torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))


def _with_a_sparse_buffer() -> torch.nn.Module:
    model = torch.nn.Linear(4, 4)
    model.register_buffer("graph", torch.eye(4).to_sparse())
    return model


def _with_a_hooked_parameter() -> torch.nn.Module:
    model = torch.nn.Linear(4, 4)
    model.weight.register_hook(torch.zeros_like)
    return model


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(_with_a_lambda, id="a lambda of its parameters"),
        pytest.param(_parametrized, id="parametrized weights"),
        pytest.param(_with_a_sparse_buffer, id="a sparse buffer"),
        pytest.param(_with_a_hooked_parameter, id="a parameter with a hook"),
    ],
)
def test_what_cannot_be_pickled_as_it_is_is_built_for_every_trial(build: Callable[[], torch.nn.Module]) -> None:
    counted, copy = Counted(build), ModelCopy()
    for number in range(1, 4):
        copy.model(from_config(), counted)
        assert (counted.count, copy.held_bytes) == (number, 0)


class Unloadable(torch.nn.Linear):
    def __setstate__(self, state: dict[str, Any]) -> None:
        torch.rand(1)
        raise RuntimeError("this object is only ever built")


def test_a_copy_that_cannot_be_loaded_is_no_failure_and_draws_nothing() -> None:
    build, copy = Counted(lambda: Unloadable(4, 4)), ModelCopy()
    copy.model(from_config(), build)
    torch.manual_seed(0)
    then = copy.model(from_config(), build)
    torch.manual_seed(0)
    assert then.weight.equal(Unloadable(4, 4).weight)
    assert (build.count, copy.held_bytes) == (2, 0)


def test_generators_are_restored_whatever_the_default_device() -> None:
    build, copy = Counted(), ModelCopy()
    with torch.device("meta"):
        copy.model(from_config(), build)


def test_a_small_model_is_built_for_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_copy, "_WORTH_SECONDS", 1e6)
    build, copy = Counted(), ModelCopy()
    for _ in range(2):
        copy.model(from_config(), build)
    assert (build.count, copy.held_bytes) == (2, 0)


@pytest.mark.parametrize(("ranks", "copied"), [(1, True), (4, False)])
def test_the_copies_of_all_ranks_must_fit(monkeypatch: pytest.MonkeyPatch, ranks: int, copied: bool) -> None:
    size = sum(one.nbytes for one in torch.nn.Linear(64, 64).parameters())
    available = SimpleNamespace(available=2 * size / model_copy._MOST_OF_MEMORY)
    monkeypatch.setattr(model_copy.psutil, "virtual_memory", lambda: available)
    copy = ModelCopy()
    copy.model(from_config(policy=Policy(micro_batch=4, gpu_count=ranks)), lambda: torch.nn.Linear(64, 64))
    assert (copy.held_bytes > 0) is copied


def test_a_copy_that_takes_longer_than_building_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 10.0, 12.0, 20.0, 21.0])  # builds for 1 s, loads for 2 s, builds again
    monkeypatch.setattr(model_copy, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    build, copy = Counted(), ModelCopy()
    counts = []
    for _ in range(3):
        copy.model(from_config(), build)
        counts.append(build.count)
    assert counts == [1, 1, 2]
    assert copy.held_bytes == 0


# ---- trials


def test_trials_that_share_a_copy_measure_what_each_would_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.json"
    config.write_bytes(msgspec.json.encode(_SMALL))
    source = WorkloadSource(
        kind=WorkloadKind.HUGGING_FACE, location=str(config), name="gpt2", fingerprint="small", stated=Stated()
    )
    policy = Policy(methods=(use("lora", rank=8),), micro_batch=4)
    plain = msgspec.structs.replace(spec(policy=policy, measure_seconds=0.1), workload=source)
    trials = [msgspec.structs.replace(plain, repeat=repeat) for repeat in range(3)]
    alone, _ = run_trial(trials[0], lambda text: None)
    load, loads = ModelCopy._loaded, []

    def noted(*given: Any) -> torch.nn.Module | None:
        model = load(*given)
        loads.append(model is not None)
        return model

    monkeypatch.setattr(ModelCopy, "_loaded", noted)
    copy = ModelCopy()
    shared = [run_trial(trial, lambda text: None, model_copy=copy) for trial in trials]
    assert loads == [True, True], "all but the first"
    assert [(result.reason, leftover) for result, leftover in shared] == [("", "")] * 3
    assert {result.outcome for result, _ in shared} == {Outcome.OK}
    traces = {result.measurement.loss_trace[:5] for result, _ in shared}
    assert traces == {alone.measurement.loss_trace[:5]}
    assert len({result.measurement.memory.peak_bytes for result, _ in shared}) == 1


_THREAD = """
import threading
import time

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
"""


@pytest.mark.slow
def test_a_worker_that_cannot_fork_builds_nothing_before_the_trial(tmp_path: Path) -> None:
    workload = Logged(tmp_path / "workload", _THREAD)
    with Runner(tmp_path / "study") as runner:
        results = [runner.run(workload.spec(repeat=repeat, measure_seconds=0.1)) for repeat in range(2)]
    assert my_children() == []
    assert [result.outcome for result in results] == [Outcome.OK] * 2, results
    assert len(workload.processes("build")) == 2, "once for each trial"
