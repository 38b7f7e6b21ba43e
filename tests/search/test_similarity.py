"""What two combinations share of all that is not a sum of main effects."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.search.propose.similarity import shared_pairs, similarity, spread

LEVELS = np.array([[0, 0, 0, 0], [1, 0, 0, 0], [1, 2, 0, 0], [1, 2, 3, 0], [1, 1, 3, 0]], dtype=np.int16)


def test_a_combination_shares_everything_with_itself() -> None:
    assert np.diag(similarity(LEVELS, LEVELS)) == pytest.approx(spread(LEVELS))


def test_what_two_methods_do_to_each_other_is_shared_by_all_that_use_both() -> None:
    pairs = shared_pairs(LEVELS, LEVELS)
    assert pairs[2].tolist() == [0, 0, 1, 1, 0]
    assert pairs[3, 4] == 1, "the first and the third setting; the second is another"


def test_to_be_without_a_method_is_no_setting_that_two_have_in_common() -> None:
    assert shared_pairs(LEVELS[:1], LEVELS).tolist() == [[0] * 5]


def test_of_many_methods_less_is_known_by_their_sum() -> None:
    assert np.all(np.diff(spread(LEVELS[:4])) >= 0)
    assert spread(LEVELS)[0] == spread(LEVELS)[1] == 1


def test_the_covariance_is_one() -> None:
    assert np.linalg.eigvalsh(similarity(LEVELS, LEVELS)).min() > 0
