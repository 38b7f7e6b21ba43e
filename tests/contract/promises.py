"""Whether a training keeps what its methods promise, alone or together."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from advisor.goal import Fidelity
from advisor.methods.base import Method
from advisor.methods.catalogue import get_method
from advisor.methods.compose import fidelity_of
from advisor.methods.setting import MethodSetting
from tests.contract.observe import Observation, relative_error, same

__all__ = ["UPDATE_TOLERANCE", "assert_trains_as_promised", "cosine", "update_tolerance"]

UPDATE_TOLERANCE = {
    Fidelity.EXACT: 0.0,
    Fidelity.ROUNDING: 0.05,
    Fidelity.PRECISION: 0.5,
    Fidelity.LOSSY: 0.3,
}
"""Largest relative error of how far the parameters moved. Adam divides by the size of the gradient, so the small
gradients, which are the least exact, count in full; an optimizer that does not step has an error of 1.
"""

_LEAST_COSINE = 0.2
"""Of an update with the plain one, where the tolerances of several methods would let an optimizer pass that never
steps, or gradients are random: the update must still point where the plain one does."""


def update_tolerance(method: Method) -> float:
    """Largest relative error of the update that a method promises; infinite if it promises none."""
    if method.random_gradients or method.fidelity is Fidelity.MODEL:
        return math.inf
    return UPDATE_TOLERANCE[method.fidelity] if method.update_tolerance is None else method.update_tolerance


def assert_trains_as_promised(settings: Sequence[MethodSetting], plain: Observation, changed: Observation) -> None:
    """Compare two steps of a training with the same two of plain training.

    Methods that are exact must be so to the bit. For others the errors that they allow add up; methods that change
    the model are only asked for a loss that is a number and a model that moves.
    """
    methods = [get_method(setting.name) for setting in settings]
    classes = [fidelity_of(setting) for setting in settings]
    assert all(math.isfinite(float(loss)) for loss in changed.losses)
    assert any(bool(moved.count_nonzero()) for moved in changed.updates.values()), "nothing was trained"
    if Fidelity.MODEL in classes:
        return
    if all(one is Fidelity.EXACT for one in classes):
        assert all(torch.equal(a, b) for a, b in zip(plain.losses, changed.losses, strict=True))
        for before, after in zip(plain.gradients, changed.gradients, strict=True):
            assert same(after, before)
        assert same(changed.state, plain.state)  # Parameters, and the running statistics of BatchNorm.
        return
    allowed = sum(update_tolerance(method) for method in methods)
    if not any(method.random_gradients for method in methods):
        tolerance = sum(method.gradient_tolerance for method in methods)
        assert relative_error(changed.gradients[0], plain.gradients[0]) <= tolerance
    if allowed < 1.0:
        assert relative_error(changed.updates, plain.updates) <= allowed
    else:
        assert cosine(changed.updates, plain.updates) >= _LEAST_COSINE
    assert relative_error(changed.state, plain.state) <= 0.05


def cosine(measured: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> float:
    """Of the angle between two vectors in pieces; 0 if one of them is zero."""
    assert measured.keys() == plain.keys()
    product = sum(float((measured[name].double() * plain[name].double()).sum()) for name in plain)
    sizes = [sum(float(t.double().square().sum()) for t in one.values()) ** 0.5 for one in (measured, plain)]
    return product / (sizes[0] * sizes[1]) if all(sizes) else 0.0
