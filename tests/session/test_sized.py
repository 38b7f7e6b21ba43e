"""A training that takes at most so many samples: profiling runs are repeated below what failed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest

import advisor
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.session.trials.runs import TrialRuns
from advisor.trial.outcome import Outcome
from advisor.trial.spec import SizeTrial
from tests.search.test_build_space import FACTS
from tests.session.contexts import study


@dataclasses.dataclass
class Capped:
    """Answers profiling runs as a model does whose forward pass raises above a number of samples.

    Attributes:
        takes: The most samples.
        reaches: The batch that profiling runs go to where nothing bounds them.
        words: Its error.
        results: By key, as a study's folder keeps them.
    """

    takes: int
    reaches: int = 2048
    words: str = "too many"
    ran: list[int] = dataclasses.field(default_factory=list)
    results: dict[str, Any] = dataclasses.field(default_factory=dict)

    def run(self, spec: Any) -> Any:
        if spec.key not in self.results:
            self.results[spec.key] = self._made(spec)
        return self.results[spec.key]

    def _made(self, spec: Any) -> Any:
        largest = min(self.reaches, spec.largest_batch or self.reaches)
        self.ran.append(largest)
        fails_at = next((one for one in (largest, spec.compare_at or 0) if one > self.takes), None)
        if fails_at is None:
            return spec.ended(Outcome.OK)
        return spec.ended(Outcome.FAILED, f"ValueError: {self.words} (at batch {fails_at})", failed_at=fails_at)


def runs_of(model: Capped, *, own: int | None) -> TrialRuns:
    runner: Any = model
    return TrialRuns(study(facts=msgspec.structs.replace(FACTS, default_batch=own)), runner, {}, None)


def sized(runs: TrialRuns, *, for_all: bool = True, policy: Policy | None = None, **asked: Any) -> Any:
    spec = runs.spec(SizeTrial, policy or Policy(micro_batch=2), hard_limit_seconds=60.0, **asked)
    return runs.sized(spec, for_all=for_all)


@pytest.mark.parametrize(
    ("takes", "own", "tried", "most"),
    [
        (4096, 8, [2048], None),
        (48, 8, [2048, 1024, 512, 256, 128, 64, 32], 32),
        (48, None, [2048, 1024, 512, 256, 128, 64, 32], 32),
        (48, 40, [2048, 1024, 512, 256, 128, 64, 40], 40),  # the user's own before anything below it
        (30, 40, [2048, 1024, 512, 256, 128, 64, 40, 20], 20),  # which is too large itself
        (2, 8, [2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2], 2),
    ],
)
def test_the_batch_is_halved_until_training_works(takes: int, own: int | None, tried: list[int], most: int) -> None:
    model = Capped(takes)
    runs = runs_of(model, own=own)
    assert sized(runs).outcome is Outcome.OK
    assert model.ran == tried
    assert runs.most_samples == most


def test_the_bound_of_plain_training_holds_for_the_study_and_its_reason_is_said() -> None:
    runs = runs_of(Capped(48), own=8)
    sized(runs)
    assert runs.why_no_more == (
        "with more than 32 samples plain training was seen to fail (ValueError: too many (at batch 64))"
    )


def test_a_reason_of_thousands_of_characters_is_shortened_in_its_middle() -> None:
    runs = runs_of(Capped(48, words=f"too many {'x' * 3000}"), own=8)
    sized(runs)
    assert "(ValueError: too many xxx" in runs.why_no_more
    assert runs.why_no_more.endswith("xxx (at batch 64))")
    assert len(runs.why_no_more) < 400


def test_what_a_method_cannot_take_bounds_that_method_alone() -> None:
    model = Capped(48, reaches=64)
    runs = runs_of(model, own=8)
    assert sized(runs, for_all=False).outcome is Outcome.OK
    assert model.ran == [64, 32]
    assert runs.most_samples is None


def test_samples_of_all_accumulated_micro_batches_count() -> None:
    runs = runs_of(Capped(8, reaches=16), own=None)
    sized(runs, policy=Policy(micro_batch=2, accumulation_steps=4))
    assert runs.most_samples == 32, "4 micro-batches of 8"


def test_where_even_the_first_batch_fails_the_failure_is_the_answer() -> None:
    model = Capped(1)
    runs = runs_of(model, own=8)
    assert sized(runs).outcome is Outcome.FAILED
    assert model.ran[-1] == 2
    assert runs.most_samples is None


def test_a_comparison_that_fails_is_not_repeated() -> None:
    model = Capped(48, reaches=32)
    assert sized(runs_of(model, own=8), for_all=False, compare_at=96).outcome is Outcome.FAILED
    assert model.ran == [32]


_CAPPED = """
import torch

