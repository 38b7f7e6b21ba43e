"""What a comparison with the reference run found, as people read it."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from advisor.decide.candidate import Candidate
from advisor.decide.choose import choose
from advisor.goal import Fidelity
from advisor.measure.fidelity import NOT_FINITE, FidelityMeasurement, GradientError, NoiseFloor
from advisor.policy.file import ComparisonEvidence
from advisor.report.comparison import comparison_sentence, drift_words
from advisor.report.json_documents import json_answer
from advisor.report.table import RankingTable
from advisor.report.why import explain
from tests.decide.examples import baseline, goal, measured
from tests.decide.test_guard import found

from .scenario import ADAM, BF16, answered, shown, words

_GRADIENT = GradientError(error=0.004, cosine=1.0, norm_ratio=1.0)


def compared(comparison: FidelityMeasurement | None, rate: float = 150, **changes: Any) -> Candidate:
    candidate = measured(rate, BF16, fidelity=Fidelity.PRECISION, drift=0.0042)
    return msgspec.structs.replace(candidate, guard=comparison, **changes)


def why(*candidates: Candidate) -> str:
    aim = goal(fidelity=Fidelity.PRECISION)
    return " ".join(explain(choose(candidates, aim, refused_settings={}, untried=0, stopped_because=""), aim))


def test_one_sentence_says_how_close_it_stayed() -> None:
    text = why(baseline(100), compared(found(0.003, gradient=_GRADIENT)))
    assert "Over 30 steps its loss stayed within 0.3% of the reference run's; gradient error 0.4%." in text
    assert "first losses" not in text


def test_equal_losses_are_called_equal() -> None:
    assert comparison_sentence(compared(found())) == "Over 30 steps its losses were the reference run's."


def test_a_gradient_that_could_not_be_compared_has_a_reason() -> None:
    reason = "it trains other parameters than plain training (adapter)"
    text = comparison_sentence(compared(found(0.003, gradient_reason=reason)))
    assert text.endswith(f"gradients were not compared: {reason}.")


def test_a_reference_run_that_learned_nothing_is_not_hidden() -> None:
    text = comparison_sentence(compared(found(0.003, learned=-0.1)))
    assert "the reference run's own loss did not fall in these steps" in text


def test_where_the_reference_run_is_as_far_from_itself_the_words_say_so() -> None:
    noise = NoiseFloor(loss_drift=0.9, final_loss_gap=0.1, final_loss_error=2.5)
    text = comparison_sentence(compared(found(1.1, excess=1.0, noise=noise)))
    assert (
        "within 110% of the reference run's and ended at 5, that one at 4 (by chance alone that one is 90% off itself, "
        "its end 2.5)"
    ) in text


def test_a_winner_of_a_worse_class_than_declared_says_so() -> None:
    text = comparison_sentence(compared(found(0.03)))
    assert "That is beyond what precision promises (2.0%): it counts as lossy." in text


def test_what_was_refused_says_why_and_what_would_allow_it() -> None:
    text = why(baseline(100), compared(found(0.041)))
    assert (
        "50% faster was precision bf16 at batch 8, but over 30 steps its loss is up to 4.1% off the reference run's: "
        "above the tolerance of precision, 2.0%; --fidelity lossy would allow it." in text
    )


def test_a_winner_that_was_not_compared_says_why() -> None:
    for reason in ("no time was left", "plain training does not fit"):
        text = why(baseline(100), compared(None, not_compared=reason))
        assert f"Not compared with the reference run: {reason}." in text


def test_the_table_shows_the_drift_of_the_comparison_and_marks_it() -> None:
    assert drift_words(compared(found(0.003))) == "0.3%*"
    assert drift_words(compared(found(0.041))) == "4.1%*!"
    assert drift_words(compared(found(NOT_FINITE, excess=NOT_FINITE))) == "not finite*!"
    assert drift_words(compared(None)) == "0.4%"
    answer = choose(
        [baseline(100), compared(found(0.003)), measured(90, ADAM, fidelity=Fidelity.LOSSY, drift=0.001)],
        goal(),
        refused_settings={},
        untried=0,
        stopped_because="",
    )
    text = words(shown(RankingTable(answer, goal())))
    assert "0.3%*" in text
    assert "*: smoothed, over 30 steps" in text
    assert "0.1% " in text


def test_a_table_without_comparisons_explains_no_mark() -> None:
    answer = choose([baseline(100)], goal(), refused_settings={}, untried=0, stopped_because="")
    assert "smoothed" not in shown(RankingTable(answer, goal()))


def test_scripts_get_the_figures() -> None:
    answer = choose(
        [baseline(100), compared(found(0.003, gradient=_GRADIENT))],
        goal(),
        refused_settings={},
        untried=0,
        stopped_because="",
    )
    document = yaml.safe_load(json_answer(answered(answer, goal())))
    comparison = msgspec.convert(document["winner"]["comparison"], ComparisonEvidence)
    assert (comparison.steps, comparison.loss_drift, comparison.gradient_error) == (30, 0.003, 0.004)
    assert comparison.observed_fidelity == "precision"
    assert document["recommendation"]["winner"]["guard"]["reference"] == "plain"
