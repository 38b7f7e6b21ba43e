"""What Liu et al.'s command would run on a current GPU, and where its curves cross; nothing is run here."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.hardware.profile_hardware import find_profile, hardware_of
from advisor.trial.process.runner import Runner
from benchmarks.papers.command import Options
from benchmarks.papers.evaluation_of_moms import _GROWN, _TELLING, _Bench
from benchmarks.papers.largest import refusal
from benchmarks.papers.moms_cases import CASES, EXACT, GROWN, MOMS, RATE
from benchmarks.papers.specs import policy_of


@pytest.fixture
def options(tmp_path: Path) -> Options:
    hardware = hardware_of(find_profile("h100_80gb_sxm")[0])
    return Options(size="paper", hardware=hardware, output=tmp_path / "papers.jsonl")


@pytest.fixture
def bench(options: Options, tmp_path: Path) -> _Bench:
    return _Bench(options, Runner(tmp_path))


def test_every_combination_may_run_on_a_gpu_in_one_float_format(options: Options, bench: _Bench) -> None:
    for mom in MOMS:
        settings = bench._settings(mom)
        assert refusal(options, settings) == "", mom
        assert "precision(dtype=tf32)" in policy_of(settings, 2).label
    groups = (*CASES["paper"], *(tuple(cases.values()) for cases in GROWN["paper"].values()))
    cases = [case for group in groups for case in group]
    assert all(set(case.moms) < set(MOMS) and EXACT not in case.moms for case in cases)


@pytest.mark.parametrize(
    ("ratios", "exact_fits", "expected"),
    [((0.8, 1.1, 1.4), True, 200), ((0.8, 0.9, 0.95), True, None), ((0.8, 0.9, None), False, 302)],
    ids=["faster from the second on", "never faster", "exact training does not fit the last"],
)
def test_a_crossover_is_the_smallest_size_at_which_a_method_pays(
    bench: _Bench, ratios: tuple[float | None, ...], exact_fits: bool, expected: int | None
) -> None:
    cases = GROWN["paper"]["ResNet", "layers"]
    known = {}
    for case, ratio in zip(cases.values(), ratios, strict=True):
        fits = exact_fits or ratio is not None
        columns = {(mom, _TELLING): 16.0 for mom in case.moms} | {("4 bits", RATE): ratio}
        columns[EXACT, _TELLING] = 8.0 if fits else None
        for (mom, column), ours in columns.items():
            row = f"{case.name}, {mom}"
            known[_GROWN, row, column] = bench._figure(_GROWN, row, column, ours, reason="out of memory: too large")
    (found,) = bench.crossing(known, "ResNet", "layers", cases)
    assert (found.ours, found.theirs) == (expected, 280)


def test_a_crossover_needs_sizes_that_were_run(bench: _Bench) -> None:
    cases = GROWN["paper"]["ResNet", "layers"]
    assert not list(bench.crossing({}, "ResNet", "layers", cases))
    smallest, case = next(iter(cases.items()))
    rows = [f"{case.name}, {mom}" for mom in (EXACT, *case.moms)]
    known = {(_GROWN, row, _TELLING): bench._figure(_GROWN, row, _TELLING, 8.0) for row in rows}
    (found,) = bench.crossing(known, "ResNet", "layers", cases)
    assert (found.ours, found.reason) == (None, f"at none of {smallest}")
