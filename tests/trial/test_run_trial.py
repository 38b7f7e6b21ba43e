"""What a worker does in a trial, run in this process: outcomes, tracebacks, determinism, batches."""

from __future__ import annotations

import hashlib
import itertools
import math
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.measure.measurement import Measurement, Sizing, StopReason
from advisor.measure.memory.cpu import CpuMemory
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.training.training import Training
from advisor.trial.outcome import Outcome
from advisor.trial.spec import FidelityTrial, PredictTrial, ProbeTrial, SizeTrial, TimeTrial, Trial
from advisor.trial.worker import sizing, timed_steps
from advisor.trial.worker.bench import Bench
from advisor.trial.worker.run_trial import run_trial
from advisor.workload.batch_layout import BatchLayout
from advisor.workload.workload import Stated, WorkloadKind, WorkloadSource
from tests.trial.specs import trial_of, up_to

_PLAIN = """
import torch

def build_model():
    return torch.nn.Sequential(
        torch.nn.Linear(16, 128), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(128, 128),
        torch.nn.ReLU(), torch.nn.Linear(128, 8))

def make_batch(batch_size):
    return torch.randn(batch_size, 16), torch.randint(0, 8, (batch_size,))

def compute_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


class Bed:
    """Runs trials of workloads that are written down in the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.leftover = ""

    def spec(
        self,
        text: str = _PLAIN,
        *,
        kind: type[Trial[Any]],
        micro_batch: int,
        methods: tuple[MethodSetting, ...],
        **changes: Any,
    ) -> Any:
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        path = self.folder / f"workload_{digest}.py"
        path.write_text(text)
        fields: dict[str, Any] = {"max_timed_steps": 4, "measure_seconds": 30.0, "time_limit_seconds": 120.0}
        policy = Policy(
            methods=methods,
            micro_batch=micro_batch,
            accumulation_steps=changes.pop("accumulation_steps", 1),
            settled=changes.pop("settled", {}),
        )
        source = WorkloadSource(kind=WorkloadKind.FILE, location=str(path), name="bed", fingerprint=digest)
        fields |= {"workload": source, "policy": policy, "device": "cpu", "memory_limit_bytes": 2**30}
        return trial_of(kind, fields, **changes)

    def run(
        self,
        text: str = _PLAIN,
        *,
        kind: type[Trial[Any]] = TimeTrial,
        micro_batch: int = 8,
        methods: tuple[MethodSetting, ...] = (),
        **changes: Any,
    ) -> Any:
        spec = self.spec(text, kind=kind, micro_batch=micro_batch, methods=methods, **changes)
        result, self.leftover = run_trial(spec, self.told.append)
        assert result.key == spec.key
        return result

    def measure(self, text: str = _PLAIN, **changes: Any) -> Measurement:
        result = self.run(text, **changes)
        assert result.outcome is Outcome.OK, result
        assert result.measurement is not None
        return result.measurement

    def size(self, text: str = _PLAIN, **changes: Any) -> Sizing:
        result = self.run(text, kind=SizeTrial, **changes)
        assert result.outcome is Outcome.OK, result
        assert result.sizing is not None
        return result.sizing


@pytest.fixture
def bed(tmp_path: Path) -> Bed:
    return Bed(tmp_path)


# ---- TIME


def test_a_timed_trial_reports_whole_steps(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()  # a clock by which every step is short, whoever else works here
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks) / 2000)
    measured = bed.measure(micro_batch=8, accumulation_steps=3)
    assert (measured.micro_batch, measured.accumulation_steps) == (8, 3)
    assert measured.samples_per_second == pytest.approx(24 / measured.step_seconds)
    assert measured.step_seconds_low <= measured.step_seconds <= measured.step_seconds_high
    # Steps of a millisecond are repeated although four would do.
    assert 4 < measured.timed_steps <= 1000
    assert measured.timed_steps * measured.step_seconds >= timed_steps._TIMED_SECONDS["cpu"]
    assert measured.memory.breakdown.optimizer_state > 0  # the memory step comes after one that made it
    assert measured.tokens_per_second is None
    assert measured.joules_per_step is None
    assert bed.leftover == ""


_OF_ANY_LENGTH = """
import torch

def build_model():
    return torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 64), torch.nn.GELU())

def make_batch(batch_size):
    return torch.ones(batch_size, LENGTH, dtype=torch.long)

def compute_loss(model, batch):
    return model(batch).square().mean()
"""


