"""Sizes of a workload: their combinations, which function takes which argument, and the error when there are none."""

from pathlib import Path
from typing import Any

import pytest

from advisor.errors import WorkloadError
from advisor.workload.missing_sizes import check_sizes
from advisor.workload.sizes import MOST_SIZES, accepted, check_taken, own_size, size_words, sizes_of
from advisor.workload.source import resolve_source

SIZES = {"layers": (2, 4), "pixels": (32, 64)}


def build_model(layers: int = 2) -> None: ...


def make_batch(batch_size: int, *, pixels: int = 32) -> None: ...


def test_every_combination_of_the_listed_values_is_a_size() -> None:
    assert sizes_of(SIZES) == [
        {"layers": 2, "pixels": 32},
        {"layers": 2, "pixels": 64},
        {"layers": 4, "pixels": 32},
        {"layers": 4, "pixels": 64},
    ]


def test_too_many_combinations_are_refused_with_the_bound_and_the_count() -> None:
    with pytest.raises(WorkloadError, match=rf"at most {MOST_SIZES} combinations, but 20 x 20 are 400"):
        sizes_of({"layers": tuple(range(1, 21)), "width": tuple(range(1, 21))})


def test_each_function_gets_the_arguments_that_it_takes() -> None:
    def takes_all(batch_size: int, **size: Any) -> None: ...

    size = {"layers": 4, "pixels": 64}
    assert accepted(build_model, size) == {"layers": 4}
    assert accepted(make_batch, size) == {"pixels": 64}
    assert accepted(takes_all, size) == size
    assert accepted(print, {}) == {}


def test_an_argument_that_nobody_takes_is_refused_with_the_line_to_write() -> None:
    check_taken(SIZES, build_model, make_batch)
    with pytest.raises(WorkloadError, match=r"neither takes 'width'.*def build_model\(width=8\)"):
        check_taken({**SIZES, "width": (8,)}, build_model, make_batch)


def test_the_own_size_is_that_of_the_defaults_if_these_are_numbers() -> None:
    def unclear(layers: int | None = None) -> None: ...

    assert own_size(SIZES, build_model, make_batch) == {"layers": 2, "pixels": 32}
    assert own_size({"layers": (2, 4)}, unclear) == {}


def test_a_size_in_words() -> None:
    assert size_words({"layers": 4, "width_factor": 1.5}) == "layers=4, width_factor=1.5"
    assert size_words({}) == "own size"


def test_sizes_that_differ_never_look_alike() -> None:
    assert size_words({"tokens": 1048576}) == "tokens=1048576"
    assert size_words({"factor": 1.0000001}) == "factor=1.0000001"


def source_of(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "model.py"
    path.write_text("import torch\n" + text + "def make_batch(batch_size):\n    return {}\n")
    return resolve_source(path)


def test_a_file_without_sizes_is_refused_with_the_lines_to_add(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"defines no SIZES") as error:
        check_sizes(source_of(tmp_path, "def build_model():\n    return torch.nn.Linear(2, 2)\n"))
    assert '    SIZES = {"layers": [12, 18, 24, 36, 48]}' in str(error.value)
    assert "    def build_model(layers=12):" in str(error.value)


def test_the_lines_to_add_use_an_argument_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r'SIZES = \{"depth": \[6, 9, 12, 18, 24, 36, 48\]\}') as error:
        check_sizes(source_of(tmp_path, "def build_model(name='x', *, depth=6):\n    return torch.nn.Linear(2, 2)\n"))
    assert "def build_model" not in str(error.value)


@pytest.mark.parametrize("line", ["SIZES = {'layers': [1, 2]}\n", "from math import *\n"])
def test_a_file_that_defines_them_or_may_is_left_to_the_worker(tmp_path: Path, line: str) -> None:
    check_sizes(source_of(tmp_path, line + "def build_model(layers=1):\n    return torch.nn.Linear(2, 2)\n"))
    check_sizes(resolve_source("hf:bert"))
