"""Colours that stand for something are told apart, also by colour-blind readers, and seen on what is behind them."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from .chrome import Chrome

SERIES = tuple(f"--series-{one}" for one in (0, 1, 2, 3, 4, 5, "rest"))
PARTS = tuple(
    f"--part-{one}" for one in ("parameters", "gradients", "optimizer", "activations", "temporaries", "other")
)

VISION = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}
"""What is seen of linear red, green and blue: Machado, Oliveira and Fernandes 2009, at full severity."""

APART = 10.0
"""Distance in CIELAB: a just noticeable difference is about 2.3, of large areas side by side."""

Colour = tuple[float, float, float]


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("shown", ["light", "dark", "print"])
def test_colours_of_a_picture_differ_for_every_reader(chrome: Chrome, pages: Path, shown: str, vision: str) -> None:
    chrome.open(pages / "bare.html", dark=shown == "dark", media="print" if shown == "print" else "")
    for names in (SERIES, PARTS):
        seen = {name: lab(as_seen(linear(colour(chrome, name)), vision)) for name in names}
        near = {pair: math.dist(seen[pair[0]], seen[pair[1]]) for pair in itertools.combinations(names, 2)}
        assert {pair: distance for pair, distance in near.items() if distance < APART} == {}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_lines_have_contrast_on_their_card(chrome: Chrome, pages: Path, dark: bool) -> None:
    """At least 3, as WCAG 2.2 asks of graphics; those without a colour of their own step back on purpose."""
    chrome.open(pages / "bare.html", dark=dark)
    behind = luminance(linear(colour(chrome, "--surface")))
    for name in SERIES[:-1]:
        pair = luminance(linear(colour(chrome, name))), behind
        assert (max(pair) + 0.05) / (min(pair) + 0.05) >= 3, name


def colour(chrome: Chrome, name: str) -> str:
    script = "return getComputedStyle(document.documentElement).getPropertyValue(arguments[0]).trim()"
    return str(chrome.js(script, name))


def linear(colour: str) -> Colour:
    """Linear red, green and blue of ``#rrggbb``."""
    assert len(colour) == 7, colour
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return red, green, blue


def as_seen(colour: Colour, vision: str) -> Colour:
    red, green, blue = (
        min(1.0, max(0.0, sum(weight * part for weight, part in zip(row, colour, strict=True))))
        for row in VISION[vision]
    )
    return red, green, blue


def luminance(colour: Colour) -> float:
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), colour, strict=True))


def lab(colour: Colour) -> Colour:
    """CIELAB under D65."""
    weights = (0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)
    white = 0.95047, 1.0, 1.08883
    x, y, z = (
        cube_root(sum(weight * part for weight, part in zip(row, colour, strict=True)) / of_white)
        for row, of_white in zip(weights, white, strict=True)
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def cube_root(value: float) -> float:
    return value ** (1 / 3) if value > 0.008856 else 7.787 * value + 16 / 116
