"""How many samples a batch may have is found from the user's own batch and its divisors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from advisor.measure.batches.fitting_sizes import FittingSizes, fitting_sizes


@pytest.mark.parametrize(
    ("works", "own", "found"),
    [
        (lambda samples: samples % 4 == 0, 64, (4, 4)),
        (lambda samples: samples % 12 == 0, 96, (12, 12)),
        (lambda samples: samples > 5, 64, (8, 1)),
        (lambda samples: samples >= 6 and samples % 2 == 0, 64, (8, 2)),
        (lambda samples: samples % 48 == 0, 48, (48, 48)),
        (lambda samples: samples > 20, 33, (33, 1)),
    ],
)
def test_the_least_and_what_every_size_is_a_multiple_of(
    works: Callable[[int], bool], own: int, found: tuple[int, int]
) -> None:
    assert fitting_sizes(works, own) == FittingSizes(*found)


def test_where_not_even_the_users_own_batch_works_the_size_is_not_what_is_wrong() -> None:
    asked: list[int] = []
    assert fitting_sizes(lambda samples: bool(asked.append(samples)), 64) is None
    assert asked == [64]


def test_no_size_is_asked_for_that_is_known_to_fail() -> None:
    asked: list[int] = []

    def works(samples: int) -> bool:
        asked.append(samples)
        return samples >= 16

    assert fitting_sizes(works, 48, above=4, multiple=4) == FittingSizes(16, 4)
    assert asked == [48, 8, 12, 16, 20]


def test_an_own_batch_without_memory_for_it_is_no_proof_that_it_fails() -> None:
    assert fitting_sizes(lambda samples: None if samples > 32 else samples % 8 == 0, 64) == FittingSizes(8, 8)
    assert fitting_sizes(lambda samples: None if samples > 32 else False, 64) is None
