"""What axolotl and LLaMA-Factory train on GPUs, or on software ones, in their own environments (``elsewhere.py``)."""

from __future__ import annotations

from advisor.methods.setting import use
from tests.exports.cells import BF16, EVERY_BLOCK, FLOAT8, FP16, FSDP, FSDP_BF16, VARIABLES, Cell

__all__ = ["FAILING_ELSEWHERE", "LAUNCHED", "ON_GPUS_ELSEWHERE", "ON_GPUS_UNDER", "PURE_BF16", "TF32"]

TF32 = use("precision", dtype="tf32")
PURE_BF16 = use("pure_bf16", rounding="nearest")
ON_THE_HOST = use("fsdp", mixed_precision="none", offload=True, reshard=False)
LORA, QLORA = use("lora", rank=8), use("qlora", rank=8)

EXACT = (
    Cell(tolerance=1e-3),
    Cell((TF32,), norm=1.0, tolerance=1e-3),
    Cell((use("ddp", bucket_views=False, static_graph=False),), norm=1.0, tolerance=1e-3),
    Cell((use("ddp", bucket_views=True, static_graph=False),), norm=1.0, tolerance=1e-3),
    Cell((FSDP,), norm=1.0, tolerance=1e-3),
    Cell((ON_THE_HOST,), norm=1.0, tolerance=1e-3),
    Cell((FSDP, EVERY_BLOCK), norm=1.0, tolerance=1e-3),
)
"""What both train as the wrapper does."""

ON_GPUS_ELSEWHERE: dict[str, tuple[Cell, ...]] = {
    "axolotl": (
        *EXACT,
        Cell((BF16,), norm=1.0, tolerance=3e-2, differs=True),
        Cell((PURE_BF16,), norm=1.0, tolerance=1e-3, differs=True),
        Cell((FLOAT8,), norm=1.0, tolerance=0.3, differs=True),
        Cell((FSDP_BF16,), norm=1.0, tolerance=3e-2, differs=True),
        Cell((FSDP, BF16), norm=1.0, tolerance=3e-2, differs=True),
        Cell((LORA, FP16), norm=1.0, tolerance=3e-2),
    ),
    "llamafactory": (
        *EXACT,
        Cell((BF16,), norm=1.0, tolerance=3e-2),
        Cell((FP16,), norm=1.0, tolerance=3e-2),
        Cell((PURE_BF16,), norm=1.0, tolerance=0.2),
        Cell((FLOAT8,), norm=1.0, tolerance=0.3),
        Cell((FSDP_BF16,), norm=1.0, tolerance=3e-2),
        Cell((FSDP, BF16), norm=1.0, tolerance=3e-2),
        Cell((FSDP, FP16), norm=1.0, tolerance=3e-2, differs=True),
        Cell((LORA, FP16), norm=1.0, tolerance=3e-2),
        Cell((QLORA,), norm=1.0, tolerance=3e-2),
    ),
}
"""Name of the trainer -> what it trains."""

FAILING_ELSEWHERE: dict[str, tuple[Cell, ...]] = {"axolotl": (Cell((FP16,), norm=1.0),), "llamafactory": ()}
"""Name of the trainer -> what it fails with, where its configuration says so all the same."""

ON_GPUS_UNDER = (use("expandable_segments"), *VARIABLES)
"""Settings of the process under which they train."""

_TOGETHER = use("ddp", bucket_views=False, static_graph=False)
LAUNCHED = {
    name: (
        Cell(norm=1.0, tolerance=1e-3),
        Cell((_TOGETHER,), norm=1.0, tolerance=1e-3),
        Cell((_TOGETHER, use("expandable_segments")), norm=1.0, tolerance=1e-3),
    )
    for name in ("axolotl", "llamafactory")
}
"""Name of the trainer -> what the ranks that its own launcher starts train, on a machine with two devices."""
