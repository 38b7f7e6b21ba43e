"""How large the batch of a combination will be, from those of others."""

from __future__ import annotations

import math

import numpy as np
import pytest

from advisor.search.propose.batch_model import BatchModel
from advisor.search.space.factors import Choice, Factors, Levels
from advisor.search.space.space import Combination

from .synthetic import SETTINGS, space

SPACE = space("checkpoint", "small_adam", "swap", fractions=(1.0,))
FACTORS = Factors(SPACE)
CHECKPOINT, ADAM, SWAP = SETTINGS["checkpoint"][0], SETTINGS["small_adam"][0], SETTINGS["swap"][0]


def levels(*every: tuple[object, ...]) -> Levels:
    return FACTORS.levels(Choice(Combination(settings), 1.0) for settings in every)  # type: ignore[arg-type]


KNOWN = levels((), (CHECKPOINT,), (ADAM,))
MODEL = BatchModel(FACTORS, KNOWN, np.log([8.0, 64.0, 16.0]))


def test_what_is_known_is_expected() -> None:
    found = MODEL.estimate(KNOWN)
    assert np.exp(found.mean) == pytest.approx([8, 64, 16], rel=0.1)
    assert found.deviation.max() < 0.1


def test_two_methods_that_save_memory_save_more_together() -> None:
    found = MODEL.estimate(levels((CHECKPOINT, ADAM)))
    assert found.mean[0] > math.log(64)
    assert found.deviation[0] > 0.1


def test_of_what_was_never_used_little_is_known() -> None:
    found = MODEL.estimate(levels((CHECKPOINT,), (SWAP,)))
    assert found.deviation[1] > 3 * found.deviation[0]
