"""DeepSpeed's own optimizers and formats, as the nearest that a method has."""

from __future__ import annotations

from typing import Any

from advisor.exports.reading import MISSING, put, value_at
from advisor.text.printable import quoted

__all__ = ["with_known_format"]

_SHORT = {"bf16": "bfloat16", "fp16": "float16"}


def with_known_format(document: dict[str, Any], notes: list[str]) -> None:
    """DeepSpeed's own optimizers and formats, as the nearest that its table has."""
    for name, dtype in _SHORT.items():
        if value_at(document, f"{name}.enabled") is True:
            put(document, "torch_autocast.enabled", True)
            put(document, "torch_autocast.dtype", dtype)
            notes.append(
                f"{name}: measured as autocast; DeepSpeed also holds the weights in 16 bits, and a float32 copy"
            )
    kind = value_at(document, "optimizer.type")
    if kind is MISSING:
        return
    away = value_at(document, "zero_optimization.offload_optimizer.device") == "cpu"
    if str(kind).lower() in ("adam", "adamw"):
        if not away:
            put(document, "optimizer.type", "AdamW")
            put(document, "optimizer.params.torch_adam", True)
            put(document, "optimizer.params.fused", True)
    else:
        notes.append(f"optimizer.type: {quoted(kind)} is said by no method: AdamW is measured")
