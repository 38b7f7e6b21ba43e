"""Families of main effects, from which generated problems draw how much each setting helps or hurts.

An effect is the change in the log of the seconds per sample; lower is better. The settings of one method are drawn
together as an array, so that a family can make them similar.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

__all__ = ["DEVELOPMENT", "FAMILIES", "HELD_BACK", "SPENT", "Family"]

Family = Callable[[np.random.Generator, int], np.ndarray]
"""Draws the effects of the settings of one method."""


def normal(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Normal effects of about a quarter, in either direction."""
    return generator.normal(0.0, 0.25, settings)


def heavy_tailed(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Many small effects and a few very large ones."""
    return np.clip(0.1 * generator.standard_t(2, settings), -1.2, 1.2)


def mostly_useless(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Seven in ten methods have almost no effect."""
    if generator.random() < 0.7:
        return generator.normal(0.0, 0.01, settings)
    return generator.normal(-0.1, 0.35, settings)


def correlated(generator: np.random.Generator, settings: int) -> np.ndarray:
    """The settings of one method have almost the same effect."""
    return generator.normal(0.0, 0.25) + generator.normal(0.0, 0.05, settings)


def mostly_harmful(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Most settings cost time, as methods that save memory do; a few save a lot of it."""
    effects = generator.exponential(0.2, settings)
    return np.where(generator.random(settings) < 0.3, -effects, effects)


def stepped(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Effects of only five sizes."""
    return generator.choice([-0.35, -0.12, 0.0, 0.12, 0.35], settings)


def graded(generator: np.random.Generator, settings: int) -> np.ndarray:
    """The settings of a method are steps of one dial, with the best somewhere in between."""
    best = generator.uniform(-1, settings)
    gain, steepness = generator.normal(-0.15, 0.2), generator.uniform(0.02, 0.15)
    effects: np.ndarray = gain + steepness * np.abs(np.arange(settings) - best)
    return effects


def flat(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Uniform, from a third less to half as long again."""
    return generator.uniform(-0.4, 0.4, settings)


def rare(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Nearly everything costs a little, and one setting in eight saves a third of the time or more."""
    saves = generator.random(settings) < 1 / 8
    return np.where(saves, -generator.uniform(0.3, 0.7, settings), generator.uniform(0.0, 0.1, settings))


def opposed(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Settings of one method alternate in sign."""
    signs = np.where(np.arange(settings) % 2, -1, 1)
    effects: np.ndarray = generator.exponential(0.2) * signs * generator.choice([-1, 1])
    effects += generator.normal(0.0, 0.03, settings)
    return effects


def dominated(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Of each method one setting matters, and it helps twice as often as it hurts."""
    effects: np.ndarray = generator.normal(0.0, 0.02, settings)
    effects[generator.integers(settings)] = generator.exponential(0.25) * generator.choice([-1, -1, 1])
    return effects


def two_humped(generator: np.random.Generator, settings: int) -> np.ndarray:
    """A method saves about a quarter of the time or costs about a seventh, with nothing in between."""
    humps = np.where(generator.random(settings) < 0.4, -0.28, 0.14)
    return humps + generator.normal(0.0, 0.05, settings)


def skewed(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Lognormal costs about a small saving: most settings are near it, some are far more expensive."""
    return generator.lognormal(-2.0, 0.8, settings) - generator.uniform(0.0, 0.3)


def ramped(generator: np.random.Generator, settings: int) -> np.ndarray:
    """The settings of a method are steps of one dial that helps or hurts more with every step."""
    effects: np.ndarray = generator.normal(-0.03, 0.12) * np.arange(1, settings + 1)
    effects += generator.normal(0.0, 0.02, settings)
    return effects


def one_saver(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Of each method one setting saves time, from nearly nothing to a third; the others cost a tenth."""
    effects = generator.exponential(0.1, settings)
    effects[generator.integers(settings)] = -generator.uniform(0.0, 0.35)
    return effects


def triangular(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Most often near a small cost, seldom far from it, and never beyond 45 % either way."""
    return generator.triangular(-0.45, 0.05, 0.45, settings)


def two_sided(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Laplace effects: sharply peaked at a small cost, with large ones on either side."""
    return np.clip(generator.laplace(0.02, 0.16, settings), -1.0, 1.0)


def ranked(generator: np.random.Generator, settings: int) -> np.ndarray:
    """The settings of a method are evenly spaced from its best to its worst, in any order."""
    best, worst = -generator.exponential(0.2), generator.exponential(0.15)
    effects: np.ndarray = generator.permutation(np.linspace(best, worst, settings))
    return effects


def two_kinds(generator: np.random.Generator, settings: int) -> np.ndarray:
    """Of two methods in five every setting saves time, about a sixth; of the others every one costs about an eighth."""
    if generator.random() < 0.4:
        return -generator.gamma(3.0, 0.06, settings)
    return generator.gamma(3.0, 0.045, settings)


DEVELOPMENT = ("normal", "heavy tailed", "mostly useless", "correlated")
"""Families for developing the search."""

SPENT = (
    "mostly harmful",
    "stepped",
    "graded",
    "flat",
    "rare",
    "opposed",
    "dominated",
    "two humped",
    "skewed",
    "ramped",
    "one saver",
    "triangular",
)
"""Families that have been used to judge an earlier search."""

HELD_BACK = ("two sided", "ranked", "two kinds")
"""Held-out families for judging the search."""

FAMILIES: dict[str, Family] = {
    "normal": normal,
    "heavy tailed": heavy_tailed,
    "mostly useless": mostly_useless,
    "correlated": correlated,
    "mostly harmful": mostly_harmful,
    "stepped": stepped,
    "graded": graded,
    "flat": flat,
    "rare": rare,
    "opposed": opposed,
    "dominated": dominated,
    "two humped": two_humped,
    "skewed": skewed,
    "ramped": ramped,
    "one saver": one_saver,
    "triangular": triangular,
    "two sided": two_sided,
    "ranked": ranked,
    "two kinds": two_kinds,
}
"""Name -> family."""
