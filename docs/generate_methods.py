"""Write docs/methods.md from the catalogue: ``python docs/generate_methods.py``.

What a method declares is the only place where it is described; this page shows it, with what
``python -m benchmarks.method_table`` measured (docs/results/methods-*.jsonl), and
``python -m benchmarks.method_memory`` (docs/results/method-memory.jsonl).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from advisor.hardware.mesh import MeshAxis
from advisor.methods.base import Conflict, Method, Parameter, Saves
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.setting import ParameterValue

PAGE = Path(__file__).with_name("methods.md")
MEASURED = Path(__file__).with_name("results")

HEAD = """\
<!-- Written by docs/generate_methods.py from what the methods declare. Do not edit. -->

# Methods

`momadvise methods` shows the same with what applies to the device at hand; `momadvise methods NAME` one of them.

Fidelity says how far training may differ from plain training: *exact* (gradients bit-equal), *rounding* (float sums
reordered), *precision* (lower float format), *lossy* (information is dropped), *model* (what is learned changes).
Micro-batching is part of every policy: *rounding*, and *model* where BatchNorm takes its statistics per micro-batch.
So is sharing a batch between devices, where each device takes statistics over its own micro-batch.

Several devices form a mesh, and exactly one method divides each of its axes: {distributing}.
Devices along the data axis train on shares of every batch; those along the others hold one model together and are given
the same samples.
"""


def page() -> str:
    """The whole page."""
    sections = (line for method in CATALOGUE for line in section(method))
    return "\n".join([_head(), *_overview(), *_measured(), *_compared(), *sections])


def _head() -> str:
    owners = {axis: [f"`{method.name}`" for method in CATALOGUE if method.axis is axis] for axis in MeshAxis}
    said = (f"{axis.value} ({', '.join(names)})" for axis, names in owners.items() if names)
    return HEAD.format(distributing="; ".join(said))


def _overview() -> Iterator[str]:
    yield "| method | fidelity | saves | what it does |"
    yield "|---|---|---|---|"
    for method in CATALOGUE:
        anchor = f"[{method.name}](#{method.name})"
        yield f"| {anchor} | {method.fidelity.value} | {_saves(method.saves)} | {_cell(method.summary)} |"
    yield ""


def measured_rows() -> Iterator[tuple[str, dict[tuple[str, str], dict[str, Any]]]]:
    """Each device of which there are rows, and its rows by setting and model."""
    for file in sorted(MEASURED.glob("methods-*.jsonl")):
        rows: list[dict[str, Any]] = [json.loads(line) for line in file.read_text().splitlines()]
        if rows:
            # A setting that was measured again counts as it was last.
            yield rows[-1]["device"], {(row["setting"], row["model"]): row for row in rows}


def _measured() -> Iterator[str]:
    """A table for each device of which there are rows: settings down, models across, relative to plain training."""
    found = list(measured_rows())
    somewhere = {row["method"] for _, cells in found for row in cells.values()}
    for device, cells in found:
        rows = list(cells.values())
        models = list(dict.fromkeys(row["model"] for row in rows))
        settings = [setting for setting in dict.fromkeys(row["setting"] for row in rows) if setting != "plain"]
        versions = ", ".join(f"{name} {version}" for name, version in rows[-1]["versions"].items())
        dates = sorted({row["date"] for row in rows})
        yield f"## Measured on {device}"
        yield ""
        yield (
            "Every method alone, at the workload's own batch: peak memory, what the backward pass kept (activations) "
            "and step time relative to plain training of the same run, and how far the losses of eight steps and the "
            "first gradient were from plain training's (0: to the bit; `±`: half the 95 % interval of the time; `-`: "
            "refused, or failed). "
            f"{versions}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}."
        )
        yield ""
        yield (
            "Activations may shrink to a tenth and the peak stay where it is: at a small batch the optimizer step sets "
            "it. And where a method that only reorders sums moves the losses by percents (see `channels_last`), the "
            "training amplifies any rounding, and eight losses say little about the other methods there."
        )
        yield ""
        yield f"| setting | {' | '.join(models)} |"
        yield f"|---|{'---|' * len(models)}"
        plain = " | ".join(_absolute(cells.get(("plain", model))) for model in models)
        yield f"| plain | {plain} |"
        for setting in settings:
            yield f"| `{setting}` | {' | '.join(relative(cells.get((setting, model))) for model in models)} |"
        for method in CATALOGUE:
            if method.name not in somewhere and not (method.distributes or method.builds_on):
                yield f"| `{method.name}` | {' | '.join('not measured yet' for _ in models)} |"
        yield ""
        reasons: dict[tuple[str, str], list[str]] = {}
        for row in cells.values():
            if row["outcome"] != "ok":
                reasons.setdefault((row["method"], row["reason"] or row["outcome"]), []).append(row["model"])
        if reasons:
            yield "Not measured:"
            yield ""
            for (method, reason), where in reasons.items():
                yield f"- `{method}` on {', '.join(dict.fromkeys(where))}: {_cell(reason)}"
            yield ""


COMPARED = {
    False: (
        "Measured memory of one training step: 2 processes on one CPU beside one process with the same global batch "
        "(or beside 2 without the method, where it works on top of another), in as many micro-batches. Of several "
        "processes the one that needs most counts. Weights that fsdp has gathered and keeps for the backward pass "
        "count as activations. Nothing is said of time, because the processes share the cores of one CPU"
    ),
    True: (
        "Simulated memory of one training step, with the method and without: torch's CUDA allocator keeps its books as "
        "on a real GPU, but the GPU is software, whose kernels compute nothing. The peak is what the allocator "
        "reserves; what a real GPU's libraries and context take is not in it. Nothing is said of time"
    ),
}
"""What rows of ``benchmarks.method_memory`` are: measured ones, and simulated ones."""


def memory_rows() -> dict[str, list[dict[str, Any]]]:
    """Rows that the tables of methods cannot have, by the title of their own table."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in (MEASURED / "method-memory.jsonl").read_text().splitlines():
        row = json.loads(line)
        place = f"Simulated on {row['device']}" if row["simulated"] else f"Measured on 2 processes of {row['device']}"
        found.setdefault(place, []).append(row)
    return dict(sorted(found.items()))


