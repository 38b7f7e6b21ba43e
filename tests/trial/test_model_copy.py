"""A process whose trials it cannot fork builds a large model once; a copy is used only where it is the same model."""

from __future__ import annotations

import random
import threading
import time
import types
from collections.abc import Callable, Iterator
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
from tests.trial.logged import Logged
from tests.trial.specs import my_children, spec

KEPT: list[Any] = []
"""What a user's module may go on referring to."""


KEPT_APART = object()


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
        self.calls = 0
        self.register_forward_pre_hook(self.counted)

    def counted(self, module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
        self.calls += 1

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.embedding(tokens)))


class Counted:
    """A function that builds, and how often it did."""

    def __init__(self, build: Callable[[], torch.nn.Module] = Rich) -> None:
        self._build = build
        self.count = 0

    def __call__(self) -> torch.nn.Module:
        self.count += 1
        return self._build()


@pytest.fixture(autouse=True)
def worth_it(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every model is large enough, and loaded sooner than it is built."""
    monkeypatch.setattr(model_copy, "_WORTH_SECONDS", 0.0)
    begin = time.perf_counter()
    ticks = iter(range(100, 0, -1))
    monkeypatch.setattr(model_copy, "time", SimpleNamespace(perf_counter=lambda: begin - next(ticks) ** 2))
    yield
    KEPT.clear()


def drawn() -> tuple[float, float, float]:
    return torch.rand(1).item(), random.random(), numpy.random.rand()


# ---- what a copy is


def test_a_second_trial_gets_the_model_as_it_was_built() -> None:
    build = Counted()
    copy = ModelCopy()
    first = copy.model(spec(), build)
    state = {name: value.clone() for name, value in first.state_dict().items()}
    table, scale, offset = first.table.clone(), first.scale, first.offset
    then = drawn()
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.zero_()  # what training does
    del first, parameter
    second = copy.model(spec(), build)
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
    second(torch.arange(10)).sum().backward()
    assert second.calls == 1, "a hook is a method of the copy"
    assert second.embedding.weight.grad is not None


def test_every_trial_gets_a_model_of_its_own() -> None:
    build, copy = Counted(), ModelCopy()
    del (first := [copy.model(spec(), build)])[:]
    one, other = copy.model(spec(), build), copy.model(spec(), build)
    assert (first, build.count) == ([], 1)
    assert {id(each) for each in one.parameters()}.isdisjoint(map(id, other.parameters()))
    assert one.frozen.data_ptr() != other.frozen.data_ptr()


def test_another_seed_size_or_model_is_built(tmp_path: Path) -> None:
    build, copy = Counted(), ModelCopy()
    plain = spec()
    other = msgspec.structs.replace(plain.workload, fingerprint="other")
    for number, changes in enumerate(({}, {"seed": 1}, {"model_size": {"layers": 2}}, {"workload": other}), 1):
        copy.model(msgspec.structs.replace(plain, **changes), build)
        assert build.count == number


@pytest.mark.parametrize("kind", [PredictTrial, CountTrial])
def test_what_is_built_on_fake_tensors_is_neither_kept_nor_a_copy(kind: type[Any]) -> None:
    build, copy = Counted(), ModelCopy()
    copy.model(spec(kind=kind), build)
    assert copy.held_bytes == 0
    copy.model(spec(), build)
    assert copy.held_bytes > 0
    copy.model(spec(kind=kind), build)
    assert build.count == 3


# ---- when there is none


class _PicklesItself(torch.nn.Linear):
    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "scale"}


class _ByIdentity(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.scales = {id(self.weight): 2.0}


def _with(name: str, value: Callable[[torch.nn.Module], Any], *, size: int = 4) -> Callable[[], torch.nn.Module]:
    def build() -> torch.nn.Module:
        model = torch.nn.Linear(size, size)
        setattr(model, name, value(model))
        return model

    return build


def forward(model: torch.nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    """What a user puts into a model in place of its own method, which has the same name."""
    return 2 * inputs


def _sparse() -> torch.nn.Module:
    model = torch.nn.Linear(4, 4)
    model.register_buffer("graph", torch.eye(4).to_sparse())
    return model


def _kept() -> torch.nn.Module:
    model = Rich()
    KEPT.append(model.norm)
    return model


def _parametrized() -> torch.nn.Module:
    return torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(4, 4))


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(_with("scaled", lambda model: lambda x: model.weight * x), id="a lambda of its parameters"),
        pytest.param(_with("lock", lambda model: threading.Lock()), id="a lock"),
        pytest.param(lambda: _PicklesItself(4, 4), id="a class that leaves out something"),
        pytest.param(_ByIdentity, id="parameters by their identity"),
        pytest.param(_with("forward", lambda model: types.MethodType(forward, model)), id="a replaced method"),
        pytest.param(_with("hooks", lambda model: [types.MethodType(forward, model)]), id="one in a list"),
        pytest.param(_with("unset", lambda model: KEPT_APART), id="an object told by what it is"),
        pytest.param(_sparse, id="a sparse buffer"),
        pytest.param(_kept, id="a part that something else refers to"),
        pytest.param(_parametrized, id="parametrized weights"),
        pytest.param(lambda: torch.nn.Linear(4, 4, device="meta"), id="not on the host"),
        pytest.param(lambda: torch.nn.LazyLinear(4), id="not built yet"),
    ],
)
def test_a_model_that_a_copy_would_not_be_is_built_for_every_trial(build: Callable[[], torch.nn.Module]) -> None:
    counted, copy = Counted(build), ModelCopy()
    for number in range(1, 4):
        model = copy.model(spec(), counted)
        assert counted.count == number
        del model


def test_a_model_still_in_use_is_not_copied_until_it_is_gone() -> None:
    build, copy = Counted(), ModelCopy()
    first = copy.model(spec(), build)
    copy.model(spec(), build)
    assert build.count == 2
    del first
    copy.model(spec(), build)
    assert build.count == 2


def test_a_small_model_is_built_for_every_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_copy, "_WORTH_SECONDS", 1e6)
    build, copy = Counted(), ModelCopy()
    for _ in range(2):
        copy.model(spec(), build)
    assert (build.count, copy.held_bytes) == (2, 0)


@pytest.mark.parametrize(("ranks", "numbers", "copied"), [(1, 1, True), (4, 1, False), (1, 20_000, False)])
def test_the_copies_of_all_ranks_must_fit_with_all_that_models_refer_to(
    monkeypatch: pytest.MonkeyPatch, ranks: int, numbers: int, copied: bool
) -> None:
    available = SimpleNamespace(available=40_000 / model_copy._MOST_OF_MEMORY)
    monkeypatch.setattr(model_copy.psutil, "virtual_memory", lambda: available)
    copy = ModelCopy()
    policy = Policy(micro_batch=4, gpu_count=ranks)
    # 17 KB of parameters, and a data set that is none.
    copy.model(spec(policy=policy), _with("data", lambda model: torch.zeros(numbers), size=64))
    assert (copy.held_bytes > 0) is copied


def test_a_copy_that_takes_longer_than_building_is_used_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 10.0, 12.0, 20.0, 21.0])  # builds for 1 s, loads for 2 s, builds again
    monkeypatch.setattr(model_copy, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    build, copy = Counted(), ModelCopy()
    counts = []
    for _ in range(3):
        copy.model(spec(), build)
        counts.append(build.count)
    assert counts == [1, 1, 2]
    assert copy.held_bytes == 0


# ---- trials


def test_trials_that_share_a_copy_measure_what_each_would_alone(tmp_path: Path) -> None:
    workload = Logged(tmp_path / "workload")
    policy = Policy(methods=(use("lora", rank=8),), micro_batch=8)
    trials = [workload.spec(policy=policy, measure_seconds=0.1, repeat=repeat) for repeat in range(3)]
    # First: what libraries log when they are loaded has tracebacks, which pytest keeps with all that they refer to.
    alone, _ = run_trial(trials[0], lambda text: None)
    copy = ModelCopy()
    shared = [run_trial(trial, lambda text: None, model_copy=copy) for trial in trials]
    assert [leftover for _, leftover in shared] == [""] * 3
    assert len(workload.processes("build")) == 2, "once for the three, once alone"
    traces = {result.measurement.loss_trace[:5] for result, _ in shared}
    assert traces == {alone.measurement.loss_trace[:5]}
    assert len({result.measurement.memory.peak_bytes for result, _ in shared}) == 1


_SLOW = """
import threading
import time

threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
quick_build = build_model


def build_model():
    time.sleep(1.0)
    return quick_build()
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_worker_and_every_rank_build_a_slow_model_once(tmp_path: Path, ranks: int) -> None:
    workload = Logged(tmp_path / "workload", _SLOW)
    methods = () if ranks == 1 else (use("ddp", bucket_views=True, static_graph=False),)
    policy = Policy(methods=methods, micro_batch=4, gpu_count=ranks)
    with Runner(tmp_path / "study") as runner:
        results = [runner.run(workload.spec(policy=policy, repeat=repeat, measure_seconds=0.1)) for repeat in range(3)]
    assert [result.outcome for result in results] == [Outcome.OK] * 3, results
    assert my_children() == []
    built = workload.processes("build")
    assert len(set(built)) == len(built) == ranks, built
    losses = {result.measurement.loss_trace[0] for result in results}
    assert len(losses) == 1
