"""Which settings are trained as each trainer's export says them: what tests run, and the page on trainers shows."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from advisor.methods.setting import MethodSetting, use
from advisor.policy.file import PolicyFile
from advisor.policy.fingerprints import Fingerprints
from tests.exports.policies import file_of

__all__ = [
    "BUILT",
    "FSDP",
    "ON_A_GPU",
    "ON_RANKS",
    "PER_STEP",
    "TRAINED",
    "UNDER_VARIABLES",
    "VARIABLES",
    "Cell",
    "OnRanks",
]

PER_STEP = 8
"""Samples of one optimizer step on ranks: two micro-batches of two on each of two ranks."""

BF16 = use("precision", dtype="bf16")
EVERY_BLOCK = use("checkpoint", every=1)
FUSED = use("fused_optimizer")
FSDP = use("fsdp", mixed_precision="none", offload=False, reshard=True)


class Cell(NamedTuple):
    """A policy for one device that a trainer trains two steps by its export.

    Attributes:
        settings: The methods of the policy.
        norm: What gradients are clipped to.
        tolerance: How far its parameters may be from the wrapper's, relative to how far they moved.
        differs: Whether they must be further off than that, as the export says that something differs.
    """

    settings: tuple[MethodSetting, ...] = ()
    norm: float | None = None
    tolerance: float = 1e-4
    differs: bool = False

    def __str__(self) -> str:
        """As tests are named by it."""
        return f"{'+'.join(setting.label for setting in self.settings) or 'plain'}-{self.norm}"


TRAINED: dict[str, tuple[Cell, ...]] = {
    "hf": (
        Cell(),
        Cell(norm=0.1),
        Cell((FUSED,)),
        Cell((EVERY_BLOCK,)),
        Cell((use("checkpoint", every=2),), norm=0.1),
        Cell((BF16,), tolerance=2e-2),
        Cell((use("adam_low_bit", state="8bit"),), tolerance=1e-3),
        Cell((use("compile", scope="model"),), tolerance=1e-3),
        Cell((use("compile", scope="blocks"),), tolerance=1e-3),
        Cell((use("checkpoint", every=2), FUSED, BF16), norm=0.1, tolerance=2e-2),
    ),
    "accelerate": (
        Cell(),
        Cell((BF16,), tolerance=2e-2),
        Cell((use("compile", scope="model"),), tolerance=1e-3),
        Cell((use("compile", scope="blocks"),), tolerance=1e-3),
    ),
    "lightning": (
        Cell(),
        Cell(norm=0.1),
        Cell((BF16,), norm=0.1, tolerance=2e-2),
        Cell((use("pure_bf16", rounding="nearest"),), tolerance=1e-4, differs=True),
    ),
    "deepspeed": (Cell(), Cell(norm=0.1), Cell((FUSED,), norm=0.1), Cell((BF16,), tolerance=2e-2)),
    "llamafactory": (
        Cell(),
        Cell((FUSED,), norm=0.1),
        Cell((EVERY_BLOCK,)),
        Cell((EVERY_BLOCK, BF16), norm=0.1, tolerance=2e-2),
        Cell((use("compile", scope="model"),), tolerance=1e-3),
        Cell((use("adam_8bit"),), tolerance=1e-2),
        Cell((use("adam_low_bit", state="8bit"),), tolerance=1e-3),
        Cell((use("adam_low_bit", state="4bit"),), tolerance=1e-2, differs=True),
        Cell((use("adafactor"),), tolerance=0.5, differs=True),
        Cell((use("muon"),), tolerance=0.5, differs=True),
    ),
    "axolotl": (
        Cell(),
        Cell(norm=0.1),
        Cell((FUSED,)),
        Cell((EVERY_BLOCK,)),
        Cell((use("adam_low_bit", state="8bit"),)),
        Cell((use("adam_low_bit", state="fp8"),)),
        Cell((use("adam_low_bit", state="4bit"),), tolerance=1e-2, differs=True),
        Cell((use("adafactor"),), tolerance=0.5, differs=True),
        Cell((use("muon"),), tolerance=0.5, differs=True),
    ),
}
"""Name of the trainer -> what it trains."""

ON_A_GPU = (
    Cell(tolerance=1e-3),
    Cell((use("precision", dtype="fp16"),), tolerance=2e-2),
    Cell((use("precision", dtype="tf32"),), tolerance=1e-2),
    Cell((FSDP,), tolerance=1e-3),
    Cell((FSDP, EVERY_BLOCK), tolerance=1e-3),
)
"""What ``hf`` trains on a GPU, or on the software one."""

BUILT = {"hf": (use("adam_8bit"), use("adam_low_bit", state="4bit"), use("adafactor"))}
"""Name of the trainer -> settings of which a test asserts what the trainer builds, and in what it differs."""


VARIABLES = (use("intraop_threads", count=2), use("retain_freed_memory"))
"""Settings of the process, which every export leaves to its environment."""
UNDER_VARIABLES = ("hf", "accelerate", "lightning", "deepspeed")
"""Names of the trainers that train with these."""


def _ddp(*, views: bool = False, static: bool = False) -> MethodSetting:
    return use("ddp", bucket_views=views, static_graph=static)


class OnRanks(NamedTuple):
    """A policy for two devices that is exported to a trainer.

    Attributes:
        trainer: Its name.
        settings: The methods of the policy.
        accumulation_steps: Micro-batches of a step.
        same: Whether the export says all of it.
    """

    trainer: str
    settings: tuple[MethodSetting, ...]
    accumulation_steps: int = 2
    same: bool = True

    @property
    def file(self) -> PolicyFile:
        """The policy, as measured on a CPU."""
        steps = self.accumulation_steps
        file = file_of(*self.settings, micro_batch=PER_STEP // (2 * steps), accumulation_steps=steps)
        here = Fingerprints(workload={}, hardware={"kind": "cpu"}, versions={}, request="")
        return msgspec.structs.replace(file, fingerprints=here)


ON_RANKS = {
    "hf": OnRanks("hf", (_ddp(),)),
    "hf, static graph": OnRanks("hf", (_ddp(static=True),), accumulation_steps=1),
    "hf, static graph and accumulation": OnRanks("hf", (_ddp(static=True),), same=False),
    "hf, buckets as views": OnRanks("hf", (_ddp(views=True),), same=False),
    "accelerate": OnRanks("accelerate", (_ddp(),)),
    "accelerate, buckets as views": OnRanks("accelerate", (_ddp(views=True),), same=False),
    "accelerate, static graph": OnRanks("accelerate", (_ddp(static=True),), accumulation_steps=1, same=False),
    "lightning": OnRanks("lightning", (_ddp(),)),
    "lightning, static graph": OnRanks("lightning", (_ddp(static=True),), accumulation_steps=1),
    "lightning, static graph and accumulation": OnRanks("lightning", (_ddp(static=True),), same=False),
    "lightning, sent in fp16": OnRanks("lightning", (use("gradient_compression", hook="fp16"),)),
    "deepspeed": OnRanks("deepspeed", (_ddp(),), same=False),
    "deepspeed, zero_1": OnRanks("deepspeed", (use("zero_1"),), same=False),
    "deepspeed, sharded": OnRanks("deepspeed", (FSDP,), same=False),
    "deepspeed, gathered once": OnRanks(
        "deepspeed", (use("fsdp", mixed_precision="none", offload=False, reshard=False),), same=False
    ),
}