def _compared() -> Iterator[str]:
    """A table for each place of the other rows: settings down, models across."""
    for place, rows in memory_rows().items():
        models = list(dict.fromkeys(row["model"] for row in rows))
        cells = {(row["setting"], row["against"], row["model"]): row for row in rows}
        versions = ", ".join(f"{name} {version}" for name, version in rows[-1]["versions"].items())
        dates = sorted({row["date"] for row in rows})
        yield f"## {place}"
        yield ""
        yield f"{COMPARED[rows[0]['simulated']]}. {versions}; {' to '.join(dict.fromkeys((dates[0], dates[-1])))}."
        yield ""
        yield f"| setting | compared with | {' | '.join(models)} |"
        yield f"|---|---|{'---|' * len(models)}"
        for setting, against in dict.fromkeys((row["setting"], row["against"]) for row in rows):
            shown = (compared(cells.get((setting, against, model))) for model in models)
            yield f"| `{setting}` | {against} | {' | '.join(shown)} |"
        yield ""


def compared(row: dict[str, Any] | None) -> str:
    """What a row of ``benchmarks.method_memory`` says; why there is nothing to say."""
    if row is None:
        return "not measured yet"
    nothing = next((note.split(": ", 1) for note in row["notes"] if "changed nothing" in note), None)
    if nothing is not None:
        return _cell(f"changes nothing: {nothing[-1]}")
    if row["peak_bytes"] is None:
        if row["outcome"] != "refused":
            return _cell(
                f"{row['outcome']}: {re.sub(r'^rank [0-9]+: [A-Za-z]+: ', '', row['reason'])}".removesuffix(": ")
            )
        reason = row["reason"].removeprefix(f"{row['setting']}: ")
        return _cell(reason.split(": ")[0])  # what follows lists parts of the model
    peak, without = row["peak_bytes"], row["against_peak_bytes"]
    text = f"peak {peak / 2**20:,.0f} MiB, {peak / without:.2f} of {without / 2**20:,.0f} MiB"
    if row["against_activation_bytes"]:
        text += f" (activations {row['activation_bytes'] / row['against_activation_bytes']:.2f})"
    return text


