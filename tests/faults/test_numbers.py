"""Readers of numbers that people type, or hand to a library call."""

from __future__ import annotations

import math

import pytest
from hypothesis import given

from advisor.errors import HardwareError, OptionError
from advisor.goal_text import parse_floor, parse_gpu_counts
from advisor.hardware.detect import detect_hardware
from advisor.hardware.gpus import list_gpus
from advisor.hardware.profile_hardware import find_profile
from advisor.session.setup.several_nodes import nodes_from
from advisor.text.ranges import check_above_zero, whole, whole_variable
from advisor.text.units import MOST_BYTES, format_bytes, format_duration, parse_bytes, parse_duration

from .hostile import explained, numbers, texts, valid_or_explained, values


@given(texts)
def test_an_amount_of_memory_is_a_number_of_bytes_or_an_error(text: str) -> None:
    with valid_or_explained(OptionError):
        amount = parse_bytes(text)
        assert 1 <= amount <= MOST_BYTES
        assert format_bytes(amount)


@given(texts)
def test_a_duration_is_a_number_of_seconds_or_an_error(text: str) -> None:
    with valid_or_explained(OptionError):
        seconds = parse_duration(text)
        assert 0 < seconds <= 1e9
        assert format_duration(seconds)


@given(values)
def test_numbers_of_devices_are_counts_or_an_error(value: object) -> None:
    with valid_or_explained(OptionError):
        counts = parse_gpu_counts(value)  # type: ignore[arg-type]
        assert all(1 <= count < 2**63 for count in counts)


@given(values)
def test_a_throughput_to_keep_is_finite_or_an_error(value: object) -> None:
    with valid_or_explained(OptionError):
        floor = parse_floor(value)  # type: ignore[arg-type]
        assert math.isfinite(floor.samples_per_second or floor.share_of_baseline or math.inf)


@given(values)
def test_a_whole_number_is_one_that_everything_after_can_take(value: object) -> None:
    with valid_or_explained(OptionError):
        assert 1 <= whole(value, "--trials") <= 10**9


@given(numbers | values)
def test_a_price_is_above_zero_and_finite(value: object) -> None:
    with valid_or_explained(OptionError):
        check_above_zero(value, "--price")
        assert 0 < float(value) < math.inf  # type: ignore[arg-type]


@given(texts)
def test_a_variable_of_a_launcher_is_a_number_or_an_error_that_names_it(text: str) -> None:
    try:
        assert whole_variable({"RANK": text}, "RANK", default=0, least=0) >= 0
    except OptionError:
        assert "RANK" in explained(lambda: whole_variable({"RANK": text}, "RANK", default=0, least=0))


@given(texts)
def test_a_device_is_one_that_is_there_or_an_error(text: str) -> None:
    with valid_or_explained(HardwareError):
        assert detect_hardware(text).device.startswith(("cpu", "cuda"))


@given(texts)
def test_a_profile_is_one_of_ours_or_an_error(text: str) -> None:
    with valid_or_explained(OptionError):
        assert find_profile(text)


@given(values, values, values)
def test_several_machines_meet_at_a_host_and_a_port_or_there_is_an_error(
    count: object, endpoint: object, rank: object
) -> None:
    with valid_or_explained(OptionError):
        nodes_from(count, endpoint, rank)  # type: ignore[arg-type]


@given(texts, texts)
def test_the_host_and_the_port_of_an_endpoint_are_names_and_numbers(host: str, port: str) -> None:
    with valid_or_explained(OptionError):
        assert nodes_from(2, f"{host}:{port}", 0).endpoint == f"{host}:{port}"


class NoGpuError(Exception):
    pass


class Nvml:
    """A driver with two GPUs."""

    NVMLError = NoGpuError

    def nvmlInit(self) -> None: ...  # noqa: N802
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:  # noqa: N802
        return f"GPU-{handle}"

    def __getattr__(self, name: str) -> object:
        def refuse(*arguments: object) -> object:
            raise NoGpuError

        return refuse


@given(texts)
def test_whatever_hides_gpus_hides_some_or_all(text: str) -> None:
    environment = {"CUDA_VISIBLE_DEVICES": f"{text},{text}"}
    assert list_gpus(Nvml(), environment).gpus == ()  # one that is named twice hides all, as any other text does


@pytest.mark.parametrize(
    ("call", "value"),
    [
        (lambda: parse_bytes("9" * 400 + "GiB"), "999"),
        (lambda: parse_bytes("9" * 5000), "999"),
        (lambda: parse_duration("9" * 400 + "h"), "999"),
        (lambda: parse_gpu_counts("9" * 5000), "999"),
        (lambda: parse_gpu_counts(2.0), "2.0"),  # type: ignore[arg-type]
        (lambda: whole(2.0, "--trials"), "2.0"),
        (lambda: whole(-1, "seed", least=0), "-1"),
        (lambda: whole(10**5000, "--trials"), "too long"),
        (lambda: detect_hardware("cuda:" + "9" * 5000), "999"),
        (lambda: detect_hardware("cuda:²"), "²"),
        (lambda: nodes_from(2, "h:" + "9" * 5000, 0), "999"),
        (lambda: nodes_from(2, "h\n:80", 0), r"h\n"),
        (lambda: whole_variable({"WORLD_SIZE": "abc"}, "WORLD_SIZE", default=1, least=1), "'abc'"),
    ],
)
def test_the_message_has_the_value_in_it(call: object, value: str) -> None:
    assert callable(call)
    assert value in explained(call)
