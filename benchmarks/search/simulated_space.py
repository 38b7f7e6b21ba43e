"""The methods of the simulated problem: invented ones with the structure of real ones, on one to eight devices."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np

from advisor.goal import Fidelity
from advisor.hardware.mesh import MeshAxis
from advisor.methods.setting import MethodSetting
from advisor.search.space.space import Axis, Combination, ResolvedRecipe, ResolvedSpace

__all__ = ["GPU_COUNTS", "LEVELS", "SHARDING", "SIZES", "Levels"]

LEVELS: dict[str, tuple[str, ...]] = {
    "channels_last": ("off", "on"),
    "checkpoint": ("off", "selective", "full"),
    "chunked_loss": ("off", "on"),
    "compile": ("off", "default", "reduce_overhead", "max_autotune"),
    "flash_attention": ("off", "on"),
    "offload_activations": ("off", "on"),
    "offload_optimizer": ("off", "on"),
    "optimizer": ("off", "fused", "8bit"),
    "precision": ("off", "tf32", "amp", "bf16"),
}
"""Method -> its levels, the first of which is off."""

SHARDING = ("ddp", "zero_1", "zero_2", "fsdp", "fsdp_prefetch")
"""Distributed methods, exactly one of which is used on several devices."""

GPU_COUNTS = (1, 2, 4, 8)

SIZES: dict[str, dict[str, tuple[str, ...]]] = {
    "small": {
        "checkpoint": ("off", "full"),
        "compile": ("off", "default"),
        "flash_attention": ("off", "on"),
        "offload_activations": ("off", "on"),
        "optimizer": ("off", "fused"),
        "precision": ("off", "amp", "bf16"),
        "sharding": ("ddp",),
    },
    "large": {**LEVELS, "sharding": SHARDING},
}
"""384 and 73,728 combinations, regardless of batch."""


class Levels:
    """Every combination as a row of level numbers, and the mapping from combinations to rows.

    Args:
        size: One of :data:`SIZES`.

    Attributes:
        codes: Method -> level number of every combination, as in :data:`LEVELS` (0 for methods that are not offered).
        gpu_count: Number of devices of every combination.
        sharding: Number of the distributed method, -1 on one device.
        space: The space in the form that a search sees.
    """

    def __init__(self, size: str) -> None:
        offered = SIZES[size]
        self._methods = [name for name in LEVELS if name in offered]
        self._offered = [offered[name] for name in self._methods]
        self._ways = offered["sharding"]
        self._places = [(1, -1)] + [(count, SHARDING.index(way)) for count in GPU_COUNTS[1:] for way in self._ways]
        rows = np.array(
            list(itertools.product(*(range(len(levels)) for levels in self._offered), range(len(self._places)))),
            dtype=np.int16,
        )
        self.codes: dict[str, np.ndarray] = {name: np.zeros(len(rows), dtype=np.int16) for name in LEVELS}
        for column, (name, levels) in enumerate(zip(self._methods, self._offered, strict=True)):
            numbers = np.array([LEVELS[name].index(level) for level in levels], dtype=np.int16)
            self.codes[name] = numbers[rows[:, column]]
        places = np.array(self._places)
        self.gpu_count: np.ndarray = places[rows[:, -1], 0]
        self.sharding: np.ndarray = places[rows[:, -1], 1]
        self._shape = (*(len(levels) for levels in self._offered), len(self._places))
        self.space = self._space(size)

    def __len__(self) -> int:
        return len(self.gpu_count)

    def row(self, combination: Combination) -> int:
        """The row of a combination."""
        chosen = {setting.name: str(setting.parameters["level"]) for setting in combination.settings}
        place = (combination.gpu_count, SHARDING.index(chosen["sharding"]) if "sharding" in chosen else -1)
        index = [
            levels.index(chosen.get(name, "off")) for name, levels in zip(self._methods, self._offered, strict=True)
        ]
        return int(np.ravel_multi_index((*index, self._places.index(place)), self._shape))

    def offered(self, method: str) -> int:
        """How many levels of a method are offered, including off."""
        return len(self._offered[self._methods.index(method)])

    def pairs(self) -> list[tuple[str, int]]:
        """Every offered level of every method other than off: candidates for crashing pairs."""
        return [
            (name, LEVELS[name].index(level))
            for name, levels in zip(self._methods, self._offered, strict=True)
            for level in levels[1:]
        ]

    def _space(self, size: str) -> ResolvedSpace:
        axes = [
            Axis(method=name, settings=tuple(_setting(name, level) for level in levels[1:]))
            for name, levels in zip(self._methods, self._offered, strict=True)
        ]
        axes.append(
            Axis(
                method="sharding",
                settings=tuple(_setting("sharding", way) for way in self._ways),
                divides=MeshAxis.DATA,
            )
        )
        return ResolvedSpace(
            name=f"simulated {size}",
            fidelity=Fidelity.LOSSY,
            axes=tuple(axes),
            batch_fractions=(1.0, 0.5),
            recipes=tuple(self._recipes()),
            refused={},
            dropped_recipes={},
            conflicts={},
            gpu_counts=GPU_COUNTS,
        )

    def _recipes(self) -> list[ResolvedRecipe]:
        hand_tuned = {"precision": "amp", "optimizer": "fused"}
        recipes: dict[str, Mapping[str, str]] = {
            "hand-tuned default": hand_tuned,
            "compiled": {**hand_tuned, "compile": "default"},
            "checkpointing": {"precision": "amp", "checkpoint": "full"},
        }
        return [
            ResolvedRecipe(
                name=name,
                hand_tuned=name == "hand-tuned default",
                settings=tuple(_setting(method, level) for method, level in sorted(methods.items())),
            )
            for name, methods in recipes.items()
        ]


def _setting(name: str, level: str) -> MethodSetting:
    return MethodSetting(name=name, parameters={"level": level})
