"""Where two figures of each of the leaders do not tell which is better, a third is asked for."""

from __future__ import annotations

import pytest

from advisor.decide.repeat import contested


@pytest.mark.parametrize(
    ("figures", "again"),
    [
        # The worse of two figures would name the wrong one: the best was unlucky once.
        ({"best": (94, 101), "other": (96, 95), "far": (80, 82)}, ["best", "other"]),
        ({"best": (100, 101), "far": (80, 82)}, []),
        ({"best": (100, 101)}, []),
        ({}, []),
        # What was measured once has not been looked at.
        ({"best": (100, 101), "lucky": (110,)}, []),
        ({"best": (100, 101, 99), "other": (98, 99)}, ["other"]),
        ({"best": (100, 101, 99), "other": (98, 99, 97)}, []),
        # Only who may be the best, however many are near.
        ({"a": (100, 100), "b": (99, 99), "c": (98, 98)}, ["a", "b"]),
        ({"a": (100, 100, 100), "b": (99, 99, 99), "c": (98, 98)}, []),
    ],
)
def test_two_that_lead_and_are_near_each_other_are_measured_a_third_time(
    figures: dict[str, tuple[float, ...]], again: list[str]
) -> None:
    assert contested(figures) == again
