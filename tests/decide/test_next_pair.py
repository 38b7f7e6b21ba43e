"""Which two leaders to compare with each other next."""

from __future__ import annotations

import numpy as np
import pytest

from advisor.decide.next_pair import next_pair
from advisor.search.propose.standing import JointStanding

CLOSE = JointStanding(mean=np.array([0.0, 0.01, 0.03]), covariance=0.02**2 * np.eye(3))


def test_the_leader_is_compared_with_the_rival_that_may_most_likely_be_better() -> None:
    assert next_pair(CLOSE, range(3)) == (0, 1)
    assert next_pair(CLOSE, [0, 2]) == (0, 2)


def test_a_rival_whose_difference_is_certain_needs_no_comparison() -> None:
    """Each is uncertain, but they share the error of what both alternated with."""
    common = JointStanding(mean=CLOSE.mean, covariance=np.full((3, 3), 0.1**2) + 0.001**2 * np.eye(3))
    assert next_pair(common, range(3)) is None


def test_one_alone_is_not_compared() -> None:
    assert next_pair(CLOSE, [1]) is None


def test_comparisons_end_once_hardly_anything_may_be_lost() -> None:
    standing, made = CLOSE, 0
    while (pair := next_pair(standing, range(3))) is not None:
        truth = np.array([0.01, 0.0, 0.03])
        one, other = pair
        standing, made = standing.after({one: 1.0, other: -1.0}, truth[one] - truth[other], 0.01), made + 1
    assert 2 <= made <= 20
    assert int(np.argmin(standing.mean)) == 1


def test_a_comparison_tells_about_the_difference_and_not_about_the_level() -> None:
    after = CLOSE.after({0: 1.0, 1: -1.0}, 0.02, 0.001)
    behind, deviation = after.behind(0, 1)
    assert behind == pytest.approx(0.02, abs=0.001)
    assert deviation < 0.0011
    assert after.mean[0] + after.mean[1] == pytest.approx(CLOSE.mean[0] + CLOSE.mean[1])
    assert after.mean[2] == CLOSE.mean[2]
