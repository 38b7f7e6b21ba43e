"""A few dozen steps compared with the reference run: what is recorded and detected, and every way to end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from advisor.decide.guard import observed_class, why_worse
from advisor.goal import Fidelity
from advisor.measure.fidelity import FidelityMeasurement, FidelityRecord, NoiseFloor, compared, noise_floor
from advisor.measure.speed.thread_rates import sharing_among
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import fidelity_of, settings_of
from advisor.methods.setting import MethodSetting, use
from advisor.trial.outcome import Outcome
from advisor.trial.result import FidelityResult
from advisor.trial.spec import FidelityTrial
from tests.methods.quick_compiler import quick_compiler
from tests.methods.tiny import uncompiled_optimizers
from tests.trial.test_run_trial import Bed

# Three blocks are the fewest for every method, and small batches tell as much: bfloat16 is slow where it is emulated.
_MODELS = """
import torch
from tests.methods import tiny

def build_model():
    return tiny.{model}{dropout})

def build_optimizer(parameters):
    return {optimizer}

def make_batch(batch_size):
    return tiny.{batch}, seed=int(torch.randint(0, 1000, ())))
"""
_BUILD = {"gpt2": "gpt2(layers=3, ", "convnet": "convnet("}
_BATCH = {"gpt2": "text(batch_size, 32", "convnet": "images(batch_size, side=16"}
_ADAM, _SGD = "torch.optim.AdamW(parameters, lr=1e-3)", "torch.optim.SGD(parameters, lr=0.05, momentum=0.9)"


def workload(model: str, optimizer: str = _ADAM, dropout: str = "") -> str:
    return _MODELS.format(model=_BUILD[model], optimizer=optimizer, dropout=dropout, batch=_BATCH[model])


class Runs(Bed):
    """Reference runs of workloads and runs to compare, each made once: runs with the same seed are identical."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._exact: dict[tuple[str, int], tuple[FidelityRecord, str]] = {}
        self._chance: dict[tuple[str, int], FidelityMeasurement] = {}

    def result(self, text: str, *settings: MethodSetting, **changes: Any) -> FidelityResult:
        options = {"kind": FidelityTrial, "micro_batch": 2, "fidelity_steps": 30, "measure_seconds": 60.0}
        return self.run(text, methods=settings, **{**options, **changes})

    def record(self, text: str, *settings: MethodSetting, **changes: Any) -> FidelityRecord:
        result = self.result(text, *settings, **changes)
        assert result.outcome is Outcome.OK, result
        assert result.fidelity is not None
        return result.fidelity

    def exact(self, text: str, seed: int = 0) -> FidelityRecord:
        return self._exact_and_gradient(text, seed)[0]

    def gradient(self, text: str, seed: int = 0) -> str:
        """The file of the reference run's first gradient."""
        return self._exact_and_gradient(text, seed)[1]

    def beside(
        self, text: str, *settings: MethodSetting, exact: str | None = None, seed: int = 0, **changes: Any
    ) -> FidelityMeasurement:
        """A run compared with the reference run of ``exact``, by default the same workload."""
        plain = exact or text
        watched, gradient = tuple(self.exact(plain, seed).state), self.gradient(plain, seed)
        own = self.record(text, *settings, reference_gradient=gradient, watched_state=watched, seed=seed, **changes)
        return self.compared(own, exact or text, seed)

    def compared(self, own: FidelityRecord, exact: str, seed: int = 0) -> FidelityMeasurement:
        found = compared(own, self.exact(exact, seed), reference="plain", micro_batch=2)
        assert found is not None
        return found

    def by_chance(self, text: str, seed: int = 0) -> FidelityMeasurement:
        if (text, seed) not in self._chance:
            self._chance[text, seed] = self.beside(text, seed=seed, other_chance=True)
        return self._chance[text, seed]

    def noise(self, text: str, seed: int = 0) -> NoiseFloor:
        watched, gradient = tuple(self.exact(text, seed).state), self.gradient(text, seed)
        own = self.record(text, reference_gradient=gradient, watched_state=watched, seed=seed, other_chance=True)
        found = noise_floor(own, self.exact(text, seed))
        assert found is not None
        return found

    def _exact_and_gradient(self, text: str, seed: int) -> tuple[FidelityRecord, str]:
        if (text, seed) not in self._exact:
            gradient = str(self.folder / "trials" / f"exact-{len(self._exact)}" / "gradient.pt")
            self._exact[text, seed] = self.record(text, write_gradient_to=gradient, seed=seed), gradient
            assert self.leftover == ""
        return self._exact[text, seed]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