def _absolute(row: dict[str, Any] | None) -> str:
    if row is None or row["peak_bytes"] is None:
        return "-"
    return f"batch {row['batch']}: {row['peak_bytes'] / 2**20:,.0f} MiB, {row['step_seconds']:.3g} s"


def relative(row: dict[str, Any] | None) -> str:
    """What a row says, relative to plain training."""
    if row is None:
        return "not measured yet"
    if row["peak_ratio"] is None:
        return "-"
    text = f"peak {row['peak_ratio']:.2f}"
    if row["activation_ratio"] is not None:
        text += f" (activations {row['activation_ratio']:.2f})"
    text += f", time {row['time_ratio']:.2f} ±{row['spread'] * 100:.0f}%"
    if row["loss_drift"] is not None:
        text += f", loss {_share(row['loss_drift'])}"
    if row["gradient_error"] is not None:
        text += f", gradient {_share(row['gradient_error'])}"
    return text


def _share(value: float) -> str:
    return "0" if value == 0 else "not finite" if value >= 1e6 else f"{value * 100:.2g}%"


def section(method: Method) -> Iterator[str]:
    """The section of a method, with its heading."""
    yield f"## {method.name}"
    yield ""
    yield method.summary
    yield ""
    yield "| | |"
    yield "|---|---|"
    for title, text in _rows(method):
        yield f"| {title} | {_cell(text)} |"
    yield ""
    if method.parameters:
        yield "| parameter | choices | meaning |"
        yield "|---|---|---|"
        for parameter in method.parameters:
            choices = ", ".join(_choice(parameter, choice) for choice in parameter.choices)
            yield f"| `{parameter.name}` | {choices} | {_cell(parameter.meaning)} |"
        yield ""


def _rows(method: Method) -> Iterator[tuple[str, str]]:
    yield "fidelity", _fidelity(method)
    yield "saves", _saves(method.saves)
    yield "costs", method.costs
    yield "pays", method.pays
    yield "does not pay", method.does_not_pay
    yield "applied at stage", method.stage.name.lower()
    if not method.accumulates:
        yield "batches", "only one micro-batch per optimizer step"
    if method.other_masks:
        yield "dropout", "draws other masks than in plain training"
    if method.decides:
        alike = [f"`{other.name}`" for other in CATALOGUE if other.decides == method.decides and other is not method]
        yield "decides alone", f"{method.decides} (so not with {', '.join(alike)})" if alike else method.decides
    for conflict in method.conflicts:
        yield "not with", f"{_conflict(conflict)}: {conflict.reason}"
    if method.one_device_only:
        yield "several devices", f"no: {method.one_device_only}"
    if method.builds_on:
        yield "on top of", " or ".join(f"`{name}`" for name in method.builds_on)
    if method.requires:
        install = f" (`pip install 'momadvise[{method.extra}]'`)" if method.extra else ""
        yield "needs", ", ".join(f"`{library}`" for library in method.requires) + install
    yield "from", method.citation


def _fidelity(method: Method) -> str:
    if method.gradient_tolerance:
        return f"{method.fidelity.value}: gradient within {method.gradient_tolerance:g} after one step"
    return method.fidelity.value


def _choice(parameter: Parameter, choice: ParameterValue) -> str:
    worse = parameter.worse.get(choice)
    return f"`{choice}`" if worse is None else f"`{choice}` ({worse.value})"


def _saves(saves: frozenset[Saves]) -> str:
    return ", ".join(sorted(category.value for category in saves)) or "nothing"


def _conflict(conflict: Conflict) -> str:
    other = " ".join((f"`{conflict.other}`", *(f"{name}={value}" for name, value in conflict.where.items())))
    own = ", ".join(f"{name}={value}" for name, value in conflict.own.items())
    return f"{other} (with {own})" if own else other


def _cell(text: str) -> str:
    """Text in a table: a bar would begin another column."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page())
