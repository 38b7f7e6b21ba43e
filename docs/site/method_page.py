"""The page of one method: what it declares, a picture of what it saves, its neighbours, and its names in trainers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import generate_methods
import generate_trainers
import memory_picture
from markdown.extensions.toc import slugify

from advisor.exports.trainers import TARGETS
from advisor.methods.base import Method
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import conflict_between, settings_of

__all__ = ["CATALOGUE", "navigation", "page"]

FAMILIES = {
    "formats": "Number formats",
    "recompute": "Recomputation",
    "activations": "Kept activations",
    "optimizers": "Optimizers",
    "kernels": "Kernels",
    "process": "The process",
    "adapters": "What is learned",
    "distributed": "Several devices",
    "tensor_parallel": "Several devices",
    "pipeline": "Several devices",
}
"""Folder of a method -> its heading in the navigation."""


def navigation() -> Iterator[dict[str, list[str]]]:
    """The pages by family, in the order of the catalogue."""
    families: dict[str, list[str]] = {}
    for method in CATALOGUE:
        families.setdefault(_family(method), []).append(f"methods/{method.name}.md")
    yield from ({title: pages} for title, pages in families.items())


def page(method: Method) -> str:
    """The whole page."""
    declared = list(generate_methods.section(method))
    assert declared[0] == f"## {method.name}"
    parts = (_memory(method), _neighbours(method), _in_trainers(method))
    return "\n".join((f"# {method.name}", *declared[1:], *(line for part in parts for line in part)))


def _memory(method: Method) -> Iterator[str]:
    yield "## Measured"
    yield ""
    if method.distributes or method.builds_on:
        yield from _elsewhere(method)
        return
    found = dict(generate_methods.measured_rows())
    somewhere = any(row["method"] == method.name for rows in found.values() for row in rows.values())
    for device, rows in found.items():
        own = {key: row for key, row in rows.items() if row["method"] == method.name}
        yield from memory_picture.picture(method.name, own, rows)
        measured = [(key, row) for key, row in own.items() if row["peak_ratio"] is not None]
        if measured:
            words = f"[what the words mean](../methods.md#{_anchor(device)})"
            yield f"On {device}, relative to plain training of the same run ({words}):"
            yield ""
            yield "| setting | model | measured |"
            yield "|---|---|---|"
            for (setting, model), row in measured:
                yield f"| `{setting}` | {model} | {generate_methods.relative(row)} |"
            yield ""
        missing: dict[str, list[str]] = {}
        for (_, model), row in own.items():
            if row["peak_ratio"] is None:
                missing.setdefault(row["reason"] or row["outcome"], []).append(model)
        for reason, models in missing.items():
            yield f"Not measured on {device} with {', '.join(dict.fromkeys(models))}: {reason}."
            yield ""
        if not somewhere:
            yield f"It has not been measured on {device} yet, so there is no picture."
            yield ""
    yield from _elsewhere(method)


def _elsewhere(method: Method) -> Iterator[str]:
    """Where the table of methods cannot show it: with several processes, and on a GPU in software."""
    if (method.distributes or method.builds_on) and not any(
        row["method"] == method.name for rows in generate_methods.memory_rows().values() for row in rows
    ):
        yield "It needs several devices, and has not been measured on any yet, so there is no picture."
        yield ""
    for place, rows in generate_methods.memory_rows().items():
        own = [row for row in rows if row["method"] == method.name]
        if not own:
            continue
        if own[0]["simulated"]:
            yield "## Simulated"
            yield ""
        yield from memory_picture.compared(own)
        yield f"{generate_methods.COMPARED[own[0]['simulated']]} ([table](../methods.md#{slugify(place, '-')}))."
        yield ""
        yield f"| setting, beside {own[0]['against']} | model | memory |"
        yield "|---|---|---|"
        for row in own:
            yield f"| `{row['setting']}` | {row['model']} | {generate_methods.compared(row)} |"
        yield ""


def _neighbours(method: Method) -> Iterator[str]:
    yield "## Neighbours"
    yield ""
    apart = {other.name: _apart(method.name, other.name) for other in CATALOGUE if other is not method}
    alike = [name for name, reason in apart.items() if reason is None and _family(_named(name)) == _family(method)]
    others = [name for name, reason in apart.items() if reason is None and name not in alike]
    refused = {name: reason for name, reason in apart.items() if reason}
    if method.builds_on:
        yield f"It works on top of {' or '.join(map(_link, method.builds_on))}."
        yield ""
    if refused:
        yield "| not with | why |"
        yield "|---|---|"
        for name, reason in refused.items():
            yield f"| {_link(name)} | {reason.replace('|', chr(92) + '|')} |"
        yield ""
    if alike:
        yield f"Of its own family it goes with {', '.join(map(_link, alike))}."
        yield ""
    yield (
        f"It goes with {len(others)} methods of other families, where device and model allow both: "
        f"{', '.join(map(_link, others))}."
    )
    yield ""


def _in_trainers(method: Method) -> Iterator[str]:
    yield "## In trainers"
    yield ""
    yield "What `momadvise export` makes of it ([all trainers](../trainers.md)):"
    yield ""
    yield "| trainer | | keys | |"
    yield "|---|---|---|---|"
    for target in TARGETS:
        rules = {
            id(rule): rule for rule in (generate_trainers.trainer_rule(one, target) for one in settings_of(method))
        }
        for rule in rules.values():
            keys = ", ".join(f"`{key}: {generate_trainers.shown_value(given)}`" for key, given in rule.keys.items())
            outside = f"`{rule.outside}`" if rule.outside else ""
            cells = (
                f"[{target.name}](../trainers.md#{target.name})",
                rule.status.value,
                ", ".join(filter(None, (keys, outside))),
                rule.text,
            )
            yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
    yield ""


@cache
def _apart(one: str, other: str) -> str | None:
    """Why no settings, or not all settings, of two methods go together; ``None`` if all do."""
    pairs = [(a, b) for a in settings_of(_named(one)) for b in settings_of(_named(other))]
    refused = [(a, b, reason) for a, b in pairs if (reason := conflict_between((a, b)))]
    if not refused:
        return None
    first, second, reason = refused[0]
    words = reason.split(": ", 1)[1]
    if len(refused) == len(pairs):
        return words
    return f"{words} (`{first.label}` with `{second.label}`; other settings go together)"


def _named(name: str) -> Method:
    return next(method for method in CATALOGUE if method.name == name)


def _family(method: Method) -> str:
    return FAMILIES[type(method).__module__.split(".")[2]]


def _link(name: str) -> str:
    return f"[{name}](../methods.md#{name})"


def _anchor(device: str) -> str:
    """As the Markdown library makes it of the heading of a table of methods."""
    return slugify(f"Measured on {device}", "-")
