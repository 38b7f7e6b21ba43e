from __future__ import annotations

import re

import msgspec
import pytest

from advisor.hardware.hardware import DeviceKind
from advisor.hardware.profiles import Figure, Profile, load_profiles
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.report.catalogue_view import hardware_summary, hardware_view, method_view, methods_view
from tests.decide.examples import GIB

from .scenario import CPU, shown, words

FIGURE = Figure(value=3.35, unit="TB/s", source="the data sheet [v2]", date="2024-01", note="of the SXM part")
ADDRESS = re.compile(r"(\[\d\]|   ) https://\S+")
"""A line of nothing else, however long."""
MISSING = Figure(value=None, unit="TB/s", source="none", date="2024-01", note="not published")


@pytest.mark.parametrize("width", [80, 120])
def test_the_catalogue_lists_every_method_with_its_fidelity_and_whether_it_applies(width: int) -> None:
    text = shown(methods_view(CATALOGUE, CPU), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    for method in CATALOGUE:
        line = next(line for line in text.splitlines() if line.startswith(method.name))
        assert method.fidelity.value in line
        assert line.rstrip().endswith(("yes", "no", "in part"))
        assert method.summary in words(text)


@pytest.mark.parametrize("width", [40, 60])
def test_addresses_are_whole_on_a_narrow_screen(width: int) -> None:
    """Trap: a link that is broken at the edge leads nowhere when it is copied."""
    for profile in load_profiles().values():
        listed = {one for one in words(shown(hardware_view(CPU, profile), width=900)).split() if "//" in one}
        assert listed <= {*shown(hardware_view(CPU, profile), width=width).split()}
    for method in CATALOGUE:
        assert {*method.citation.split()} <= {*shown(method_view(method, CPU), width=width).split()}


def test_a_device_in_software_is_called_one_wherever_it_is_named() -> None:
    device = msgspec.structs.replace(CPU, simulated=True)
    for view in (methods_view(CATALOGUE, device), hardware_view(device), hardware_summary([device], {})):
        assert "a CPU (simulated)" in words(shown(view))


def test_a_refusal_has_its_reason_and_the_settings_that_it_is_for() -> None:
    text = words(shown(methods_view(CATALOGUE, CPU)))
    assert "precision precision in part" in text
    assert "Not here: dtype=tf32: tf32 is a format of NVIDIA GPUs, but the device is a CPU." in text
    assert "swap exact no" in text


def test_what_applies_for_now_says_what_may_yet_refuse_it() -> None:
    text = words(shown(method_view(get_method("precision"), CPU)))
    assert "dtype=bf16, dtype=fp16: the first step of a tuning measures whether this CPU only" in text


def test_the_list_of_all_methods_is_no_longer_than_two_lines_for_each_and_the_reasons() -> None:
    lines = shown(methods_view(CATALOGUE, CPU), width=120).splitlines()
    assert len(lines) <= 2 * len(CATALOGUE) + sum("Not here" in line for line in lines) + 8


@pytest.mark.parametrize("method", CATALOGUE, ids=lambda method: method.name)
def test_one_method_shows_everything_that_it_declares(method: object) -> None:
    one = next(other for other in CATALOGUE if other is method)
    text = words(shown(method_view(one, CPU)))
    for declared in (one.summary, one.costs, one.pays, one.does_not_pay, one.citation, one.fidelity.value):
        assert words(declared) in text
    for parameter in one.parameters:
        assert words(parameter.meaning) in text
        assert all(str(choice) in text for choice in parameter.choices)
    for conflict in one.conflicts:
        assert words(conflict.reason) in text


def test_the_command_that_installs_an_optional_library_is_not_read_as_markup() -> None:
    text = shown(method_view(get_method("adam_8bit"), CPU))
    assert "pip install 'momadvise[quant]'" in text


def test_the_hardware_is_described() -> None:
    gpu = msgspec.structs.replace(
        CPU,
        kind=DeviceKind.CUDA,
        device="cuda:0",
        name="NVIDIA H100",
        device_count=2,
        held_bytes=2**30,
        compute_capability=(9, 0),
        driver_version="580.1",
    )
    text = words(shown(hardware_view(gpu)))
    for part in (
        "NVIDIA H100 (cuda:0)",
        "16.0 GiB, 12.0 GiB free, 1.00 GiB held by this process",
        "2 visible GPUs",
        "9.0",
    ):
        assert part in text
    assert "580.1" in text
    assert "none for this device" in text
    assert "visible GPU" not in shown(hardware_view(CPU))


def profile(**given: Figure) -> Profile:
    fields = {field: FIGURE for field in Profile.__struct_fields__ if field not in _IDENTITY}
    return Profile(
        schema=1,
        name="h100",
        title="NVIDIA H100",
        kind=DeviceKind.CUDA,
        matches=(),
        **{**fields, **given},
    )


def test_published_figures_have_their_source_and_date() -> None:
    text = words(shown(hardware_view(CPU, profile(price=MISSING)), width=120))
    assert "Published figures of NVIDIA H100 (profiles/h100.yaml)" in text
    assert "memory bandwidth 3.35 TB/s of the SXM part [1]" in text
    assert text.endswith("[1] the data sheet [v2], 2024-01")
    assert "No figure: price (not published)." in text


def test_a_profile_without_any_figure_is_one_line() -> None:
    fields = {field: MISSING for field in Profile.__struct_fields__ if field not in _IDENTITY}
    text = shown(hardware_view(CPU, profile(**fields)))
    assert "profile  NVIDIA H100: no published figures" in text
    assert "source" not in text


@pytest.mark.parametrize("name", load_profiles())
def test_every_shipped_profile_fits_80_columns(name: str) -> None:
    text = shown(hardware_view(CPU, load_profiles()[name]))
    assert max(len(line) for line in text.splitlines() if not ADDRESS.fullmatch(line)) <= 80
    assert "…" not in text


_IDENTITY = ("schema", "name", "title", "kind", "matches")


def test_eight_gpus_that_are_alike_take_one_block_of_a_screen() -> None:
    one = msgspec.structs.replace(
        CPU,
        kind=DeviceKind.CUDA,
        name="NVIDIA H200",
        compute_capability=(9, 0),
        driver_version="580.65",
        profile="h200",
    )
    gpus = [msgspec.structs.replace(one, device=f"cuda:{index}", free_bytes=(index + 1) * GIB) for index in range(8)]
    text = shown(hardware_summary([*gpus, CPU], load_profiles()), width=80)
    assert len(text.splitlines()) < 24
    assert "NVIDIA H200 (cuda:0 to cuda:7)" in text
    assert "16.0 GiB, 1.00 GiB free at least" in text
    assert "https://" not in text
    two = words(shown(hardware_summary(gpus[:2], {}), width=80))
    assert "NVIDIA H200 (cuda:0, cuda:1)" in two
    assert "nothing for this device" in two
