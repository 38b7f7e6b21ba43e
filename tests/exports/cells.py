"""Which settings are trained as each trainer's export says them: what tests run, and the page on trainers shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from advisor.methods.catalogue import get_method
from advisor.methods.compose import settings_of
from advisor.methods.setting import MethodSetting, use
from advisor.policy.file import PolicyFile
from advisor.policy.fingerprints import Fingerprints
from tests.exports.policies import file_of

__all__ = [
    "BUILT",
    "BY_TORCHTITAN",
    "FP16_UNDER_ZERO",
    "FSDP",
    "ON_A_GPU",
    "ON_GPUS",
    "ON_GPUS_UNDER",
    "ON_GPUS_WITH_DEEPSPEED",
    "ON_HARDWARE",
    "ON_RANKS",
    "ON_RANKS_ELSEWHERE",
    "PER_STEP",
    "TRAINED",
    "UNDER_VARIABLES",
    "UNDER_VARIABLES_ELSEWHERE",
    "VARIABLES",
    "WITH_ADAPTERS",
    "WITH_LIGER",
    "Cell",
    "OnRanks",
    "on_a_cpu",
]

PER_STEP = 8
"""Samples of one optimizer step on ranks: two micro-batches of two on each of two ranks."""

BF16 = use("precision", dtype="bf16")
FP16 = use("precision", dtype="fp16")
FLOAT8 = use("float8", scale="tensorwise")
EVERY_BLOCK = use("checkpoint", every=1)
FUSED = use("fused_optimizer")
FSDP = use("fsdp", mixed_precision="none", offload=False, reshard=True)
FSDP_BF16 = use("fsdp", mixed_precision="bf16", offload=False, reshard=True)


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
        Cell((use("adam_8bit"),), tolerance=1e-2),
        Cell((use("adam_low_bit", state="8bit"),), tolerance=1e-3),
        Cell((use("adam_low_bit", state="4bit"),), tolerance=1e-2, differs=True),
        Cell((use("adafactor"),), tolerance=0.5, differs=True),
        Cell((use("compile", scope="model"),), tolerance=1e-3),
        Cell((use("compile", scope="blocks"),), tolerance=1e-3),
        Cell((use("checkpoint", every=2), FUSED, BF16), norm=0.1, tolerance=2e-2),
    ),
    "accelerate": (
        Cell(),
        Cell((BF16,), tolerance=2e-2),
        Cell((use("compile", scope="model"),), tolerance=1e-3),
        Cell((use("compile", scope="blocks"),), tolerance=1e-3),
        Cell((FLOAT8,), tolerance=0.3),
        Cell((FLOAT8, BF16), tolerance=0.3),
    ),
    "lightning": (
        Cell(),
        Cell(norm=0.1),
        Cell((BF16,), norm=0.1, tolerance=2e-2),
        Cell((use("pure_bf16", rounding="nearest"),), tolerance=1e-4, differs=True),
    ),
    "deepspeed": (
        Cell(),
        Cell(norm=0.1),
        Cell((FUSED,), norm=0.1),
        Cell((BF16,), tolerance=2e-2),
        Cell((use("host_optimizer"),), norm=0.1),
        Cell((FP16,), tolerance=2e-2),  # the last: its format stays for the whole process
    ),
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
        Cell((FLOAT8,), tolerance=0.3),
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
        Cell((use("adam_8bit"),), tolerance=1e-2),
        Cell((use("compile", scope="model"),), tolerance=1e-3),
        Cell((use("chunked_cross_entropy", chunks=8),), tolerance=1e-3),
    ),
}
"""Name of the trainer -> what it trains."""

ON_A_GPU: dict[str, tuple[Cell, ...]] = {
    "hf": (
        Cell(tolerance=1e-3),
        Cell((FP16,), tolerance=2e-2),
        Cell((use("precision", dtype="tf32"),), tolerance=1e-2),
        Cell((FSDP,), tolerance=1e-3),
        Cell((FSDP, EVERY_BLOCK), tolerance=1e-3),
    ),
    "accelerate": (
        Cell((FP16,), tolerance=2e-2),
        Cell((FLOAT8,), tolerance=0.3),
        Cell((FLOAT8, FP16), tolerance=0.3),
    ),
    "lightning": (Cell((FP16,), tolerance=2e-2),),
}
"""Name of the trainer -> what it trains on a GPU, or on the software one."""

FP16_UNDER_ZERO = Cell((use("zero_1"), FP16), norm=0.0, tolerance=2e-2)
"""What DeepSpeed trains without clipping."""

BUILT = {"hf": (use("adam_8bit"), use("adam_low_bit", state="4bit"), use("adafactor"))}
"""Name of the trainer -> settings of which a test asserts what the trainer builds, and in what it differs."""


VARIABLES = (use("intraop_threads", count=2), use("retain_freed_memory"))
"""Settings of the process, which every export leaves to its environment."""
UNDER_VARIABLES = ("hf", "accelerate", "lightning", "deepspeed")
"""Names of the trainers that train with these."""


_HERE = {"offload": False, "hook": "fp16"}


def _ddp(*, views: bool = False, static: bool = False) -> MethodSetting:
    return use("ddp", bucket_views=views, static_graph=static)


def on_a_cpu(*settings: MethodSetting) -> tuple[MethodSetting, ...]:
    """What the wrapper does of them on a CPU: it moves nothing to the host, which changes no number, and sends float16
    in place of bfloat16, which it leaves to NCCL."""
    kept = [setting for setting in settings if setting.name != "host_optimizer"]
    return tuple(
        use(one.name, **{**one.parameters, **{name: value for name, value in _HERE.items() if name in one.parameters}})
        if one.parameters.get("offload") or one.parameters.get("hook") == "bf16"
        else one
        for one in kept
    )


class OnRanks(NamedTuple):
    """A policy for two devices that is exported to a trainer.

    Attributes:
        trainer: Its name.
        settings: The methods of the policy.
        accumulation_steps: Micro-batches of a step.
        same: Whether the export says all of it.
        tolerance: As of a :class:`Cell`.
        device: Where it was measured.
        differs: As of a :class:`Cell`.
    """

    trainer: str
    settings: tuple[MethodSetting, ...]
    accumulation_steps: int = 2
    same: bool = True
    tolerance: float = 1e-4
    device: str = "cpu"
    differs: bool = False

    @property
    def file(self) -> PolicyFile:
        """The policy, as measured there."""
        return self._file_of(self.settings)

    @property
    def wrappers(self) -> PolicyFile:
        """The one that the wrapper trains beside it."""
        return self._file_of(on_a_cpu(*self.settings) if self.device == "cpu" else self.settings)

    def _file_of(self, settings: tuple[MethodSetting, ...]) -> PolicyFile:
        steps = self.accumulation_steps
        file = file_of(*settings, micro_batch=PER_STEP // (2 * steps), accumulation_steps=steps)
        here = Fingerprints(workload={}, hardware={"kind": self.device}, versions={}, request="")
        return msgspec.structs.replace(file, fingerprints=here)


def _sent_short(hook: str) -> OnRanks:
    """Each rank rounds its gradients before they are added: to eleven bits, or to eight."""
    setting = use("gradient_compression", hook=hook)
    return OnRanks("deepspeed", (setting,), same=False, tolerance=1e-2 if hook == "fp16" else 3e-2)


def _by_zero(setting: MethodSetting) -> OnRanks:
    short = setting.parameters["mixed_precision"] == "bf16"
    return OnRanks("deepspeed", (setting,), same=False, tolerance=3e-2 if short else 1e-4)


def _on_gpus(trainer: str, *settings: MethodSetting, same: bool = True, accumulation_steps: int = 2) -> OnRanks:
    values = {value for setting in settings for value in setting.parameters.values()}
    tolerance = 0.3 if FLOAT8 in settings else 3e-2 if {"bf16", "fp16"} & values else 1e-3
    differs = FSDP in settings and FP16 in settings
    return OnRanks(trainer, settings, accumulation_steps, same, tolerance, "cuda", differs)


def _sharded_by(trainer: str) -> Iterator[tuple[str, OnRanks]]:
    """FSDP of a trainer that is built on accelerate."""
    yield f"{trainer}, sharded", _on_gpus(trainer, FSDP)
    on_the_host = use("fsdp", mixed_precision="none", offload=True, reshard=False)
    yield f"{trainer}, gathered once, on the host", _on_gpus(trainer, on_the_host)
    yield f"{trainer}, sharded in bf16", _on_gpus(trainer, FSDP_BF16, same=False)
    yield f"{trainer}, sharded and recomputed", _on_gpus(trainer, FSDP, EVERY_BLOCK)
    yield f"{trainer}, sharded beside bf16", _on_gpus(trainer, FSDP, BF16, same=False)
    yield f"{trainer}, sharded beside fp16", _on_gpus(trainer, FSDP, FP16, same=False)


def _by_arguments(trainer: str) -> Iterator[tuple[str, OnRanks]]:
    """What TrainingArguments say of DistributedDataParallel."""
    yield trainer, OnRanks(trainer, (_ddp(),))
    yield f"{trainer}, static graph", OnRanks(trainer, (_ddp(static=True),), accumulation_steps=1)
    yield f"{trainer}, static graph and accumulation", OnRanks(trainer, (_ddp(static=True),), same=False)
    yield f"{trainer}, buckets as views", OnRanks(trainer, (_ddp(views=True),), same=False)
    both = (_ddp(views=True, static=True),)
    yield f"{trainer}, buckets as views and static graph", OnRanks(trainer, both, accumulation_steps=1, same=False)
    yield f"{trainer}, buckets as views, static graph and accumulation", OnRanks(trainer, both, same=False)


ON_RANKS = {
    **dict(_by_arguments("hf")),
    "accelerate": OnRanks("accelerate", (_ddp(),)),
    "accelerate, buckets as views": OnRanks("accelerate", (_ddp(views=True),), same=False),
    "accelerate, static graph": OnRanks("accelerate", (_ddp(static=True),), accumulation_steps=1, same=False),
    "lightning": OnRanks("lightning", (_ddp(),)),
    "lightning, static graph": OnRanks("lightning", (_ddp(static=True),), accumulation_steps=1),
    "lightning, static graph and accumulation": OnRanks("lightning", (_ddp(static=True),), same=False),
    "deepspeed": OnRanks("deepspeed", (_ddp(),), same=False),
    "deepspeed, sent in fp16": _sent_short("fp16"),
    "deepspeed, sent in bf16": _sent_short("bf16"),
    "deepspeed, zero_1": OnRanks("deepspeed", (use("zero_1"),), same=False),
    "deepspeed, zero_1 and bf16": OnRanks("deepspeed", (use("zero_1"), BF16), same=False, tolerance=3e-2),
    **{f"deepspeed, {setting.label}": _by_zero(setting) for setting in settings_of(get_method("fsdp"))},
}
"""Name -> what two ranks train on CPUs."""

ON_RANKS_ELSEWHERE = dict(_by_arguments("llamafactory"))
"""The same in an environment of its own (``elsewhere.py``)."""


def _rounded(setting: MethodSetting) -> float:
    return 3e-2 if "bf16" in setting.parameters.values() else 1e-3


BY_TORCHTITAN = (
    Cell((use("compile", scope="blocks"),), tolerance=1e-3),
    *(Cell((setting,), tolerance=1e-3) for setting in settings_of(get_method("compile_budget"))),
    Cell((use("expandable_segments"), *VARIABLES), tolerance=1e-3),
    Cell(tolerance=1e-3),
    Cell(norm=0.1, tolerance=1e-3),
    Cell((FUSED,), norm=0.1, tolerance=1e-3),
    Cell((BF16,), tolerance=3e-2),
    Cell((use("pure_bf16", rounding="nearest"),), tolerance=3e-2, differs=True),
    Cell((EVERY_BLOCK,), tolerance=1e-3),
    Cell((use("selective_checkpoint", recompute="elementwise"),), tolerance=1e-3),
    Cell((use("chunked_cross_entropy", chunks=8),), tolerance=1e-3),
    Cell((_ddp(views=True),), norm=0.1, tolerance=1e-3),
    *(Cell((setting,), norm=0.1, tolerance=_rounded(setting)) for setting in settings_of(get_method("fsdp"))),
    Cell((use("tensor_parallel", sequence=True, vocabulary=True),), norm=0.1, tolerance=5e-3),
    *(
        Cell((use("pipeline", schedule=schedule),), norm=0.1, tolerance=1e-3)
        for schedule in ("1f1b", "interleaved", "gpipe")
    ),
)
"""What torchtitan trains on one GPU or two, or on software ones."""

ON_GPUS = {
    **dict(_sharded_by("hf")),
    **dict(_sharded_by("accelerate")),
    "accelerate, sharded in float8": _on_gpus("accelerate", FSDP, FLOAT8, same=False),
    "accelerate, sharded in bf16 and float8": _on_gpus("accelerate", FSDP_BF16, FLOAT8, same=False),
    "accelerate, ddp": _on_gpus("accelerate", _ddp()),
    "accelerate, buckets as views": _on_gpus("accelerate", _ddp(views=True), same=False),
    "accelerate, static graph": _on_gpus("accelerate", _ddp(static=True), same=False, accumulation_steps=1),
    "lightning, sent in fp16": _on_gpus("lightning", use("gradient_compression", hook="fp16")),
    "lightning, sent in bf16": _on_gpus("lightning", use("gradient_compression", hook="bf16")),
}
"""Name -> what two ranks train on GPUs, or on two software ones."""

ON_GPUS_WITH_DEEPSPEED = {
    "deepspeed": _on_gpus("deepspeed", _ddp(), same=False),
    "lightning, zero_1": _on_gpus("lightning", use("zero_1"), same=False, accumulation_steps=1),
    "lightning, zero_1 and accumulation": _on_gpus("lightning", use("zero_1"), same=False)._replace(differs=True),
}
"""The same where DeepSpeed is, and the compiler of CUDA that it asks for (``elsewhere.py``)."""

ON_GPUS_UNDER = (use("expandable_segments"),)
"""Settings of the process under which they train."""

WITH_ADAPTERS = tuple(setting for name in ("lora", "qlora") for setting in settings_of(get_method(name)))
"""What ``axolotl`` and ``llamafactory`` train from the same adapters as the wrapper."""

WITH_LIGER = Cell((use("chunked_cross_entropy", chunks=8),))
"""What ``hf`` trains with Liger's kernels, in Triton's interpreter."""

ON_HARDWARE: dict[str, tuple[Cell, ...]] = {
    "hf": (WITH_LIGER,),
}
"""Name of the trainer -> what nothing but a GPU trains; no test has yet run there, and so the page does not say it."""

UNDER_VARIABLES_ELSEWHERE = ("axolotl", "llamafactory")
"""Names of the trainers that train with them in an environment of their own (``elsewhere.py``)."""