def test_the_reference_run_is_reproducible(runs: Runs) -> None:
    text = workload("gpt2")
    first = runs.exact(text)
    assert len(first.losses) == 30
    assert first.distinct_batches == 4
    assert first.gradient is None
    again = runs.beside(text)
    assert again.loss_drift == 0.0
    assert again.gradient is not None
    assert again.gradient.error == 0.0
    assert again.learned > 0


_COLLECTING = """
import torch

class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.activation, self.norms = torch.nn.Linear(8, 8), torch.nn.Tanh(), []
        self.calls = 0

    def forward(self, hidden):
        self.calls += 1
        self.norms.append(float(hidden.detach().norm()))
        return hidden + self.activation(self.linear(hidden))

def build_model():
    return torch.nn.Sequential(torch.nn.Sequential(*(Block() for _ in range(4))), torch.nn.Linear(8, 8))

def make_batch(batch_size):
    return torch.randn(batch_size, 8)

def compute_loss(model, batch):
    return model(batch).square().mean()
"""


def test_what_a_module_collects_is_collected_once_under_recomputation(runs: Runs) -> None:
    assert runs.beside(_COLLECTING).state == ()
    found = runs.beside(_COLLECTING, use("checkpoint", every=1))
    assert found.gradient is not None
    assert (found.gradient.error, found.state) == (0.0, ())


def test_what_a_recomputation_does_twice_although_the_gradient_is_the_same_is_found(runs: Runs) -> None:
    """The trap: no gradient shows that a number of the class, whose modules others hold too, has grown twice."""
    counting = _COLLECTING.replace("        self.calls += 1", "        Block.every_call += 1").replace(
        "class Block(torch.nn.Module):", "class Block(torch.nn.Module):\n    every_call = 0\n"
    )
    assert runs.beside(counting).state == ()
    found = runs.beside(counting, use("checkpoint", every=1))
    assert found.gradient is not None
    assert found.gradient.error == 0.0
    assert [(error.name, error.change / error.exact) for error in found.state] == [("Block.every_call", 2.0)]
    assert observed_class(Fidelity.EXACT, found) is None


def test_chance_alone_differs_in_the_dropout_masks_and_by_a_rounding(runs: Runs) -> None:
    found = runs.by_chance(workload("gpt2"))
    assert found.gradient is not None
    assert 0.1 < found.gradient.error < 1.0
    assert found.gradient.norm_ratio == pytest.approx(1.0, abs=0.1)
    found = runs.by_chance(workload("gpt2", dropout="dropout=0.0"))
    assert found.gradient is not None
    assert 0.0 < found.gradient.error < 1e-5, "parameters one rounding off"
    assert 0.0 < found.loss_drift < 1e-4


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("model", "optimizer"), [("gpt2", _ADAM), ("gpt2", _SGD), ("convnet", _SGD)])
@pytest.mark.parametrize("setting", [use("checkpoint", every=1), use("precision", dtype="bf16")], ids=lambda u: u.label)
def test_exact_and_16_bit_training_is_within_its_class_whatever_the_seed(
    runs: Runs, model: str, optimizer: str, setting: MethodSetting, seed: int
) -> None:
    found = runs.beside(workload(model, optimizer), setting, seed=seed)
    assert observed_class(fidelity_of(setting), found) is fidelity_of(setting), found


_LEARNS = ("compress_activations",)
"""With random gradients, but of so little noise in the first setting that nothing shows."""


