from __future__ import annotations

import doctest

import pytest

import advisor.decide.drift
import advisor.search.sizing.batching
import advisor.search.sizing.memory_model
import advisor.text.units
from advisor.errors import OptionError
from advisor.text.units import (
    format_bytes,
    format_duration,
    format_joules,
    format_many,
    format_percent,
    format_rate,
    format_seconds,
    format_usd,
    parse_bytes,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GiB", 8 * 2**30),
        ("8 gib", 8 * 2**30),
        ("8GB", 8 * 10**9),
        ("512MiB", 512 * 2**20),
        ("0.5 TiB", 2**39),
        ("1024", 1024),
        ("7b", 7),
    ],
)
def test_bytes_are_read_with_decimal_and_binary_units(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "GiB", "8 G", "8GiBs", "-8GiB", "eight GiB", "8,5GiB", "1e9", "nan", "8GiB 2MiB"])
def test_what_is_no_amount_of_memory_is_an_error(text: str) -> None:
    with pytest.raises(OptionError, match=r"--memory-limit must be a number with a unit .* Write for example 8GiB"):
        parse_bytes(text)


def test_no_memory_at_all_is_an_error() -> None:
    with pytest.raises(OptionError, match="must be above zero, but got '0GiB'"):
        parse_bytes("0GiB")
    with pytest.raises(OptionError, match="must be above zero"):
        parse_bytes("0.1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5m", 300),
        ("90s", 90),
        ("1h30m", 5400),
        ("1h 30m 5s", 5405),
        ("1.5m", 90),
        ("90", 90),
        ("0.5", 0.5),
        ("2H", 7200),
        ("200ms", 0.2),
        ("1s500ms", 1.5),
        ("1m 1ms", 60.001),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["", "m", "5 minutes", "5m5m", "30s5m", "-5m", "5d", "inf", "1e3", "5ms1s", "ms"])
def test_what_is_no_duration_is_an_error(text: str) -> None:
    with pytest.raises(OptionError, match=r"--time-limit must be hours, minutes and seconds.* Write for example 90s"):
        parse_duration(text)


def test_no_time_at_all_is_an_error_that_names_the_option() -> None:
    with pytest.raises(OptionError, match="time_limit must be longer than zero, but got '0s'"):
        parse_duration("0s", option="time_limit")


def test_figures_have_three_digits_and_the_unit_changes_in_time() -> None:
    assert [format_bytes(count) for count in (0, 1023, 1024, 1023 * 1024, 1000 * 2**20, 3 * 2**40)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.00 MiB",
        "0.98 GiB",
        "3.00 TiB",
    ]
    assert [format_rate(rate) for rate in (0.0, 0.004567, 9.996, 99.96, 999.6)] == [
        "0.00",
        "0.00457",
        "10.0",
        "100",
        "1,000",
    ]
    assert [format_seconds(time) for time in (0.99999, 1.23e-5, 1.23e-9, 0)] == [
        "1.00 s",
        "12.3 µs",
        "1.23 ns",
        "0.00 µs",
    ]
    assert [format_duration(time) for time in (-1, 59.6, 3599.7)] == ["0s", "1m00s", "1h00m"]
    assert [format_percent(share) for share in (-0.053, 1.5, 1e-7, 0.0999)] == ["-5.3%", "150%", "<0.001%", "10%"]


def test_money_and_energy_are_never_in_powers_of_ten() -> None:
    assert [format_usd(amount) for amount in (0.0, 0.000112, 0.0999, 9.996, 1234.5, 2e6)] == [
        "$0.00",
        "$0.000112",
        "$0.0999",
        "$10.0",
        "$1,234",
        "$2,000,000",
    ]
    assert [format_joules(joules) for joules in (0.05, 999.4, 999.6, 3.6e6, 7.25e12)] == [
        "0.0500 J",
        "999 J",
        "1.00 kJ",
        "3.60 MJ",
        "7,250 GJ",
    ]


def test_large_counts_are_in_words() -> None:
    counts = [0, 1, 999_999, 10**6, 999_999_999, 25 * 10**11, 10**15, 4**35]
    assert [format_many(count, "way") for count in counts] == [
        "0 ways",
        "1 way",
        "999,999 ways",
        "about 1 million ways",
        "about 1 billion ways",
        "about 2.5 trillion ways",
        "about 1e15 ways",
        "about 1.2e21 ways",
    ]
    assert [format_many(count, "way", at_least=True) for count in (1, 5_001, 1_999_999)] == [
        "more than 0 ways",
        "more than 5,000 ways",
        "more than 1.9 million ways",
    ]


@pytest.mark.parametrize(
    "module",
    [advisor.text.units, advisor.search.sizing.batching, advisor.search.sizing.memory_model, advisor.decide.drift],
    ids=lambda module: module.__name__,
)
def test_the_examples_in_docstrings_run(module: object) -> None:
    result = doctest.testmod(module)  # type: ignore[arg-type]
    assert result.attempted > 0
    assert result.failed == 0
