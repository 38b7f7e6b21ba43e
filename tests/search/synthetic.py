"""A search space and a function over it that need no methods, no model and no trial."""

from __future__ import annotations

import math
import random

from advisor.goal import Fidelity
from advisor.methods.setting import MethodSetting, use
from advisor.search.space.space import Axis, Combination, ResolvedRecipe, ResolvedSpace, pair_of

SETTINGS = {
    "precision": (use("precision", dtype="bf16"), use("precision", dtype="fp16"), use("precision", dtype="tf32")),
    "checkpoint": (use("checkpoint", every=1), use("checkpoint", every=2), use("checkpoint", every=4)),
    "attention": (use("attention", recompute=True), use("attention", recompute=False)),
    "swap": (use("swap", gib=1), use("swap", gib=4)),
    "small_adam": (use("small_adam"),),
    "chunked": (use("chunked", chunks=4), use("chunked", chunks=8)),
}

RATES = {
    "precision(dtype=bf16)": 1.9,
    "precision(dtype=fp16)": 1.6,
    "precision(dtype=tf32)": 1.3,
    "checkpoint(every=1)": 0.75,
    "checkpoint(every=2)": 0.85,
    "checkpoint(every=4)": 1.1,
    "attention(recompute=True)": 0.9,
    "attention(recompute=False)": 1.0,
    "swap(gib=1)": 0.8,
    "swap(gib=4)": 0.6,
    "small_adam": 1.15,
    "chunked(chunks=4)": 1.2,
    "chunked(chunks=8)": 1.05,
}

FRACTION_RATES = {1.0: 1.0, 0.75: 1.04, 0.5: 0.95, 0.25: 0.8}


def space(
    *methods: str,
    fractions: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25),
    recipes: tuple[ResolvedRecipe, ...] = (),
    conflicts: tuple[tuple[MethodSetting, MethodSetting], ...] = (),
) -> ResolvedSpace:
    return ResolvedSpace(
        name="synthetic",
        fidelity=Fidelity.LOSSY,
        axes=tuple(Axis(method=name, settings=SETTINGS[name]) for name in methods or SETTINGS),
        batch_fractions=fractions,
        recipes=recipes,
        refused={},
        dropped_recipes={},
        conflicts={pair_of(first, second): "they exclude each other" for first, second in conflicts},
    )


def recipe(name: str, *settings: MethodSetting, hand_tuned: bool = False) -> ResolvedRecipe:
    return ResolvedRecipe(name=name, hand_tuned=hand_tuned, settings=tuple(sorted(settings, key=lambda one: one.name)))


def rate(settings: tuple[MethodSetting, ...], fraction: float) -> float:
    """Samples per second: a product, with one interaction, as real combinations have."""
    product = 100.0 * FRACTION_RATES[fraction]
    for one in settings:
        product *= RATES[one.label]
    labels = {one.label for one in settings}
    if {"precision(dtype=bf16)", "small_adam"} <= labels:
        product *= 1.1
    return product


class Instance:
    """384 combinations whose times are drawn from a seed: effects, interactions, noise and a pair that crashes.

    Effects are as large as those of real methods (a factor of 0.6 to 1.6 mostly), and ten pairs of settings do not just
    add up, by about 8 % each. One pair of settings crashes, in a twelfth of the combinations or less.
    """

    NOISE = 0.02

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        names = {"first": 3, "second": 3, "third": 2, "fourth": 1, "fifth": 1, "sixth": 1}
        self.axes = tuple(
            Axis(method=name, settings=tuple(use(name, level=level) for level in range(count)))
            for name, count in names.items()
        )
        settings = [setting for axis in self.axes for setting in axis.settings]
        self.effects = {setting.label: self._random.gauss(0, 0.25) for setting in settings}
        pairs = [pair_of(*self._random.sample(settings, 2)) for _ in range(10)]
        self.interactions = {pair: self._random.gauss(0, 0.08) for pair in pairs}
        self.crash = frozenset(pair_of(*(self._random.choice(axis.settings) for axis in self.axes[:2])))
        self.own = {combination.label: self._random.gauss(0, 0.01) for combination in self.space().combinations()}
        self.least = min(seconds for one in self.space().combinations() if (seconds := self.seconds(one)) is not None)

    def space(self, **ratios: float) -> ResolvedSpace:
        return ResolvedSpace(
            name="instance",
            fidelity=Fidelity.LOSSY,
            axes=self.axes,
            batch_fractions=(1.0,),
            recipes=(),
            refused={},
            dropped_recipes={},
            conflicts={},
            time_ratios=ratios,
        )

    def seconds(self, combination: Combination) -> float | None:
        """Seconds per sample without noise; ``None`` if the combination crashes."""
        labels = {one.label for one in combination.settings}
        if self.crash <= labels:
            return None
        log = self.own[combination.label] + sum(self.effects[label] for label in labels)
        log += sum(effect for pair, effect in self.interactions.items() if labels >= set(pair))
        return math.exp(log)

    def measured(self, combination: Combination) -> float | None:
        """Samples per second as a trial measures them; ``None`` if it crashes."""
        seconds = self.seconds(combination)
        return None if seconds is None else 1 / (seconds * math.exp(self._random.gauss(0, self.NOISE)))