BATCH_SIZE = 4

class Capped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def forward(self, inputs):
        if len(inputs) > 12:
            raise ValueError(f"at most 12 samples, not {len(inputs)}")
        return self.body(inputs)

def build_model():
    return Capped()

def make_batch(batch_size):
    return torch.randn(batch_size, 32), torch.randint(0, 4, (batch_size,))

def compute_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


@pytest.mark.slow
def test_a_model_that_raises_above_some_samples_has_an_answer(tmp_path: Path) -> None:
    """Trap: every combination "failed", the baseline too, and there was no answer."""
    (tmp_path / "capped.py").write_text(_CAPPED)
    answer = advisor.tune(
        tmp_path / "capped.py", output=tmp_path / "out", search_space="smoke", trials=3, time_limit=60
    )
    assert answer.recommendation.baseline is not None
    assert answer.recommendation.baseline.policy.micro_batch == 4
    assert answer.policy.micro_batch <= 12
    [note] = [one for one in answer.notes if "plain training was seen to fail" in one]
    assert "at most 12 samples" in note


@dataclasses.dataclass
class Unsteady(Capped):
    """One whose losses become infinite below a number of samples."""

    steady_from: int = 8
    fits: int = 4096
    lost_at: int | None = None

    def _made(self, spec: Any) -> Any:
        self.ran.append(spec.policy.micro_batch)
        if spec.policy.micro_batch > self.fits:
            return spec.ended(Outcome.OUT_OF_MEMORY)
        if self.lost_at is not None:
            return spec.ended(Outcome.DIVERGED, "the loss became inf at step 0", failed_at=self.lost_at)
        if spec.policy.micro_batch < self.steady_from:
            return spec.ended(Outcome.DIVERGED, f"the loss became inf at step {spec.policy.micro_batch}")
        return spec.ended(Outcome.OK)


def test_where_losses_are_finite_from_the_users_own_batch_on_everything_begins_there() -> None:
    """Trap: a training that takes 32 samples was tuned at two, where it diverges, and 65 trials measured nothing."""
    model = Unsteady(4096, steady_from=16)
    runs = runs_of(model, own=32)
    assert runs.first_batch == 2
    assert sized(runs).outcome is Outcome.OK
    assert (model.ran, runs.first_batch) == ([2, 32], 32)


def test_a_method_that_diverges_in_few_samples_alone_is_sized_from_the_users_own_batch() -> None:
    model = Unsteady(4096, steady_from=16)
    runs = runs_of(model, own=32)
    result = sized(runs, for_all=False, policy=Policy(micro_batch=2, methods=(use("compress_activations", bits=4),)))
    assert result.outcome is Outcome.OK
    assert (model.ran, runs.first_batch) == ([2, 32], 2)


def test_one_that_diverges_at_both_says_so_of_both() -> None:
    model = Unsteady(4096, steady_from=64)
    result = sized(runs_of(model, own=32))
    assert result.outcome is Outcome.DIVERGED
    assert result.reason == (
        "the loss became inf at step 2 in batches of 2 samples, and the loss became inf at step 32 in batches of 32"
    )


@pytest.mark.parametrize(("largest", "outcome"), [(16, Outcome.OK), (8, Outcome.DIVERGED)])
def test_no_batch_is_tried_that_the_data_or_the_global_batch_have_no_samples_for(
    largest: int, outcome: Outcome
) -> None:
    model = Unsteady(4096, steady_from=16)
    assert sized(runs_of(model, own=32), largest_batch=largest).outcome is outcome
    assert model.ran == [2, largest]


def test_where_the_users_own_batch_does_not_fit_half_of_it_may() -> None:
    model = Unsteady(4096, steady_from=8, fits=16)
    runs = runs_of(model, own=64)
    assert sized(runs).outcome is Outcome.OK
    assert (model.ran, runs.first_batch) == ([2, 64, 32, 16], 16)


def test_where_nothing_that_is_steady_fits_lack_of_memory_is_the_reason() -> None:
    """A method may make it fit: the training is not taken for one that diverges."""
    model = Unsteady(4096, steady_from=8, fits=3)
    assert sized(runs_of(model, own=32)).outcome is Outcome.OUT_OF_MEMORY


def test_losses_that_are_lost_at_a_grown_batch_are_not_lost_at_the_first() -> None:
    model = Unsteady(4096, steady_from=16, lost_at=64)
    assert sized(runs_of(model, own=32)).outcome is Outcome.DIVERGED
    assert model.ran == [2]
