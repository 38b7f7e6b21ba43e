"""A picture of measured memory: bars with and without a method, of the rows of ``benchmarks.method_table`` alone."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["picture"]

Rows = Mapping[tuple[str, str], Mapping[str, Any]]
"""(setting, model) -> a row."""

QUANTITIES = (("peak_bytes", "peak"), ("activation_bytes", "activations"))
"""What a row says of memory -> its word. Rows have no other category."""


def picture(name: str, own: Rows, rows: Rows) -> Iterator[str]:
    """Lines of HTML: for each model the first setting that was measured, beside plain training. None without rows.

    Args:
        name: The method.
        own: Its rows.
        rows: All rows of the device, plain training among them.
    """
    first: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for (setting, model), row in own.items():
        if row["peak_bytes"] is not None and ("plain", model) in rows:
            first.setdefault(model, (setting, row))
    if not first:
        return
    yield '<div class="memory" markdown="0">'
    for model, (setting, row) in first.items():
        plain = rows["plain", model]
        most = max(one[key] or 0 for one in (plain, row) for key, _ in QUANTITIES)
        yield f"<figure><figcaption>{html.escape(model)}, batch {row['batch']}</figcaption>"
        for key, word in QUANTITIES:
            if plain[key] is not None and row[key] is not None:
                yield _bar(f"{word}, plain", plain[key], most, f"{word} plain")
                yield _bar(f"{word}, {setting}", row[key], most, f"{word} with")
        yield "</figure>"
    yield "</div>"
    yield ""
    yield (
        "Measured memory of one training step with the method alone: the peak, and what the forward pass keeps for the "
        "backward pass (activations). The peak may be reached elsewhere, as in the optimizer step: then it stays."
    )
    yield ""


def _bar(label: str, value: int, most: int, kind: str) -> str:
    said = f"{label}: {value / 2**20:,.0f} MiB"
    return (
        f'<div class="label"><span>{html.escape(label)}</span><span>{value / 2**20:,.0f} MiB</span></div>'
        f'<svg class="bar" width="100%" height="10" role="img" aria-label="{html.escape(said)}">'
        f'<rect class="{kind}" width="{100 * value / most:.1f}%" height="10"/></svg>'
    )