@pytest.mark.parametrize("kind", [TimeTrial, SizeTrial, PredictTrial])
def test_memory_is_that_of_the_longest_batch(bed: Bed, kind: type[Trial[Any]]) -> None:
    """The trap: two batches that happened to be short decided what fits."""

    def peaks(text: str) -> list[float]:
        facts = bed.run(text, kind=ProbeTrial, micro_batch=2).facts
        assert facts is not None
        assert (facts.batch_layout.sizes is not None) == ("rand(" in text)
        result = bed.run(text, kind=kind, micro_batch=8, layout=facts.batch_layout, **up_to(16, kind))
        assert result.outcome is Outcome.OK, result
        if kind is TimeTrial:
            assert result.measurement.tokens_per_second == pytest.approx(
                result.measurement.samples_per_second * (64 if "rand(" in text else 512)
            ), "time is that of typical batches"
            return [result.measurement.memory.peak_bytes]
        if kind is SizeTrial:
            return [point.memory.peak_bytes for point in result.sizing.points]
        return [result.prediction.peak(batch) for batch in (4, 8, 64)]

    rarely_long = _OF_ANY_LENGTH.replace("LENGTH", "512 if torch.rand(()) < 0.05 else 64")
    assert peaks(rarely_long) == peaks(_OF_ANY_LENGTH.replace("LENGTH", "512"))


_MASKING = """
import torch

def build_model():
    return torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))

def make_batch(batch_size):
    ids = torch.randint(1, 50, (batch_size, 8))
    return {"ids": ids, "targets": ids.clone()}

def compute_loss(model, batch):
    ids, targets = batch["ids"], batch["targets"]
    assert bool((ids == targets).all()), "masked before"
    ids[:, ::4] = 0
    return torch.nn.functional.cross_entropy(model(ids)[:, ::4].flatten(0, 1), targets[:, ::4].flatten())
"""


@pytest.mark.parametrize("kind", [ProbeTrial, TimeTrial, SizeTrial, FidelityTrial])
def test_every_step_has_the_batch_as_it_was_made(bed: Bed, kind: type[Trial[Any]]) -> None:
    """The trap: a loss that masks its batch in place found nothing but masks in it after some steps."""
    result = bed.run(_MASKING, kind=kind, micro_batch=4, **up_to(8, kind))
    assert result.outcome is Outcome.OK, result
    assert bed.leftover == ""
    if kind is ProbeTrial:
        assert result.facts.batch_layout.changes_when_split == ""


def test_batches_that_are_written_to_are_no_memory_of_the_training(bed: Bed) -> None:
    """Copies wait on the host, as the batches do."""
    reading = _MASKING.replace("    ids[:, ::4] = 0\n", "")
    assert bed.measure(_MASKING).memory.breakdown == bed.measure(reading).memory.breakdown


def test_tokens_are_counted_where_there_are_token_ids(bed: Bed) -> None:
    text = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 8)

    def forward(self, input_ids):
        return self.table(input_ids).square().mean()

def build_model():
    return Model()

def make_batch(batch_size):
    return {"input_ids": torch.randint(0, 50, (batch_size, 32))}