def _of_one_device() -> list[MethodSetting]:
    # Random gradients learn more slowly at first: whether too slowly, and so no winner, is for the guard to say.
    methods = [
        method
        for method in CATALOGUE
        if not (method.distributes or method.builds_on) and (not method.random_gradients or method.name in _LEARNS)
    ]
    return [setting for method in methods for setting in settings_of(method)[:1]]


_WITH_KERNELS = ("convnet",)
"""Where models are compiled to kernels. It takes twenty seconds for the transformer, whose graphs are run as they
are; so are steps of optimizers, whose kernels are compared with them in their own tests."""


@contextlib.contextmanager
def _few_kernels(model: str) -> Iterator[None]:
    with contextlib.nullcontext() if model in _WITH_KERNELS else quick_compiler(), uncompiled_optimizers():
        yield


_CALIBRATED = [
    (model, setting)
    for model in ("gpt2", "convnet")
    for setting in _of_one_device()
    # What is exact has the gradients of plain training to the bit on both: tests/contract.
    if model == "gpt2" or fidelity_of(setting) is not Fidelity.EXACT
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "setting"), _CALIBRATED, ids=[f"{model}-{setting.label}" for model, setting in _CALIBRATED]
)
@pytest.mark.filterwarnings("ignore")
def test_what_the_catalogue_declares_is_what_the_guard_sees(runs: Runs, model: str, setting: MethodSetting) -> None:
    """The calibration. Where information is thrown away the loss must not be: how far off it is, is no promise."""
    text, declared = workload(model), fidelity_of(setting)
    gradient = runs.gradient(text)
    with _few_kernels(model):
        result = runs.result(text, setting, reference_gradient=gradient)
    if result.outcome is Outcome.REFUSED:
        pytest.skip(result.reason)
    assert result.fidelity is not None, result
    found = runs.compared(result.fidelity, text)
    if get_method(setting.name).other_masks:
        found = _with(found, runs.noise(text))
    observed = observed_class(declared, found)
    if declared.rank <= Fidelity.PRECISION.rank:
        assert observed is declared, why_worse(declared, found)
    else:
        assert observed is not None, why_worse(declared, found)


@pytest.mark.parametrize("model", ["gpt2", "convnet"])
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("factor", [10, 0.1])
def test_another_learning_rate_is_no_precision(runs: Runs, model: str, seed: int, factor: float) -> None:
    text = workload(model)
    other = text.replace("lr=1e-3", f"lr={1e-3 * factor}")
    found = runs.beside(other, exact=text, seed=seed)
    observed = observed_class(Fidelity.PRECISION, _with(found, runs.noise(text, seed)))
    assert observed in (None, Fidelity.LOSSY, Fidelity.MODEL)


@pytest.mark.parametrize("model", ["gpt2", "convnet"])
def test_a_rate_that_learns_nothing_is_broken_in_every_class_that_learns_the_same(runs: Runs, model: str) -> None:
    text = workload(model)
    found = runs.beside(text.replace("lr=1e-3", "lr=1e-7"), exact=text)
    assert observed_class(Fidelity.LOSSY, found) is None
    assert observed_class(Fidelity.MODEL, found) is Fidelity.MODEL, "another model may be slow; the answer has the loss"


@pytest.mark.parametrize("model", ["gpt2", "convnet"])
def test_a_training_that_goes_up_is_broken_in_every_class(runs: Runs, model: str) -> None:
    text = workload(model)
    found = runs.beside(text.replace("lr=1e-3", "lr=1e-3, maximize=True"), exact=text)
    assert observed_class(Fidelity.MODEL, found) is None


