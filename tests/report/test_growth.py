"""Size against throughput: measured and predicted figures apart, the reason in sentences."""

import json

import msgspec

from advisor.decide.candidate import Recommendation
from advisor.decide.confirmation import Confirmation
from advisor.decide.score import gain_over
from advisor.report.answer import AnswerView, confirmation_words
from advisor.report.growth import growth_table
from advisor.report.json_documents import json_answer
from advisor.report.table import RankingTable
from advisor.report.why import explained
from advisor.report.wording import parameters_words
from advisor.trial.outcome import Outcome
from tests.decide.examples import baseline, lost, measured, measurement, on
from tests.decide.test_largest import CANDIDATES, CHECKPOINT, DDP, HALF, ON_TWO, chosen, sized

from .scenario import answered, shown, words


def answer() -> Recommendation:
    return explained(chosen(CANDIDATES), HALF)


def table(width: int = 80) -> str:
    recommendation = answer()
    assert recommendation.growth is not None
    return shown(growth_table(recommendation, recommendation.growth), width=width)


def test_plain_training_and_the_winner_stand_side_by_side() -> None:
    lines = table().splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 80
    row = {line.split()[0]: line.split() for line in lines if line.startswith("layers")}
    assert row["layers=4"][1:] == ["40", "M", "40.0*", "4.00", "GiB", "55.0", "4.00", "GiB", "-"]
    assert row["layers=5"][1:] == ["50", "M", "-", "-", "52.0", "4.00", "GiB", "-"]
    assert "own size" in table()
    assert "*: below the floor of 50.0 samples/s" in table()


def test_only_marks_that_are_in_the_table_are_explained() -> None:
    found = answer()
    assert found.growth is not None
    rows = tuple(row for row in found.growth.rows if row.model_size == {"layers": 5})
    text = shown(growth_table(found, msgspec.structs.replace(found.growth, rows=rows)))
    assert "layers=5" in text
    assert not any(mark in text for mark in ("*:", "OOM", "not run"))


def test_what_did_not_fit_is_marked_and_predictions_have_a_column_of_their_own() -> None:
    lines = {line.split()[0]: line.split() for line in table().splitlines() if line.startswith("layers")}
    assert lines["layers=6"][1:] == ["60", "M", "-", "-", "OOM", "-", "-"]
    assert lines["layers=8"][1:] == ["80", "M", "not", "run", "-", "-", "-", "9.00", "GiB"]
    assert "predicted" in table()


def test_the_reason_has_the_floor_the_factor_plain_training_what_stops_it_and_the_prediction() -> None:
    text = " ".join(answer().why)
    assert "keeps 50.0 samples/s (0.5 times the 100 of plain training at its own size) is layers=5" in text
    assert "with 50 M parameters: trained with checkpoint every=1 at batch 8 it runs 52.0 samples/s" in text
    assert "2.50 times the parameters of the model's own size (20 M)" in text
    assert "Plain training keeps it up to layers=3 (30 M parameters, 60.0 samples/s)" in text
    assert "At layers=6 it does not fit below 8.00 GiB" in text
    assert "Predicted from profiling runs: one sample needs 32.2 bytes more for each parameter" in text
    assert "memory alone (8.00 GiB) would allow up to 267 M parameters" in text


def test_what_keeps_the_floor_but_may_not_win_is_not_said_to_be_below_it() -> None:
    """Trap: "at layers=6 it runs 60.0 samples/s, below the floor" of 50, where its losses had ruled it out."""
    broken = msgspec.structs.replace(sized(measured(60, CHECKPOINT), 6), loss_drift=0.5)
    candidates = [one for one in CANDIDATES if one.model_size != {"layers": 6}]
    text = " ".join(explained(chosen([*candidates, broken]), HALF).why)
    assert "At layers=6 it runs 60.0 samples/s, but may not win: loss drift 50% is above the tolerance" in text


def test_a_method_that_reached_further_but_may_not_win_is_named() -> None:
    """Trap: "no combination reached a larger size" beside the row of one that did, and whose losses ruled it out."""
    broken = msgspec.structs.replace(sized(measured(60, CHECKPOINT), 6), loss_drift=0.5)
    text = " ".join(explained(chosen([*CANDIDATES[:3], broken]), HALF).why)
    assert "checkpoint every=1 keeps the floor up to layers=6, but may not win: loss drift 50% is above the" in text
    assert "Nothing that may win reached a larger size." in text
    assert "No combination of methods that was tried reached" not in text


def test_when_no_method_reaches_further_the_advice_is_plain_training() -> None:
    slower = sized(measured(45, CHECKPOINT), 4)
    plain = explained(chosen([*CANDIDATES[:3], slower]), HALF)
    text = " ".join(plain.why)
    assert "with plain training at batch 8 it runs 60.0 samples/s" in text
    assert "No combination of methods that was tried reached a larger size: use no method." in text
    assert "At layers=4 it runs 40.0 samples/s, below the floor." in text
    assert plain.growth is not None
    assert "winner" not in shown(growth_table(plain, plain.growth))