"""
    measured = bed.measure(text)
    assert measured.tokens_per_second == pytest.approx(32 * measured.samples_per_second)


def test_the_same_trial_again_has_the_same_losses(bed: Bed) -> None:
    first, second = bed.measure(), bed.measure()
    shared = min(len(first.loss_trace), len(second.loss_trace))
    assert first.loss_trace[:shared] == second.loss_trace[:shared]
    memories = [msgspec.structs.replace(one.memory, peak_resident_bytes=None) for one in (first, second)]
    assert memories[0] == memories[1]


def test_another_seed_is_another_model_and_other_batches(bed: Bed) -> None:
    plain = bed.size(micro_batch=8, largest_batch=8)
    other = bed.size(micro_batch=8, largest_batch=8, seed=1)
    assert plain.loss_trace != other.loss_trace


def test_a_candidate_that_is_clearly_slower_is_left_early(bed: Bed) -> None:
    measured = bed.measure(max_timed_steps=50, target_spread=1e-9, outpaced_below_samples_per_second=1e12)
    assert measured.stop_reason is StopReason.OUTPACED
    assert measured.timed_steps < 50


# ---- SIZE


def test_an_exact_method_sees_the_same_model_batches_and_dropout(bed: Bed) -> None:
    plain = bed.size()
    checkpointed = bed.size(methods=(use("optimizer_in_backward"),))
    assert len(plain.loss_trace) == 3
    assert checkpointed.loss_trace == plain.loss_trace


def test_batches_grow_until_two_are_past_the_optimizers_peak(bed: Bed) -> None:
    sizing = bed.size(micro_batch=1)
    batches = [point.micro_batch for point in sizing.points]
    assert batches[-1] == 2 * batches[-2]
    assert sizing.points[0].memory.optimizer_is_peak
    assert [point.memory.optimizer_is_peak for point in sizing.points[-2:]] == [False, False]
    assert sizing.out_of_memory_at is None
    assert all(point.step_seconds > 0 for point in sizing.points)


def test_a_long_flat_start_is_crossed_in_few_leaps(bed: Bed) -> None:
    wide = _PLAIN.replace("128", "1024")
    batches = [point.micro_batch for point in bed.size(wide, micro_batch=1).points]
    assert batches[1] >= 8
    assert len(batches) <= 6


def test_two_batches_are_enough_when_activations_are_the_peak_at_once(bed: Bed) -> None:
    peak = bed.size(micro_batch=2048).points[0].memory.peak_bytes
    sizing = bed.size(micro_batch=2048, memory_limit_bytes=10 * peak)
    assert [point.micro_batch for point in sizing.points] == [2048, 4096]


def test_no_batch_above_the_largest_is_tried(bed: Bed) -> None:
    assert [point.micro_batch for point in bed.size(micro_batch=2, largest_batch=3).points] == [2, 3]
    assert [point.micro_batch for point in bed.size(micro_batch=2, largest_batch=2).points] == [2]


def test_a_further_batch_that_does_not_fit_is_a_finding(bed: Bed) -> None:
    room = bed.size(micro_batch=2048).points[0].memory.peak_bytes
    sizing = bed.size(micro_batch=2048, memory_limit_bytes=room + 1000)
    assert [point.micro_batch for point in sizing.points] == [2048]
    assert sizing.out_of_memory_at == 4096
    assert bed.leftover == ""


def test_a_further_batch_that_fails_is_named(bed: Bed) -> None:
    """Trap: a profiling run that had grown to 4096 samples failed, and the batch that was said was its first."""
    few = _PLAIN.replace(
        "    return torch.nn.functional", "    assert len(batch[0]) < 4096\n    return torch.nn.functional"
    )
    result = bed.run(few, kind=SizeTrial, micro_batch=2048)
    assert result.outcome is Outcome.FAILED
    assert result.reason.endswith("(at batch 4096)")
    assert result.failed_at == 4096


_CHAIN = """
import torch

class Block(torch.nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(wide))

    def forward(self, hidden):
        for layer in self.layers:
            hidden = hidden + layer(hidden).relu()
        return hidden

BLOCKS = (Block,)

def build_model():
    return torch.nn.Sequential(*[Block(1 + number % 3) for number in range(9)])

def make_batch(batch_size):
    return torch.randn(batch_size, 16)

def compute_loss(model, batch):
    return model(batch).square().mean()
