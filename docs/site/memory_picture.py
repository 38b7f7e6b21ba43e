"""A picture of memory: bars with and without a method, of measured rows, and apart from them of simulated ones."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["compared", "picture"]

Rows = Mapping[tuple[str, str], Mapping[str, Any]]
"""(setting, model) -> a row."""

Bar = tuple[str, int, str]
"""Label, bytes, kind."""

QUANTITIES = (("peak_bytes", "peak"), ("activation_bytes", "activations"))
"""What a row says of memory -> its word. Rows have no other category."""


def picture(name: str, own: Rows, rows: Rows) -> Iterator[str]:
    """Of rows of ``benchmarks.method_table``: for each model the first setting, beside plain training.

    Args:
        name: The method.
        own: Its rows; no picture without.
        rows: All rows of the device, plain training among them.
    """
    first: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for (setting, model), row in own.items():
        if row["peak_bytes"] is not None and ("plain", model) in rows:
            first.setdefault(model, (setting, row))
    if not first:
        return
    yield from _figures(
        (f"{model}, batch {row['batch']}", list(_bars(rows["plain", model], row, "plain", setting)))
        for model, (setting, row) in first.items()
    )
    yield (
        "Measured memory of one training step with the method alone: the peak, and what the forward pass keeps for the "
        "backward pass (activations). The peak may be reached elsewhere, as in the optimizer step: then it stays."
    )
    yield ""


def compared(rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Of rows of ``benchmarks.method_memory``: for each model the first setting that changed something.

    Args:
        rows: Rows of one method in one place, all simulated or none.
    """
    first: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row["peak_bytes"] is not None and not any("changed nothing" in note for note in row["notes"]):
            first.setdefault(row["model"], row)
    if not first:
        return
    simulated = any(row["simulated"] for row in first.values())
    yield from _figures(
        ((_caption(row), list(_bars(*_both(row), *_labels(row)))) for row in first.values()), simulated=simulated
    )


def _caption(row: Mapping[str, Any]) -> str:
    batch = f"{row['batch']} in {row['micro_batches']} micro-batches" if row["micro_batches"] > 1 else row["batch"]
    return f"{row['model']}, batch {batch}{' (simulated)' if row['simulated'] else ''}"


def _labels(row: Mapping[str, Any]) -> tuple[str, str]:
    """What is compared, and in how many processes where there are several."""
    if row["processes"] == 1:
        return row["against"], row["setting"]
    many = f"each of {row['processes']} processes"
    return f"{row['against']}, {'one process' if row['against_processes'] == 1 else many}", f"{row['setting']}, {many}"


def _both(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    return {key: row[f"against_{key}"] for key, _ in QUANTITIES}, row


def _bars(plain: Mapping[str, Any], row: Mapping[str, Any], without: str, setting: str) -> Iterator[Bar]:
    for key, word in QUANTITIES:
        if plain[key] is not None and row[key] is not None:
            yield f"{word}, {without}", plain[key], f"{word} plain"
            yield f"{word}, {setting}", row[key], f"{word} with"


def _figures(figures: Iterable[tuple[str, list[Bar]]], *, simulated: bool = False) -> Iterator[str]:
    """Lines of HTML: bars for each model."""
    yield f'<div class="memory{" simulated" if simulated else ""}" markdown="0">'
    for caption, bars in figures:
        yield f"<figure><figcaption>{html.escape(caption)}</figcaption>"
        most = max(value for _, value, _ in bars)
        yield from (_bar(label, value, most, kind) for label, value, kind in bars)
        yield "</figure>"
    yield "</div>"
    yield ""


def _bar(label: str, value: int, most: int, kind: str) -> str:
    said = f"{label}: {value / 2**20:,.0f} MiB"
    return (
        f'<div class="label"><span>{html.escape(label)}</span><span>{value / 2**20:,.0f} MiB</span></div>'
        f'<svg class="bar" width="100%" height="10" role="img" aria-label="{html.escape(said)}">'
        f'<rect class="{kind}" width="{100 * value / most:.1f}%" height="10"/></svg>'
    )