@pytest.mark.parametrize("model", ["gpt2", "convnet"])
def test_a_gradient_1_3_times_too_long_is_caught_although_adam_hides_it_from_the_loss(runs: Runs, model: str) -> None:
    text = workload(model)
    scaled = text + (
        "\n_build = build_model\n"
        "def build_model():\n"
        "    model = _build()\n"
        "    for parameter in model.parameters():\n"
        "        parameter.register_hook(lambda gradient: 1.3 * gradient)\n"
        "    return model\n"
    )
    found = runs.beside(scaled, exact=text)
    assert found.loss_drift < 1e-3
    noisy = _with(found, runs.noise(text))
    assert observed_class(Fidelity.PRECISION, noisy) is Fidelity.LOSSY
    for declared in (Fidelity.EXACT, Fidelity.ROUNDING):
        assert observed_class(declared, noisy) is None, "it promised plain training's own gradient"


def _with(found: FidelityMeasurement, noise: NoiseFloor) -> FidelityMeasurement:
    return msgspec.structs.replace(found, noise=noise)


def test_slow_steps_end_early_but_not_before_there_are_some(runs: Runs) -> None:
    assert len(runs.record(workload("convnet"), measure_seconds=0.0).losses) == 6


def test_a_loss_that_is_lost_on_the_way_is_the_outcome_diverged(runs: Runs) -> None:
    text = workload("convnet", "torch.optim.SGD(parameters, lr=1e30)")
    result = runs.run(text, kind=FidelityTrial, micro_batch=2, fidelity_steps=30)
    assert result.outcome is Outcome.DIVERGED
    assert result.fidelity is None


def test_what_does_not_fit_is_out_of_memory(runs: Runs) -> None:
    result = runs.run(workload("gpt2"), kind=FidelityTrial, micro_batch=2, memory_limit_bytes=10**6)
    assert result.outcome is Outcome.OUT_OF_MEMORY


def test_the_gradient_on_the_host_is_no_memory_of_the_training(runs: Runs) -> None:
    """The trap: on a CPU the copy would count, and a model that just fits would not."""
    text = workload("gpt2")
    steps = {"kind": FidelityTrial, "micro_batch": 2, "fidelity_steps": 3}
    needed = runs.size(text, micro_batch=2, largest_batch=2).points[0].memory.peak_bytes
    assert runs.run(text, memory_limit_bytes=int(1.01 * needed), **steps).outcome is Outcome.OK


def test_float16_finds_its_scale_before_its_gradient_counts(runs: Runs) -> None:
    found = runs.beside(workload("gpt2", dropout="dropout=0.0"), use("precision", dtype="fp16"))
    assert found.gradient is not None
    assert found.gradient.error < 0.01
    assert observed_class(Fidelity.PRECISION, found) is Fidelity.PRECISION


def test_runs_are_told_apart_by_chance_and_not_by_where_their_gradient_is(runs: Runs) -> None:
    def spec(**changes: Any) -> str:
        return runs.spec(kind=FidelityTrial, micro_batch=2, methods=(), **changes).key

    assert spec() != spec(other_chance=True)
    assert spec() == spec(write_gradient_to="somewhere", reference_gradient="elsewhere")


_THREADS = """
import torch

def build_model():
    return torch.nn.Linear(4, 1)

def make_batch(batch_size):
    return {"input": torch.ones(batch_size, 4)}

def compute_loss(model, batch):
    return model(**batch).mean() * 0 + torch.get_num_threads()
"""


@pytest.mark.parametrize(
    ("rates", "settings", "threads"),
    [
        ({}, (), 4),
        ({1: 50.0, 2: 70.0, 4: 100.0}, (), 4),
        ({1: 50.0, 2: 100.0, 4: 10.0}, (), 2),
        ({1: 50.0, 2: 100.0, 4: 10.0}, (use("intraop_threads", count=1),), 1),
    ],
    ids=["unknown", "idle", "busy", "busy, on fewer still"],
)
def test_nothing_is_timed_so_that_beside_other_processes_fewer_threads_compare(
    rates: dict[int, float], settings: tuple[MethodSetting, ...], threads: int, tmp_path: Path
) -> None:
    with sharing_among(4):
        record = Runs(tmp_path).record(_THREADS, *settings, fidelity_steps=3, thread_rates=rates)
        assert torch.get_num_threads() == 4
    assert record.losses == (threads,) * 3
