"""Two methods together: refused if they declare a conflict, otherwise as good as what both promise.

Over the whole catalogue: every pair of methods, in the first of their settings that applies and in those named here.
"""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import apply_settings, conflict_between, settings_of
from advisor.methods.setting import MethodSetting, use
from tests.contract.expected import unable
from tests.contract.observe import Observation, dropout_for, layers_for, observe, samples_for
from tests.contract.promises import assert_trains_as_promised
from tests.methods.tiny import MODELS, import_bitsandbytes, training_of

FURTHER = {
    "gpt2": (use("precision", dtype="fp16"), use("selective_checkpoint", recompute="elementwise")),
    "convnet": (use("selective_checkpoint", recompute="normalization"),),
}
"""Settings that do something else than the first setting of their method, on the model that has more for them to do."""

CONFLICTS = {
    ("adam_8bit", "adafactor"),
    ("adam_8bit", "adam_low_bit"),
    ("adam_8bit", "fused_optimizer"),
    ("checkpoint", "selective_checkpoint"),
    ("channels_last", "adam_8bit"),
    ("half_weights", "host_optimizer"),
    ("half_weights", "optimizer_in_backward"),
    ("precision", "half_weights"),
    ("precision", "pure_bf16"),
    ("pure_bf16", "half_weights"),
    ("host_optimizer", "optimizer_in_backward"),
    ("precision(dtype=fp16)", "host_optimizer"),
    ("compress_activations", "fp8_activations"),
    ("overlapped_swap", "swap"),
    ("compile", "compile_budget"),
    ("compile(scope=blocks)", "selective_checkpoint(recompute=elementwise)"),
    ("compile_budget", "checkpoint"),
    ("precision(dtype=fp16)", "optimizer_in_backward"),
}
"""Pairs, by name or by label, that must be in conflict: what the methods declare must say at least this."""


def _settings(model: str) -> tuple[MethodSetting, ...]:
    """The settings that are paired on a model: the first of each method that has an effect there, and further ones."""
    chosen = []
    for method in CATALOGUE:
        if method.distributes or method.builds_on:
            continue
        able = [setting for setting in settings_of(method) if not unable(model, setting)]
        chosen += [setting for setting in able if setting == able[0] or setting in FURTHER[model]]
    return tuple(chosen)


PAIRS = {
    model: [pair for pair in itertools.combinations(_settings(model), 2) if pair[0].name != pair[1].name]
    for model in MODELS
}
CASES = [(model, pair) for model in MODELS for pair in PAIRS[model] if conflict_between(pair) is None]
IN_CONFLICT = list(
    {
        (pair[0].label, pair[1].label): pair
        for model in MODELS
        for pair in PAIRS[model]
        if conflict_between(pair) is not None
    }.values()
)


@functools.cache
def _plain(model: str, dropout: float, samples: int, layers: int) -> Observation:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return observe(model, [], monkeypatch, samples=samples, dropout=dropout, layers=layers)


@pytest.mark.parametrize(
    ("model", "pair"), CASES, ids=[f"{model}-{pair[0].label}+{pair[1].label}" for model, pair in CASES]
)
def test_two_methods_train_together_as_both_promise(
    model: str, pair: tuple[MethodSetting, MethodSetting], monkeypatch: pytest.MonkeyPatch
) -> None:
    import_bitsandbytes()
    samples, layers = samples_for(pair), layers_for(pair)
    together = observe(model, pair, monkeypatch, samples=samples, weighed=False, layers=layers)
    assert_trains_as_promised(pair, _plain(model, dropout_for(pair), samples, layers), together)


@pytest.mark.parametrize("method", ["few_bit_activation", "randomized_linear"])
def test_what_counts_or_draws_in_every_call_is_not_compiled_anew_in_every_step(method: str) -> None:
    training = training_of("gpt2", dropout=0.0)
    apply_settings(training, [settings_of(get_method(method))[0], use("compile", scope="blocks")])
    batch = MODELS["gpt2"][1](2)
    for _ in range(2):
        training.step(batch)
    with torch._dynamo.config.patch(error_on_recompile=True):
        training.step(batch)
    training.close()


@pytest.mark.parametrize("pair", IN_CONFLICT, ids=lambda pair: f"{pair[0].label}+{pair[1].label}")
def test_methods_in_conflict_are_refused_in_either_order(pair: tuple[MethodSetting, MethodSetting]) -> None:
    import_bitsandbytes()
    training = training_of("convnet")
    for order in (pair, pair[::-1]):
        with pytest.raises(MethodRefusedError, match="cannot be combined"):
            apply_settings(training, order)


@pytest.mark.parametrize("conflict", sorted(CONFLICTS), ids="+".join)
def test_what_cannot_work_together_is_declared(conflict: tuple[str, str]) -> None:
    found = [pair for pair in IN_CONFLICT if all({name} & {u.name, u.label} for name, u in _matched(conflict, pair))]
    assert found


def _matched(conflict: tuple[str, str], pair: tuple[MethodSetting, MethodSetting]) -> list[tuple[str, MethodSetting]]:
    """The pair in the order in which the conflict names it."""
    first, second = pair
    swapped = conflict[0] in (second.name, second.label)
    return list(zip(conflict, (second, first) if swapped else (first, second), strict=True))


def test_checkpointing_leaves_only_block_inputs_for_swap_to_move(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = use("checkpoint", every=1)
    swap = use("swap", min_bytes=2**20)
    samples = samples_for([swap])
    alone, together = (
        observe("gpt2", [checkpoint, *more], monkeypatch, samples=samples).held_bytes for more in ([], [swap])
    )
    assert together < alone


def test_many_methods_train_together() -> None:
    import_bitsandbytes()
    training = training_of("gpt2")
    settings = [
        use("precision", dtype="bf16"),
        use("checkpoint", every=1),
        use("swap", min_bytes=2**20),
        use("adam_8bit"),
        use("optimizer_in_backward"),
        use("chunked_cross_entropy", chunks=8),
    ]
    apply_settings(training, settings)
    _, make_batch = MODELS["gpt2"]
    torch.manual_seed(0)
    losses = [float(training.step(make_batch())) for _ in range(5)]
    assert losses[-1] < losses[0]
