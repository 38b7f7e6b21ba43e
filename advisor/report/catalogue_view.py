"""What ``momadvise methods [NAME]`` and ``momadvise hardware`` print."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from advisor.methods.base import Method, Verdict
from advisor.methods.compose import judge, settings_of
from advisor.problem.facts import Facts
from advisor.problem.hardware import DeviceKind, Hardware
from advisor.problem.profiles import Figure, Profile
from advisor.problem.units import format_bytes, format_count

__all__ = ["hardware_view", "method_view", "methods_view"]

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


def methods_view(catalogue: Sequence[Method], hardware: Hardware, facts: Facts | None = None) -> RenderableType:
    """The catalogue: what each method is for, and whether it applies here.

    Args:
        catalogue: Every method.
        hardware: The device and its host.
        facts: What a probe learned of a workload, if one was made.
    """
    table = Table(
        title=f"Methods, and whether they apply to {hardware.name}",
        title_justify="left",
        title_style="bold",
        header_style="bold cyan",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    table.add_column("method", no_wrap=True, style="bold")
    table.add_column("fidelity", no_wrap=True)
    table.add_column("here", no_wrap=True)
    table.add_column("what it does, what it saves, what it costs", ratio=1)
    for method in catalogue:
        verdicts = _verdicts(method, hardware, facts)
        about = Text(method.summary)
        about.append(f"\nsaves {_saves(method)}; costs {method.costs}", style="dim")
        for reason, settings in _refusals(verdicts).items():
            which = "" if len(settings) == len(verdicts) else f"{', '.join(settings)}: "
            about.append(f"\nnot here: {which}{reason}", style="yellow")
        table.add_row(method.name, method.fidelity.value, _here(verdicts), about)
    unknown = "" if facts is not None else " Whether a model allows them is judged when one is given."
    return Group(table, Text(f"\nmomadvise methods NAME tells more about one.{unknown}", style="dim"))


def method_view(method: Method, hardware: Hardware, facts: Facts | None = None) -> RenderableType:
    """Everything that one method declares.

    Args:
        method: The method.
        hardware: The device and its host.
        facts: What a probe learned of a workload, if one was made.
    """
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold cyan", no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_row("fidelity", _fidelity(method))
    grid.add_row("saves", _saves(method))
    grid.add_row("costs", method.costs)
    grid.add_row("use it", method.pays)
    grid.add_row("do not", method.does_not_pay)
    for parameter in method.parameters:
        choices = ", ".join(str(choice) for choice in parameter.choices)
        grid.add_row(f"  {parameter.name}", f"{parameter.meaning} ({choices})")
    if not method.accumulates:
        grid.add_row("batches", "only one micro-batch per optimizer step")
    for conflict in method.conflicts:
        grid.add_row("not with", f"{_conflict_name(conflict.other, conflict.where)}: {conflict.reason}")
    if method.requires:
        extra = f" (pip install 'momadvise[{method.extra}]')" if method.extra else ""
        grid.add_row("needs", ", ".join(method.requires) + extra)
    verdicts = _verdicts(method, hardware, facts)
    grid.add_row("here", _here(verdicts).append(f" on {hardware.name}"))
    for reason, settings in _refusals(verdicts).items():
        which = "" if len(settings) == len(verdicts) else f"{', '.join(settings)}: "
        grid.add_row("", Text(f"{which}{reason}", style="yellow"))
    grid.add_row("from", method.citation)
    return Group(Text(method.name, style="bold").append(f": {method.summary}", style="not bold"), Text(), grid)


def hardware_view(hardware: Hardware, profile: Profile | None = None) -> RenderableType:
    """The device as detected, and what is published of it.

    Args:
        hardware: The device and its host.
        profile: Its profile, if there is one.
    """
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold cyan", no_wrap=True)
    grid.add_column()
    grid.add_row("device", f"{hardware.name} ({hardware.device})")
    memory = f"{format_bytes(hardware.memory_bytes)}, {format_bytes(hardware.free_bytes)} free"
    if hardware.held_bytes:
        memory += f", {format_bytes(hardware.held_bytes)} held by this process"
    grid.add_row("memory", memory)
    if hardware.kind is DeviceKind.CUDA:
        grid.add_row("GPUs", format_count(hardware.device_count, "visible GPU"))
    if hardware.compute_capability is not None:
        major, minor = hardware.compute_capability
        grid.add_row("capability", f"{major}.{minor}")
    if hardware.driver_version is not None:
        grid.add_row("driver", hardware.driver_version)
    host = f"{format_count(hardware.host_cores, 'core')}, {format_bytes(hardware.host_memory_bytes)}"
    grid.add_row("host", f"{host}, {format_bytes(hardware.host_free_bytes)} free")
    if profile is None:
        grid.add_row("profile", "none for this device: predictions rest on measurements alone")
        return grid
    figures = Table(
        title=f"Published figures: {profile.title} (profiles/{profile.name}.yaml)",
        title_justify="left",
        title_style="bold",
        header_style="bold cyan",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
    )
    figures.add_column("figure", no_wrap=True)
    figures.add_column("published", justify="right", no_wrap=True)
    figures.add_column("date", no_wrap=True)
    figures.add_column("source", ratio=1, overflow="fold")
    for field, title in _PROFILE_FIGURES.items():
        figure: Figure = getattr(profile, field)
        value = "-" if figure.value is None else f"{figure.value:,g} {figure.unit}"
        source = Text(figure.source)
        if figure.note:
            source.append(f"\n{figure.note}" if figure.source else figure.note, style="dim")
        figures.add_row(title, value, figure.date, source)
    return Group(grid, Text(), figures)


def _verdicts(method: Method, hardware: Hardware, facts: Facts | None) -> dict[str, Verdict]:
    """Setting in words -> verdict."""
    verdicts = {}
    for setting in settings_of(method):
        verdict = judge((setting,), facts=facts, hardware=hardware)
        words = ", ".join(f"{name}={value}" for name, value in setting.parameters.items()) or method.name
        verdicts[words] = Verdict(verdict.applicable, verdict.reason.removeprefix(f"{setting.label}: "))
    return verdicts


def _refusals(verdicts: dict[str, Verdict]) -> dict[str, list[str]]:
    """Reason -> the settings that are refused for it."""
    refusals: dict[str, list[str]] = {}
    for words, verdict in verdicts.items():
        if not verdict.applicable:
            refusals.setdefault(verdict.reason, []).append(words)
    return refusals


def _here(verdicts: dict[str, Verdict]) -> Text:
    applicable = [verdict.applicable for verdict in verdicts.values()]
    if all(applicable):
        return Text("yes", style="green")
    return Text("in part", style="yellow") if any(applicable) else Text("no", style="red")


def _fidelity(method: Method) -> str:
    if method.gradient_tolerance:
        return f"{method.fidelity.value} (gradient within {method.gradient_tolerance:g} after one step)"
    return f"{method.fidelity.value} (bit-equal gradients)" if method.fidelity.rank == 0 else method.fidelity.value


def _saves(method: Method) -> str:
    return _listed(sorted(category.value for category in method.saves)) or "nothing"


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)


def _conflict_name(other: str, where: dict[str, bool | int | float | str]) -> str:
    if not where:
        return other
    return f"{other} {', '.join(f'{name}={value}' for name, value in where.items())}"