"""


def test_timed_steps_do_what_profiling_settled_on_and_predicted(bed: Bed) -> None:
    planned = (use("optimal_checkpoint", budget=0.4),)
    short = bed.run(_CHAIN, kind=SizeTrial, micro_batch=512, methods=planned)
    assert short.sizing is not None
    assert short.prediction is not None
    assert set(short.sizing.settled) == {"optimal_checkpoint"}
    plans = {
        "its own": short.sizing.settled,
        "another": {"optimal_checkpoint": '{"plan":[[0,1,2,3,4,5,6,7,8]]}'},
    }
    peaks = {
        name: bed.measure(_CHAIN, micro_batch=4096, methods=planned, settled=plan).memory.peak_bytes
        for name, plan in plans.items()
    }
    assert peaks["its own"] == pytest.approx(short.prediction.peak(4096), rel=0.001)
    assert peaks["another"] != pytest.approx(short.prediction.peak(4096), rel=0.1)


def test_a_first_batch_that_does_not_fit_is_out_of_memory(bed: Bed) -> None:
    result = bed.run(kind=SizeTrial, micro_batch=2048, memory_limit_bytes=10**6)
    assert result.outcome is Outcome.OUT_OF_MEMORY
    assert "977 KiB" in result.reason


def test_a_disturbed_step_is_timed_once_more(bed: Bed) -> None:
    """The trap: one hiccup of the machine would make a whole combination look hopeless."""
    # The first point makes three steps, the second measures its memory in the fourth and its time in the fifth; steps
    # above a tenth of a second are timed once.
    hiccup = (
        "import time\ncalls = [0]\ndef compute_loss(model, batch):\n"
        "    calls[0] += 1\n    time.sleep(1.5 if calls[0] == 5 else 0.12)"
    )
    text = _PLAIN.replace("def compute_loss(model, batch):", hiccup)
    points = bed.size(text, micro_batch=1024).points
    assert points[1].step_seconds < 1.5


def test_a_quick_step_is_timed_three_times(bed: Bed) -> None:
    """The trap: anything may disturb a single step of milliseconds, and batches are extrapolated from it."""
    # First point: one step, one timed, one measured, two more timed. Second: one measured, three timed.
    slow = (
        "import time\ncalls = [0]\ndef compute_loss(model, batch):\n"
        "    calls[0] += 1\n    time.sleep(0.0 if calls[0] in (5, 9) else 0.05)"
    )
    text = _PLAIN.replace("def compute_loss(model, batch):", slow)
    points = bed.size(text, micro_batch=8, largest_batch=16).points
    assert [point.micro_batch for point in points] == [8, 16]
    assert all(point.step_seconds < 0.05 for point in points)


def test_batches_of_one_size_are_made_once(bed: Bed, tmp_path: Path) -> None:
    """Making them may take longer than training on them."""
    log = tmp_path / "made"
    counting = (
        "def make_batch(batch_size):\n"
        f"    with open({str(log)!r}, 'a') as log:\n"
        "        log.write(f'{batch_size} ')\n"
    )
    text = _PLAIN.replace("def make_batch(batch_size):\n", counting)
    layout = BatchLayout(dims={"0": 0, "1": 0}, counted_by="0")  # as the probe has found it
    bed.measure(text, micro_batch=8, layout=layout)
    assert log.read_text().split() == ["8", "8"]
    log.unlink()
    bed.size(text, micro_batch=8, largest_batch=16, layout=layout)
    assert log.read_text().split() == ["8", "8", "16", "16"]
    assert bed.leftover == ""


def test_no_second_batch_is_begun_that_the_time_limit_would_end(bed: Bed) -> None:
    slow = "import time\ndef compute_loss(model, batch):\n    time.sleep(0.05)"
    text = _PLAIN.replace("def compute_loss(model, batch):", slow)
    assert len(bed.size(text, time_limit_seconds=0.4).points) == 1


# ---- sizes and settling


@pytest.mark.parametrize("kind", [TimeTrial, SizeTrial])
def test_a_size_reaches_the_model_and_its_batches(bed: Bed, kind: type[Trial[Any]]) -> None:
    text = """
import torch

def build_model(width=16):
    return torch.nn.Linear(width, 8)

def make_batch(batch_size, width=16):
    return torch.randn(batch_size, width), torch.randint(0, 8, (batch_size,))

