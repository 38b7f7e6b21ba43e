"""The first gradient is caught where it exists: before clipping, unscaled, by plain names, whatever the methods do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from advisor.measure.fidelity import GradientError
from advisor.measure.state import first_gradient
from advisor.measure.state.first_gradient import FirstGradient
from advisor.methods.compose import apply_settings
from advisor.methods.setting import MethodSetting, use
from advisor.training.training import Training
from tests.methods.tiny import gpt2, text, training_of


@pytest.fixture
def exact(tmp_path: Path) -> Path:
    path = tmp_path / "gradient.pt"
    caught(training_of("gpt2")).save(path)
    return path


def caught(training: Training) -> FirstGradient:
    first = FirstGradient(training)
    torch.manual_seed(0)
    with first.catching():
        training.step(text(2))
    return first


def error(exact: Path, *settings: MethodSetting, **options: Any) -> GradientError:
    training = training_of("gpt2", **options)
    apply_settings(training, settings)
    found, reason = caught(training).compare(exact)
    training.close()
    assert found is not None, reason
    return found


def test_an_equal_gradient_has_no_error(exact: Path) -> None:
    assert error(exact) == GradientError(error=0.0, cosine=pytest.approx(1.0), norm_ratio=pytest.approx(1.0))  # type: ignore[arg-type]


def test_the_error_is_that_of_the_whole_gradient(exact: Path) -> None:
    other, plain = training_of("gpt2"), training_of("gpt2")
    first = FirstGradient(other)
    torch.manual_seed(1)  # other dropout masks
    with first.catching():
        other.step(text(2))
    found, _ = first.compare(exact)
    gradients = []
    for seed, training in ((1, training_of("gpt2")), (0, plain)):
        torch.manual_seed(seed)
        training.backward(training.forward(text(2)))
        grads = [parameter.grad for parameter in training.model.parameters() if parameter.grad is not None]
        gradients.append(torch.cat([grad.flatten() for grad in grads]).double())
    own, expected = gradients
    assert found is not None
    assert found.error == pytest.approx(float((own - expected).norm() / expected.norm()))
    assert found.cosine == pytest.approx(float(torch.nn.functional.cosine_similarity(own, expected, dim=0)))
    assert found.norm_ratio == pytest.approx(float(own.norm() / expected.norm()))


def test_gradients_that_are_freed_in_the_backward_pass_are_seen_before(exact: Path) -> None:
    assert error(exact, use("optimizer_in_backward")).error == 0.0


def test_gradients_that_went_to_an_optimizer_on_the_host_are_found_there(exact: Path) -> None:
    assert error(exact, use("host_optimizer")).error == 0.0


def test_names_are_the_plain_ones_under_wrappers(exact: Path) -> None:
    assert error(exact, use("checkpoint", every=1)).error == 0.0


def test_clipping_comes_after(exact: Path) -> None:
    assert error(exact, max_grad_norm=1e-3).error == 0.0


def test_the_scale_of_float16_is_taken_off(exact: Path) -> None:
    found = error(exact, use("precision", dtype="fp16"))
    assert 0.0 < found.error < 0.01
    assert found.norm_ratio == pytest.approx(1.0, abs=0.01)


def test_a_gradient_that_is_too_long_shows_in_its_norm(exact: Path) -> None:
    training = training_of("gpt2")
    for parameter in training.model.parameters():
        parameter.register_hook(lambda gradient: 1.3 * gradient)
    found, _ = caught(training).compare(exact)
    assert found is not None
    assert (found.error, found.cosine, found.norm_ratio) == pytest.approx((0.3, 1.0, 1.3))


def test_of_a_large_model_a_sample_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole.pt"
    caught(training_of("gpt2")).save(whole)
    count = sum(parameter.numel() for parameter in gpt2().parameters())
    monkeypatch.setattr(first_gradient, "_MOST_ELEMENTS", count // 10)
    sample = tmp_path / "sample.pt"
    caught(training_of("gpt2")).save(sample)
    assert sample.stat().st_size < 0.2 * whole.stat().st_size
    assert error(sample).error == 0.0
    # The sample's error is that of the whole: bf16 rounds everywhere alike.
    monkeypatch.undo()
    of_all = error(whole, use("precision", dtype="bf16")).error
    monkeypatch.setattr(first_gradient, "_MOST_ELEMENTS", count // 10)
    assert error(sample, use("precision", dtype="bf16")).error == pytest.approx(of_all, rel=0.3)


def test_other_parameters_than_plain_trainings_are_not_compared(exact: Path) -> None:
    training = training_of("gpt2")
    next(iter(training.model.parameters())).requires_grad_(False)
    found, reason = caught(training).compare(exact)
    assert found is None
    assert reason.startswith("it trains other parameters than plain training (")


def test_a_file_that_is_gone_is_a_reason(tmp_path: Path) -> None:
    found = caught(training_of("gpt2")).compare(tmp_path / "gone.pt")
    assert found == (
        None,
        "the reference run's gradient is missing",
    )


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    training = training_of("gpt2")
    apply_settings(training, (use("optimizer_in_backward"),))
    heard: list[object] = []
    training.phase_listener = heard.append
    first = caught(training)
    first.save(tmp_path / "gradient.pt")
    assert training.phase_listener is not None
    assert heard, "whoever listened before still hears"
    assert not any(parameter._backward_hooks for parameter in training.model.parameters())
    assert [path.name for path in tmp_path.iterdir()] == ["gradient.pt"]
