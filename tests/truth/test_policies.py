"""Steps through a wrapper are those of a plain loop: everything in the catalogue, and models that make that hard.

With one piece and three uneven ones, by loss, by how far every parameter moves, and by what is left in the model. A
policy that cannot keep that is refused with its reason.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from advisor.goal import Fidelity
from advisor.methods.compose import worst_fidelity
from advisor.methods.setting import MethodSetting, use
from tests.truth.catalogue import WORKLOADS, Workload
from tests.truth.conftest import Probe
from tests.truth.harness import Raised, Refused, Run, loaded, plain_run, relative, wrapped_run
from tests.truth.models import MODELS

ALL = {**{f"{name} (model)": model for name, model in MODELS.items()}, **WORKLOADS}

POLICIES: dict[str, tuple[MethodSetting, ...]] = {
    "plain": (),
    "checkpoint": (use("checkpoint", every=1),),
    "residual": (use("residual_checkpoint", blocks=2, inside="everything"),),
    "selective": (use("selective_checkpoint", recompute="elementwise"),),
    "recursive": (use("recursive_checkpoint"),),
    "fused optimizer": (use("fused_optimizer"),),
    "in backward": (use("optimizer_in_backward"),),
    "bf16": (use("precision", dtype="bf16"),),
}
TOLERANCE = {Fidelity.ROUNDING: 1e-3, Fidelity.PRECISION: 0.2}

RAISE = {
    # On a CPU without bfloat16 of its own, oneDNN has no LSTM in it.
    ("a recurrent net (model)", "bf16"): "could not create a primitive descriptor",
}
"""Where a step ends with an error, and the words of it; a search counts that as failed."""

HALF = 0.02
"""Of what computes in 16 bits by itself, pieces and the batch are as far apart as roundings in that format."""

NOISY = ("noise", "skipped", "dropped for some", "generator of its own", "attention with dropout")
"""Whose random numbers are others for pieces than for the batch, and are not those of dropout."""


@pytest.mark.parametrize("name", ALL)
def test_a_step_in_one_piece_is_a_plain_step(name: str, probe: Probe, tmp_path: Path) -> None:
    workload, layout = ALL[name], probe(ALL[name])
    module = loaded(workload.source, tmp_path / "workload.py")
    plain = plain_run(module, workload.samples)
    for policy, settings in POLICIES.items():
        own = wrapped_run(module, workload.samples, workload.samples, settings, layout, tmp_path)
        if isinstance(own, Run):
            assert_as_promised(policy, plain, own, pieces=1)
        else:
            assert_said(own, name, policy)


@pytest.mark.parametrize("name", ALL)
def test_three_uneven_pieces_are_a_plain_step_or_it_is_said_that_they_are_not(
    name: str, probe: Probe, tmp_path: Path
) -> None:
    workload, layout = ALL[name], probe(ALL[name])
    assert workload.changes in layout.changes_when_split, layout.changes_when_split
    assert bool(workload.changes) == bool(layout.changes_when_split), layout.changes_when_split
    if workload.changes or any(word in name for word in NOISY):
        return  # another training, which a search may not choose; or other random numbers
    module = loaded(workload.source, tmp_path / "workload.py")
    plain = plain_run(module, workload.samples, dropout=False)
    least = HALF if "autocast" in name else 0.0
    for policy, settings in POLICIES.items():
        own = wrapped_run(module, workload.samples, workload.micro_batch, settings, layout, tmp_path, dropout=False)
        if isinstance(own, Run):
            assert_as_promised(policy, plain, own, pieces=3, least=least)
        else:
            assert_said(own, name, policy)


@pytest.mark.parametrize("policy", [name for name, settings in POLICIES.items() if settings])
def test_a_refusal_is_not_the_rule(policy: str, probe: Probe, tmp_path: Path) -> None:
    """Trap: a method that refused everything would keep every promise."""
    workload = MODELS["a residual block"]
    module = loaded(workload.source, tmp_path / "workload.py")
    assert isinstance(wrapped_run(module, 7, 7, POLICIES[policy], probe(workload), tmp_path), Run)


def test_the_harness_sees_a_step_that_is_not_the_plain_one(tmp_path: Path, probe: Probe) -> None:
    workload = Workload(MODELS["a residual block"].text.replace("F.cross_entropy", "3 * F.cross_entropy"))
    wrong = loaded(workload.source, tmp_path / "wrong.py")
    right = loaded(MODELS["a residual block"].source, tmp_path / "right.py")
    with pytest.raises(AssertionError):
        assert_as_promised("plain", plain_run(right, 7), plain_run(wrong, 7), pieces=3)


# ---- helpers


def assert_said(ended: Refused | Raised, name: str, policy: str) -> None:
    """A policy that cannot be kept is refused with a reason; that a step raises is known of very few."""
    if isinstance(ended, Raised):
        assert RAISE.get((name, policy), "nothing is known to raise here") in ended.error
        return
    assert policy != "plain", f"plain training applies to everything: {ended.reason}"
    assert len(ended.reason.split()) >= 5, ended.reason


def assert_as_promised(policy: str, plain: Run, own: Run, *, pieces: int, least: float = 0.0) -> None:
    fidelity = worst_fidelity(POLICIES[policy], accumulation_steps=pieces, facts=None)
    tolerance = max(least, TOLERANCE.get(fidelity, 0.0))
    assert own.losses == pytest.approx(plain.losses, rel=tolerance, abs=0.0), policy
    for ours, theirs in zip(own.moved, plain.moved, strict=True):
        if fidelity is Fidelity.EXACT:
            assert not [name for name, exact in theirs.items() if not torch.equal(ours[name], exact)], policy
        assert relative(ours, theirs) <= tolerance, policy
    if pieces == 1:
        assert_same_state(policy, plain, own, tolerance)


def assert_same_state(policy: str, plain: Run, own: Run, tolerance: float) -> None:
    for name, expected in plain.state.items():
        about = f"{policy}: {name}"
        assert name in own.state, about
        found = own.state[name]
        if isinstance(expected, torch.Tensor) and expected.is_floating_point():
            assert torch.allclose(found.double(), expected.double(), rtol=tolerance, atol=tolerance), about
        elif isinstance(expected, torch.Tensor):
            assert torch.equal(found, expected), about
        else:
            assert found == pytest.approx(expected, rel=tolerance, abs=tolerance), about
