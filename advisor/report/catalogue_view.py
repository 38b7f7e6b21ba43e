"""The output of ``momadvise methods [NAME]`` and ``momadvise hardware``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.profiles import Figure, Profile
from advisor.methods.base import Conflict, Method, Verdict
from advisor.methods.compose import judge, settings_of
from advisor.report.cells import Unbroken, plain_table
from advisor.text.units import format_bytes, format_count

__all__ = ["hardware_summary", "hardware_view", "method_view", "methods_view"]

_NAMED = 4
"""Devices that are listed by name; of more, the first and the last."""

_PROFILE_FIGURES = {
    "memory": "memory",
    "memory_bandwidth": "memory bandwidth",
    "fp32_rate": "float32",
    "tf32_rate": "tf32",
    "bf16_rate": "bf16",
    "fp16_rate": "fp16",
    "fp8_rate": "fp8",
    "host_link_bandwidth": "link to the host",
    "gpu_link_bandwidth": "link between GPUs",
    "price": "price",
}


def methods_view(catalogue: Sequence[Method], hardware: Hardware) -> RenderableType:
    """The catalogue: what each method is for, and whether it applies here."""
    width = max(len(method.name) for method in catalogue) + 2
    parts: list[RenderableType] = [
        Text(f"Methods, and whether they apply to {hardware.title}", style="bold"),
        Text(f"{'method':<{width}}{'fidelity':<12}here", style="cyan"),
        Rule(style=""),
    ]
    for method in catalogue:
        verdicts = _verdicts(method, hardware)
        head = Text(f"{method.name:<{width}}", style="bold")
        head.append(f"{method.fidelity.value:<12}", style="not bold").append(_here(verdicts))
        about = Text(method.summary)
        for reason in _reasons(verdicts, applicable=False):
            about.append(f"\nNot here: {reason}.", style="yellow")
        parts += [head, Padding(about, (0, 0, 0, 2))]
    parts.append(Text("\nmomadvise methods NAME: what it saves and costs, when it pays, its settings.", style="dim"))
    parts.append(Text("Requirements on the model are checked once you give one.", style="dim"))
    return Group(*parts)


def method_view(method: Method, hardware: Hardware) -> RenderableType:
    """Everything that one method declares."""
    rows: list[tuple[str, str | Text]] = [
        ("fidelity", _fidelity(method)),
        ("saves", ", ".join(sorted(category.value for category in method.saves)) or "nothing"),
        ("costs", method.costs),
        ("use it", method.pays),
        ("do not", method.does_not_pay),
    ]
    for parameter in method.parameters:
        choices = ", ".join(str(choice) for choice in parameter.choices)
        rows.append((f"  {parameter.name}", f"{parameter.meaning} ({choices})"))
    if not method.accumulates:
        rows.append(("batches", "only one micro-batch per optimizer step"))
    if method.other_masks:
        rows.append(("dropout", "draws other masks than in plain training"))
    if method.decides:
        rows.append(("decides alone", method.decides))
    for conflict in method.conflicts:
        rows.append(("not with", f"{_conflict_name(conflict)}: {conflict.reason}"))
    if method.requires:
        extra = f" (pip install 'momadvise[{method.extra}]')" if method.extra else ""
        rows.append(("needs", ", ".join(method.requires) + extra))
    verdicts = _verdicts(method, hardware)
    rows.append(("here", _here(verdicts).append(f" on {hardware.title}", style="default")))
    rows += [("", Text(reason, style="yellow")) for reason in _reasons(verdicts, applicable=False)]
    rows += [("", Text(reason)) for reason in _reasons(verdicts, applicable=True)]
    rows.append(("from", method.citation))
    title = Text(method.name, style="bold").append(f": {method.summary}", style="not bold")
    return Group(title, Text(), _grid(rows))


def hardware_summary(devices: Sequence[Hardware], profiles: Mapping[str, Profile]) -> RenderableType:
    """The devices on a screen: those that are alike together, with their published figures on a few lines."""
    alike: dict[tuple[str, int, str | None], list[Hardware]] = {}
    for one in devices:
        alike.setdefault((one.name, one.memory_bytes, one.profile), []).append(one)
    parts: list[RenderableType] = []
    for same in alike.values():
        first, profile = same[0], profiles.get(same[0].profile or "")
        names = [one.device for one in same]
        named = ", ".join(names) if len(names) <= _NAMED else f"{names[0]} to {names[-1]}"
        free = format_bytes(min(one.free_bytes for one in same))
        rows: list[tuple[str, str | Text]] = [
            ("device", f"{first.title} ({named})"),
            ("memory", f"{format_bytes(first.memory_bytes)}, {free} free{' at least' if len(same) > 1 else ''}"),
        ]
        if first.kind is DeviceKind.CPU:
            rows.append(("cores", str(first.host_cores)))
        if first.compute_capability is not None:
            rows.append(("capability", ".".join(map(str, first.compute_capability))))
        if first.driver_version is not None:
            rows.append(("driver", first.driver_version))
        rows.append(("published", _published(profile)))
        parts += [_grid(rows), Text()]
    return Group(*parts, Text("-v: what each published figure is of, and its source.", style="dim"))


def _published(profile: Profile | None) -> str:
    if profile is None:
        return "nothing for this device: predictions rest on measurements alone"
    figures = [(title, getattr(profile, field)) for field, title in _PROFILE_FIGURES.items()]
    known = [f"{title} {figure.value:,.4g} {figure.unit}" for title, figure in figures if figure.value is not None]
    return f"{profile.title}: {', '.join(known)}" if known else f"{profile.title}: no figures"


def hardware_view(hardware: Hardware, profile: Profile | None = None) -> RenderableType:
    """The device as detected, and its published figures."""
    memory = f"{format_bytes(hardware.memory_bytes)}, {format_bytes(hardware.free_bytes)} free"
    if hardware.held_bytes:
        memory += f", {format_bytes(hardware.held_bytes)} held by this process"
    rows: list[tuple[str, str | Text]] = [("device", f"{hardware.title} ({hardware.device})"), ("memory", memory)]
    if hardware.kind is DeviceKind.CUDA:
        rows.append(("GPUs", format_count(hardware.device_count, "visible GPU")))
    if hardware.compute_capability is not None:
        major, minor = hardware.compute_capability
        rows.append(("capability", f"{major}.{minor}"))
    if hardware.driver_version is not None:
        rows.append(("driver", hardware.driver_version))
    host = f"{format_count(hardware.host_cores, 'core')}, {format_bytes(hardware.host_memory_bytes)}"
    rows.append(("host", f"{host}, {format_bytes(hardware.host_free_bytes)} free"))
    if profile is None:
        rows.append(("profile", "none for this device: predictions rest on measurements alone"))
        return _grid(rows)
    figures: dict[str, Figure] = {title: getattr(profile, field) for field, title in _PROFILE_FIGURES.items()}
    if all(figure.value is None for figure in figures.values()):
        rows.append(("profile", f"{profile.title}: no published figures"))
        return _grid(rows)
    table = plain_table(f"Published figures of {profile.title} (profiles/{profile.name}.yaml)")
    table.add_column("figure", no_wrap=True)
    table.add_column("published", justify="right", no_wrap=True)
    table.add_column("of", ratio=1)
    table.add_column("source", no_wrap=True)
    # One document is the source of many figures, so it is named once, below.
    sources: dict[str, int] = {}
    for title, figure in figures.items():
        if figure.value is not None:
            number = sources.setdefault(f"{figure.source}, {figure.date}", len(sources) + 1)
            table.add_row(title, f"{figure.value:,g} {figure.unit}", Text(figure.note), Text(f"[{number}]"))
    listed = [
        Unbroken(source, style="dim", head=Text(f"[{number}] ", style="dim")) for source, number in sources.items()
    ]
    missing = [f"{title} ({figure.note})" for title, figure in figures.items() if figure.value is None]
    without = [Text(f"No figure: {'; '.join(missing)}.", style="dim")] if missing else []
    return Group(_grid(rows), Text(), table, *without, *listed)


def _grid(rows: Sequence[tuple[str, str | Text]]) -> Group:
    width = max(len(title) for title, _ in rows) + 2
    heads = [Text(title.ljust(width), style="bold cyan") for title, _ in rows]
    return Group(*(_row(head, value) for head, (_, value) in zip(heads, rows, strict=True)))


def _row(head: Text, value: str | Text) -> RenderableType:
    if isinstance(value, str):
        return Unbroken(value, head=head)
    grid = Table.grid()
    grid.add_column(width=len(head), no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_row(head, value)
    return grid


def _verdicts(method: Method, hardware: Hardware) -> dict[str, Verdict]:
    """Setting in words -> verdict."""
    verdicts = {}
    for setting in settings_of(method):
        verdict = judge((setting,), facts=None, hardware=hardware)
        words = ", ".join(f"{name}={value}" for name, value in setting.parameters.items()) or method.name
        verdicts[words] = Verdict(verdict.applicable, verdict.reason.removeprefix(f"{setting.words}: "))
    return verdicts


def _reasons(verdicts: dict[str, Verdict], *, applicable: bool) -> list[str]:
    """Why settings are refused, or what to know of those that apply: each reason once, with its settings."""
    reasons: dict[str, list[str]] = {}
    for words, verdict in verdicts.items():
        if verdict.applicable is applicable and verdict.reason:
            reasons.setdefault(verdict.reason, []).append(words)
    return [
        reason if len(settings) == len(verdicts) else f"{', '.join(settings)}: {reason}"
        for reason, settings in reasons.items()
    ]


def _here(verdicts: dict[str, Verdict]) -> Text:
    applicable = [verdict.applicable for verdict in verdicts.values()]
    if all(applicable):
        return Text("yes", style="green")
    return Text("in part", style="yellow") if any(applicable) else Text("no", style="red")


def _fidelity(method: Method) -> str:
    if method.gradient_tolerance:
        return f"{method.fidelity.value} (gradient within {method.gradient_tolerance:g} after one step)"
    return f"{method.fidelity.value} (bit-equal gradients)" if method.fidelity.rank == 0 else method.fidelity.value


def _conflict_name(conflict: Conflict) -> str:
    """Both sides of a conflict, as far as they are narrowed: ``"precision dtype=fp16"``."""
    name = " ".join((conflict.other, *(f"{key}={value}" for key, value in conflict.where.items())))
    own = ", ".join(f"{key}={value}" for key, value in conflict.own.items())
    return f"{name} (with {own})" if own else name
