"""Two methods together: refused if they declare a conflict, otherwise as good as the worse of them."""

from __future__ import annotations

import functools
import itertools

import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.methods.catalogue import get_method
from advisor.methods.compose import apply_uses
from advisor.methods.use import MethodUse, use
from advisor.problem.goal import Fidelity
from tests.contract.observe import UPDATE_TOLERANCE, Observation, observe, relative_error, same
from tests.methods.tiny import MODELS, import_bitsandbytes, training_of

USES = (
    use("precision", dtype="bf16"),
    use("precision", dtype="fp16"),
    use("checkpoint", every=1),
    use("selective_checkpoint", recompute="attention"),
    use("selective_checkpoint", recompute="elementwise"),
    use("swap", min_bytes=2**20),
    use("adam_8bit"),
    use("optimizer_in_backward"),
    use("chunked_cross_entropy", chunks=8),
)
PAIRS = [pair for pair in itertools.combinations(USES, 2) if pair[0].name != pair[1].name]
CONFLICTS = {
    ("checkpoint", "selective_checkpoint"),
    ("precision(dtype=fp16)", "optimizer_in_backward"),
}
NOT_FOR_CONVNET = {"selective_checkpoint(recompute=attention)", "chunked_cross_entropy(chunks=8)"}
CASES = [
    (model, pair)
    for model in MODELS
    for pair in PAIRS
    if model != "convnet" or not NOT_FOR_CONVNET & {each.label for each in pair}
]


@functools.cache
def _plain(model: str) -> Observation:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return observe(model, [], monkeypatch)


def _conflict(pair: tuple[MethodUse, MethodUse]) -> bool:
    return any(
        {first, second} <= {pair[0].name, pair[0].label, pair[1].name, pair[1].label} for first, second in CONFLICTS
    )


@pytest.mark.parametrize(
    ("model", "pair"), CASES, ids=[f"{model}-{pair[0].label}+{pair[1].label}" for model, pair in CASES]
)
def test_a_pair_is_in_conflict_or_trains_as_its_methods_promise(
    model: str, pair: tuple[MethodUse, MethodUse], monkeypatch: pytest.MonkeyPatch
) -> None:
    import_bitsandbytes()
    if _conflict(pair):
        for order in (pair, pair[::-1]):
            with pytest.raises(MethodRefusedError, match="cannot be combined"):
                apply_uses(training_of(model), order)
        return
    plain, changed = _plain(model), observe(model, pair, monkeypatch)
    methods = [get_method(each.name) for each in pair]
    if all(method.fidelity is Fidelity.EXACT for method in methods):
        assert same(changed.gradients[1], plain.gradients[1])
        assert same(changed.state, plain.state)
    else:
        tolerance = sum(method.gradient_tolerance for method in methods)
        assert relative_error(changed.gradients[0], plain.gradients[0]) <= tolerance
        update_tolerance = sum(UPDATE_TOLERANCE[method.fidelity] for method in methods)
        assert update_tolerance < 1.0, "an optimizer that never steps would pass"
        assert relative_error(changed.updates, plain.updates) <= update_tolerance
        assert relative_error(changed.state, plain.state) <= 0.05


def test_checkpointing_leaves_only_block_inputs_for_swap_to_move(monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = use("checkpoint", every=1)
    alone = observe("gpt2", [checkpoint], monkeypatch).held_bytes
    together = observe("gpt2", [checkpoint, use("swap", min_bytes=2**20)], monkeypatch).held_bytes
    assert together < alone


def test_everything_that_composes_trains_together() -> None:
    import_bitsandbytes()
    training = training_of("gpt2")
    names = {"precision(dtype=bf16)", "checkpoint(every=1)", "swap(min_bytes=1048576)"}
    uses = [each for each in USES if each.label in names or not each.parameters]
    apply_uses(training, [*uses, use("chunked_cross_entropy", chunks=8)])
    _, make_batch = MODELS["gpt2"]
    torch.manual_seed(0)
    losses = [float(training.step(make_batch())) for _ in range(5)]
    assert losses[-1] < losses[0]