def test_when_no_method_was_tried_nothing_is_said_against_methods() -> None:
    text = " ".join(explained(chosen(CANDIDATES[:3]), HALF).why)
    assert "No combination of methods was tried, so this is no advice against any." in text
    assert "use no method" not in text


def test_plain_training_at_the_same_size_is_said_to_keep_the_floor_too() -> None:
    faster = sized(measured(90, CHECKPOINT), 3)
    text = " ".join(explained(chosen([*CANDIDATES[:3], faster]), HALF).why)
    assert "Plain training keeps the floor at this size too, at 60.0 samples/s." in text


def test_the_whole_answer_says_what_to_build() -> None:
    view = AnswerView(answer(), HALF, files={}, apply_lines=("model = build_model(layers=5)",))
    text = shown(view)
    assert "Build layers=5 and train with checkpoint every=1, batch 8" in text
    assert "checkpoint every=1 at layers=5" in words(text)
    assert "model = build_model(layers=5)" in text


def test_on_several_devices_everything_names_them() -> None:
    recommendation = explained(chosen(ON_TWO), HALF)
    text = " ".join(recommendation.why)
    assert "(0.5 times the 100 of plain training (ddp on 2 devices) at its own size) is layers=5" in text
    assert "trained with checkpoint every=1 + ddp at batch 8 on 2 devices it runs 55.0 samples/s" in text
    assert "Plain training (ddp on 2 devices) keeps it up to layers=3" in text
    assert recommendation.growth is not None
    shown_table = words(shown(growth_table(recommendation, recommendation.growth)))
    assert "plain: ddp on 2 devices. winner: checkpoint every=1 + ddp on 2 devices." in shown_table
    alone = explained(chosen(ON_TWO[:2]), HALF)
    assert "No combination of methods was tried" in " ".join(alone.why)
    assert alone.growth is not None
    assert "winner" not in shown(growth_table(alone, alone.growth))


def test_processes_that_share_memory_are_told_their_part_of_the_limit() -> None:
    shared = msgspec.structs.replace(HALF, shares_memory=True)
    outgrown = sized(on(2, lost(Outcome.OUT_OF_MEMORY, CHECKPOINT, DDP)), 6)
    text = " ".join(explained(chosen([*ON_TWO, outgrown], shared), shared).why)
    assert "At layers=6 it does not fit below 4.00 GiB" in text


def test_a_gain_is_one_of_size_and_never_of_throughput() -> None:
    document = json.loads(json_answer(answered(answer(), HALF)))
    assert document["winner"]["gain_over_baseline"] == 1.5  # 50 M parameters after 20 M, at half the rate
    text = words(shown(RankingTable(answer(), HALF), width=160))
    assert "52.0 ±1.0% +150% 8" in text
    assert "vs base: size of the model" in text


def test_a_size_below_the_floor_is_no_gain() -> None:
    text = shown(RankingTable(explained(chosen(ON_TWO), HALF), HALF), width=160, color=True)
    below = next(line for line in text.splitlines() if "40.0" in line)
    above = next(line for line in text.splitlines() if "60.0" in line)
    assert ("32m" in below, "32m" in above) == (False, True), "green is a gain"


def test_where_parameters_stay_the_gain_is_one_of_the_arguments() -> None:
    small, large = (
        msgspec.structs.replace(one, model_size={"pixels": pixels}, parameter_count=5)
        for one, pixels in ((baseline(100), 64), (measured(70), 96))
    )
    assert gain_over(large, small, HALF) == 0.5
    assert gain_over(small, small, HALF) == 0.0
    assert gain_over(large, msgspec.structs.replace(small, model_size={}), HALF) is None


def test_the_baseline_measured_again_is_not_divided_by_another_model() -> None:
    confirmation = Confirmation(
        outcome=Outcome.OK,
        measurement=measurement(52.0),
        promised_samples_per_second=52.0,
        baseline_samples_per_second=100.0,
    )
    text = confirmation_words(confirmation, floor=50.0)
    assert "measured again right after it: 100 samples/s at its own size." in text
    assert "times as many" not in text


def test_a_confirmation_below_the_floor_says_so() -> None:
    below = Confirmation(outcome=Outcome.OK, measurement=measurement(48.0), promised_samples_per_second=52.0)
    assert "below the floor of 50.0 samples/s" in confirmation_words(below, floor=50.0)
    assert "floor" not in confirmation_words(below, floor=40.0)


def test_the_json_winner_has_its_size_and_the_growth_is_in_the_recommendation() -> None:
    document = json.loads(json_answer(answered(answer(), HALF)))
    assert document["winner"]["model_size"] == {"layers": 5}
    assert document["winner"]["parameter_count"] == 50_000_000
    assert document["recommendation"]["growth"]["floor_samples_per_second"] == 50.0
    assert len(document["recommendation"]["growth"]["rows"]) == 6
    again = msgspec.json.decode(msgspec.json.encode(answer()), type=Recommendation)
    assert again == answer()


def test_parameters_in_words() -> None:
    assert [parameters_words(count) for count in (512, 25_600_000, 999_600, 1.5e9, 2e12)] == [
        "512", "25.6 M", "1 M", "1.5 G", "2 T",
    ]  # fmt: skip