def compute_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
"""
    parameters = []
    for size in ({}, {"width": 64}):
        result = bed.run(text, kind=kind, model_size=size)
        assert result.outcome is Outcome.OK, result
        if kind is TimeTrial:
            parameters.append(result.measurement.memory.breakdown.parameters)
        else:
            parameters.append(result.sizing.points[0].memory.breakdown.parameters)
    assert parameters == [4 * (16 * 8 + 8), 4 * (64 * 8 + 8)]


def test_steps_in_which_a_method_settles_are_neither_timed_nor_measured(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses that are compared between combinations are still those of the first steps."""
    slow = "import time\ncalls = [0]\ndef compute_loss(model, batch):\n    calls[0] += 1\n    time.sleep(SLEEP)"
    slow = slow.replace("SLEEP", "0.3 if calls[0] <= 4 else 0.0")
    text = _PLAIN.replace("def compute_loss(model, batch):", slow)
    sized, timed = bed.size(_PLAIN, largest_batch=8), bed.measure(_PLAIN)
    initialize = Training.__init__

    def settling(self: Training, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        self.settling_steps = 3  # type: ignore[attr-defined,unused-ignore]

    monkeypatch.setattr(Training, "__init__", settling)
    settled = bed.size(text, largest_batch=8)
    assert settled.points[0].step_seconds < 0.3
    assert settled.loss_trace == sized.loss_trace
    measured = bed.measure(text)
    assert measured.step_seconds < 0.3
    assert measured.loss_trace[:6] == timed.loss_trace[:6]


def test_the_time_in_which_a_method_settles_is_not_taken_from_the_steps_that_are_compared(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The trap: compiling took all the time there was, and seven steps of thirty were left to compare."""
    clock, attempts = [0.0], [0]

    def attempt(training: Training, step: Callable[[], Any], agree: Any) -> Any:
        attempts[0] += 1
        clock[0] += 100.0 if attempts[0] <= 2 else 0.01
        return step()

    monkeypatch.setattr("advisor.trial.worker.bench.until_updated", attempt)
    initialize = Training.__init__

    def settling(self: Training, *arguments: Any, **options: Any) -> None:
        initialize(self, *arguments, **options)
        self.settling_steps = 1  # type: ignore[attr-defined,unused-ignore]

    monkeypatch.setattr(Training, "__init__", settling)
    monkeypatch.setattr("advisor.trial.worker.fidelity_run.time", types.SimpleNamespace(perf_counter=lambda: clock[0]))
    result = bed.run(kind=FidelityTrial, fidelity_steps=12, measure_seconds=1.0)
    assert result.fidelity is not None
    assert len(result.fidelity.losses) == 12


# ---- PROBE


def test_a_probe_learns_the_facts(bed: Bed) -> None:
    result = bed.run(kind=ProbeTrial)
    assert result.facts is not None
    assert result.facts.model_class == "Sequential"
    assert result.facts.has_dropout
    assert not result.facts.has_batchnorm
    assert result.facts.optimizer_class == "torch.optim.adamw.AdamW"
    assert result.facts.optimizer_options["amsgrad"] is False
    assert result.facts.first_loss == pytest.approx(math.log(8), rel=0.5)
    assert result.facts.matmul_flops_per_second["float32"] > 0
    assert result.facts.device_rates is not None
    assert result.facts.device_rates.matmul_flops_per_second == result.facts.matmul_flops_per_second
    assert not result.facts.linear_head
    assert result.facts.linear_head_reason
    assert result.facts.libraries == {}, "none was asked for"
    assert bed.leftover == ""


def test_a_clipping_that_is_stated_beside_the_model_is_an_option_with_its_value(bed: Bed) -> None:
    spec = bed.spec(_PLAIN, kind=ProbeTrial, micro_batch=8, methods=())
    stated = msgspec.structs.replace(spec.workload, stated=Stated(max_grad_norm=0.5))
    result, _ = run_trial(msgspec.structs.replace(spec, workload=stated), lambda text: None)
    assert result.facts is not None
    assert result.facts.workload_options == (*bed.run(kind=ProbeTrial).facts.workload_options, "max_grad_norm=0.5")


def test_a_probe_imports_the_libraries_that_are_asked_for_and_says_which_work(
    bed: Bed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sound_library.py").write_text("__version__ = '1.2'\n")
    (tmp_path / "broken_library.py").write_text("raise OSError('libcuda.so is not there')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    asked = ("broken_library", "no_such_library", "sound_library")
    facts = bed.run(kind=ProbeTrial, libraries=asked).facts
    assert facts is not None
    assert facts.libraries == {"broken_library": "error: OSError: libcuda.so is not there", "sound_library": "1.2"}


def test_a_probe_learns_the_facts_of_a_model_that_only_fits_with_methods(bed: Bed) -> None:
    result = bed.run(kind=ProbeTrial, micro_batch=2048, memory_limit_bytes=10**6)
    assert result.outcome is Outcome.OK
    assert result.facts is not None
    assert result.facts.first_loss is None
    assert result.facts.parameter_count > 0
    assert any("does not fit" in note for note in result.notes)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("return model(batch[0])", "the loss must be a scalar, but its shape is (8, 8)"),
        ("return model(batch[0]).mean().item()", "compute_loss must return a scalar tensor"),
        ("return model(batch[0]).mean().detach()", "must depend on parameters that require a gradient"),
        ("return model(batch[0]).mean() * float('nan')", "the first loss must be finite, but it is nan"),
    ],
)
def test_a_loss_that_cannot_be_trained_with_is_explained(bed: Bed, loss: str, message: str) -> None:
    text = _PLAIN[: _PLAIN.index("def compute_loss")] + f"def compute_loss(model, batch):\n    {loss}\n"
    result = bed.run(text, kind=ProbeTrial)
    assert result.outcome is Outcome.FAILED
    assert message in result.reason


# ---- failures

_PLACES = {
    "import": ("import torch\n", "import torch\nraise ValueError('my mistake')\n"),
    "build": ("def build_model():", "def build_model():\n    raise ValueError('my mistake')"),
    "batch": ("def make_batch(batch_size):", "def make_batch(batch_size):\n    raise ValueError('my mistake')"),
    "loss": ("def compute_loss(model, batch):", "def compute_loss(model, batch):\n    raise ValueError('my mistake')"),
    "backward": (
        "def compute_loss(model, batch):\n    return ",
        """
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError('my mistake')

def compute_loss(model, batch):
    return Fails.apply(torch.zeros(1, requires_grad=True)).sum() + """,
    ),
}


@pytest.mark.parametrize("place", _PLACES)
def test_an_exception_shows_the_users_own_frames_alone(bed: Bed, place: str) -> None:
    old, new = _PLACES[place]
    assert old in _PLAIN
    result = bed.run(_PLAIN.replace(old, new))
    assert result.outcome is Outcome.FAILED
    assert "my mistake" in result.reason
    assert result.traceback_text is not None
    assert "raise ValueError('my mistake')" in result.traceback_text
    assert "advisor/trial" not in result.traceback_text


def test_a_model_that_exits_is_a_failure_not_the_end(bed: Bed) -> None:
    result = bed.run(_PLAIN + "\ndef build_model():\n    import sys\n    sys.exit(0)\n")
    assert result.outcome is Outcome.FAILED
    assert "sys.exit(0)" in result.reason


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("kind", [TimeTrial, SizeTrial])
def test_a_loss_that_is_not_finite_any_more_has_diverged(bed: Bed, value: str, kind: type[Trial[Any]]) -> None:
    text = (
        _PLAIN
        + f"""
steps = 0
plain_loss = compute_loss

def compute_loss(model, batch):
    global steps
    steps += 1
    return plain_loss(model, batch) * (float("{value}") if steps > 2 else 1.0)
"""
    )
    result = bed.run(text, kind=kind)
    assert result.outcome is Outcome.DIVERGED
    assert f"the loss became {value}" in result.reason


def test_a_refusal_is_an_outcome_with_its_reason(bed: Bed) -> None:
    result = bed.run(methods=(use("checkpoint", every=1),))
    assert result.outcome is Outcome.REFUSED
    assert result.reason


def test_a_model_that_existed_before_is_refused(bed: Bed) -> None:
    """Its weights would go on from trial to trial, and not count as memory of the training."""
    result = bed.run(_PLAIN + "\nMODEL = build_model()\n\ndef build_model():\n    return MODEL\n")
    assert result.outcome is Outcome.FAILED
    assert "must build a new model on every call" in result.reason
    assert bed.leftover, "so that no other trial runs in this process"


def test_what_is_kept_is_reported(bed: Bed) -> None:
    bed.run(
        _PLAIN.replace(
            "def compute_loss(model, batch):",
            "KEPT = []\n\ndef compute_loss(model, batch):\n    KEPT.append(torch.zeros(1_000_000))",
        )
    )
    assert "bytes of tensors" in bed.leftover


def test_a_data_set_that_the_first_batch_loads_is_no_leak_and_no_device_memory(bed: Bed) -> None:
    lazy = """
DATA = []

def make_batch(batch_size):
    if not DATA:
        DATA.append(torch.randn(1_000_000, 16))
    return DATA[0][:batch_size], torch.randint(0, 8, (batch_size,))
"""
    measured = bed.measure(_PLAIN + lazy)
    assert bed.leftover == ""
    assert measured.memory.peak_bytes < 10**6


def test_a_result_stands_although_the_device_answers_nothing_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leftover(self: Bench) -> str:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(Bench, "leftover", leftover)
    bed = Bed(tmp_path)
    assert bed.run().outcome is Outcome.OK
    assert "illegal memory access" in bed.leftover, "so that no other trial runs in this process"


def test_profiling_decides_by_what_the_last_step_with_instruments_took(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []

    def next_batch(points: list[Any], *rest: Any, instrumented: float, **others: Any) -> int | None:
        told.append(instrumented)
        return 2 * points[-1].micro_batch if len(points) < 3 else None

    measured_step = CpuMemory.measured_step

    def slow(*given: Any) -> Any:
        time.sleep(0.05 * (len(told) + 1))
        return measured_step(*given)

    monkeypatch.setattr(sizing, "next_batch", next_batch)
    monkeypatch.setattr(CpuMemory, "measured_step", slow)
    assert bed.run(kind=SizeTrial, micro_batch=2).outcome is Outcome.OK
    assert [seconds >= 0.05 * number for number, seconds in enumerate(told, start=1)] == [True] * len(told)
    assert len(told) == 3
