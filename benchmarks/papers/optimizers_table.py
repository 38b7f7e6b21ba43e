"""Table 5 of Gusak et al. 2022: optimizers at the stages of ZeRO, for ruDALL-E Malevich on 16 A100."""

from __future__ import annotations

__all__ = [
    "ADAM",
    "ADAM_8BIT",
    "BASE",
    "CPU_ADAM",
    "FUSED_ADAM",
    "ONE_BIT_ADAM",
    "STAGES",
    "THEIRS",
]

ADAM = "Adam"
ADAM_8BIT = "8bit Adam"
CPU_ADAM = "CPU Adam"
FUSED_ADAM = "Fused Adam"
ONE_BIT_ADAM = "1bit Adam"
STAGES = (0, 1, 2, 3)
BASE = (ADAM, 0)
"""The reference of all others."""

THEIRS: dict[tuple[str, int], tuple[float, float, float]] = {
    (ADAM, 0): (69.7, 0.95, 3.540),
    (ADAM, 1): (61.6, 0.90, 3.541),
    (ADAM, 2): (60.6, 0.85, 3.541),
    (ADAM, 3): (51.9, 1.20, 3.542),
    (ADAM_8BIT, 0): (59.7, 0.88, 3.539),
    (ADAM_8BIT, 1): (60.8, 0.89, 3.540),
    (ADAM_8BIT, 2): (60.2, 0.84, 3.540),
    (ADAM_8BIT, 3): (51.3, 1.18, 3.541),
    (CPU_ADAM, 2): (59.6, 1.44, 3.541),
    (CPU_ADAM, 3): (50.1, 1.58, 3.542),
    (FUSED_ADAM, 0): (69.7, 0.90, 3.540),
    (FUSED_ADAM, 1): (61.6, 0.89, 3.541),
    (FUSED_ADAM, 2): (60.6, 0.86, 3.541),
    (FUSED_ADAM, 3): (51.9, 1.18, 3.542),
    (ONE_BIT_ADAM, 0): (73.1, 1.51, 3.523),
}
"""Optimizer and stage -> gigabytes, seconds per step, loss. Missing entries are dashes in the paper."""
