"""What a page has of a study: every number says how it was obtained, and nothing is made up."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Role
from advisor.measure.step_split import PhaseSplit, StepSplit
from advisor.methods.setting import label_words
from advisor.phase import Phase
from advisor.report.page.document import PageDocument, PageStudy
from advisor.report.page.figure import Source
from advisor.report.page.finished import read_finished
from advisor.report.page.page_text import page_text
from advisor.report.page.study_part import study_part
from advisor.trial.outcome import Outcome
from advisor.trial.spec import PredictTrial, SplitTrial
from tests.decide.examples import goal, on
from tests.decide.test_largest import HALF
from tests.predict.rates import group, rates, work_of
from tests.report import test_growth
from tests.report.cost_scenario import cost_goal, cost_recommendation
from tests.report.scenario import BF16, CANDIDATES, CPU, REFUSED, recommendation
from tests.search.test_build_space import FACTS

from .folders import TIMELINE, faster_study, guarded, many, stored_trial, write_study


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> PageStudy:
    return study_part(read_finished(faster_study(tmp_path_factory.mktemp("study") / "run")), "s0")


def named(page: PageStudy, **fields: Any) -> Any:
    [found] = [one for one in page.policies if all(getattr(one, name) == value for name, value in fields.items())]
    return found


def text(page: PageStudy, numbers: tuple[int, ...]) -> str:
    return "\n".join(page.lines[one] for one in numbers)


def test_every_policy_that_was_tried_is_there_with_its_outcome_and_reason(page: PageStudy) -> None:
    found = recommendation()
    assert len(page.policies) == len(found.ranking) + len(found.not_measured)
    assert [one.rank for one in page.policies if one.rank] == list(range(1, len(found.ranking) + 1))
    assert named(page, outcome="failed").reason == "RuntimeError: expected [Half] but found Float"
    assert "above the tolerance" in named(page, fidelity="lossy", outcome="ok").reason
    assert named(page, stopped="outpaced").source is Source.MEASURED


def test_winner_baseline_and_hand_tuned_default_are_marked(page: PageStudy) -> None:
    assert named(page, id=page.answer.policy).roles == ("winner",)
    assert named(page, id=page.answer.baseline).roles == ("baseline",)
    assert named(page, id=page.answer.hand_tuned).roles == ("hand-tuned",)


def test_a_measurement_has_its_spread_and_a_prediction_is_never_called_measured(page: PageStudy) -> None:
    baseline = named(page, roles=("baseline",))
    rate = baseline.samples_per_second
    assert (rate.source, rate.value) == (Source.MEASURED, 61.3)
    assert rate.low == pytest.approx(61.3 / 1.01)
    assert rate.high == pytest.approx(61.3 / 0.99)
    assert (baseline.peak_bytes.source, baseline.memory.source) == (Source.MEASURED, Source.MEASURED)
    assert baseline.predicted_peak_bytes.source is Source.PREDICTED
    assert baseline.predicted_samples_per_second.value == pytest.approx(8 / 0.085), "a line through 25 and 45 ms"
    screened = named(page, outcome="screened")
    assert screened.peak_bytes is None
    assert screened.predicted_peak_bytes.source is Source.PREDICTED


def test_on_a_simulated_device_nothing_is_called_measured_and_a_prediction_stays_one(
    page: PageStudy, tmp_path: Path
) -> None:
    folder = faster_study(tmp_path, hardware=msgspec.structs.replace(CPU, simulated=True))
    there = study_part(read_finished(folder), "s0")
    assert (there.title, there.device.name) == ("gpt2 on a CPU (simulated)", "a CPU (simulated)")
    was, now = (re.findall(r'"source":"(\w+)"', msgspec.json.encode(one).decode()) for one in (page, there))
    assert {"measured", "profiled", "predicted"} == set(was)
    assert set(now) == {"predicted", "simulated"}
    assert now.count("predicted") == was.count("predicted")
    assert {one.source for one in there.comparisons} == {Source.SIMULATED}


def test_the_wrapper_of_every_policy_can_be_read_and_they_share_their_lines(page: PageStudy) -> None:
    for one in page.policies:
        wrapper = text(page, one.wrapper)
        compile(wrapper, "wrapper.py", "exec")
        assert f"micro_batch={one.micro_batch}," in wrapper
    assert len(page.lines) < sum(len(one.wrapper) for one in page.policies) / 3
    assert "Not measured: its trial ended as failed." in text(page, named(page, outcome="failed").wrapper)
    assert page.answer.wrapper == named(page, roles=("winner",)).wrapper


def test_a_command_that_would_steer_a_terminal_is_left_out(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", recommendation(), goal(), model="x\x03\nrm -rf .py")
    document = PageDocument(version="0", made="", studies=(study_part(read_finished(folder), "s0"),))
    [embedded] = re.findall(r'id="document">(.*?)</script>', page_text(document))
    study = json.loads(embedded)["studies"][0]
    assert study.get("command", "") == ""
    assert set(study["answer"]["commands"]) == {"as the settings of a trainer", "this page again"}
    assert {one.get("command", "") + one.get("verify_command", "") for one in study["policies"]} == {""}


def test_no_path_of_a_study_below_here_names_the_folders_above(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    faster_study(tmp_path / "runs" / "study")
    monkeypatch.chdir(tmp_path)
    for typed in (Path("runs/study"), tmp_path / "runs" / "study"):
        found = study_part(read_finished(typed), "s0")
        assert (found.folder, found.answer.files["policy"]) == ("runs/study", "runs/study/policy.yaml")
        assert str(tmp_path) not in repr(found)


def test_throughput_has_profiled_points_measured_points_and_a_predicted_line(page: PageStudy) -> None:
    [plain] = [one for one in page.throughput if one.name == "plain"]
    sources = {one.batch: one.samples_per_second.source for one in plain.points}
    assert sources == {2: Source.PROFILED, 4: Source.PROFILED, 8: Source.MEASURED}
    assert {one.samples_per_second.source for one in plain.predicted} == {Source.PREDICTED}
    assert (plain.predicted[0].batch, plain.predicted[-1].batch) == (1, 32), "four times the largest that ran"
    assert [one.policy for one in plain.points] == ["", "", page.answer.baseline]


def test_memory_over_a_step_says_that_it_was_traced(page: PageStudy) -> None:
    [memory] = page.memory_over_step
    assert memory.policy == page.answer.baseline
    assert memory.source is Source.PREDICTED
    assert memory.bytes == {kind.value: values for kind, values in TIMELINE.live.items()}
    assert memory.phases == TIMELINE.phases


def test_the_phases_of_a_step_add_up_to_the_measured_step(page: PageStudy) -> None:
    [step] = page.time_of_step
    assert step.seconds.source is Source.MEASURED
    assert step.source is Source.PREDICTED
    assert sum(one.seconds for one in step.phases) == pytest.approx(8 / 61.3)
    assert [one.bound for one in step.phases] == ["compute", "memory bandwidth"]


def test_a_step_of_two_devices_is_divided_as_it_was_profiled(tmp_path: Path) -> None:
    two = on(2, msgspec.structs.replace(CANDIDATES[0], role=Role.SEARCHED))
    found = recommendation()
    found = msgspec.structs.replace(found, ranking=(*found.ranking, two))
    phases = (
        PhaseSplit(phase=Phase.FORWARD, seconds=1.0, communication_seconds=0.0, exposed_seconds=0.0),
        PhaseSplit(phase=Phase.BACKWARD, seconds=3.0, communication_seconds=2.0, exposed_seconds=1.0),
    )
    profiled = stored_trial(SplitTrial, two.policy, ended_at=2.0, split=StepSplit(phases=phases, steps=5))
    work = work_of(group(Phase.FORWARD, flops=(0, 1000)))
    traced = stored_trial(PredictTrial, two.policy, ended_at=4.0, counts_work=True, work=work)
    facts = msgspec.structs.replace(FACTS, device_rates=rates())
    for trials, bound in (((profiled, traced), "compute"), ((profiled,), "")):
        folder = write_study(tmp_path / (bound or "untraced"), found, goal(), trials=trials, facts=facts)
        [step] = study_part(read_finished(folder), "s0").time_of_step
        whole = step.seconds.value
        assert step.source is Source.MEASURED
        assert {one.phase: one.seconds for one in step.phases} == pytest.approx(
            {"forward": whole / 4, "backward": whole / 2, "communication": whole / 4}
        )
        assert [one.bound for one in step.phases] == [bound, "", "links and other devices"]
        assert step.phases[1].unbound == (
            "the step that was followed has no operator in this phase"
            if bound
            else "no step of it was followed on tensors without memory, as the study had no time left"
        )


def test_a_profiled_step_whose_work_is_unknown_is_bound_by_the_host_where_the_device_waits(tmp_path: Path) -> None:
    two = on(2, msgspec.structs.replace(CANDIDATES[0], role=Role.SEARCHED))
    found = msgspec.structs.replace(recommendation(), ranking=(*recommendation().ranking, two))
    times = {"communication_seconds": 0.0, "exposed_seconds": 0.0}
    phases = (
        PhaseSplit(phase=Phase.FORWARD, seconds=1.0, idle_seconds=0.25, **times),
        PhaseSplit(phase=Phase.OPTIMIZER, seconds=1.0, idle_seconds=0.75, **times),
    )
    split = stored_trial(SplitTrial, two.policy, ended_at=2.0, split=StepSplit(phases=phases, steps=5))
    spec, _ = stored_trial(PredictTrial, two.policy, ended_at=4.0, counts_work=True)
    facts = msgspec.structs.replace(FACTS, device_rates=rates())
    refused = spec.ended(Outcome.OK, "a hook reads values", wall_seconds=1.0, ended_at=4.0)
    folder = write_study(tmp_path / "study", found, goal(), trials=(split, (spec, refused)), facts=facts)
    [step] = study_part(read_finished(folder), "s0").time_of_step
    assert [one.bound for one in step.phases[:2]] == ["compute or memory bandwidth", "launching operators"]
    assert step.phases[0].seconds_by_bound["launching operators"] == pytest.approx(step.phases[0].seconds / 4)
    why = "its step cannot be followed on tensors without memory (a hook reads values)"
    assert {one.unbound for one in step.phases[:2]} == {why}


def test_a_winner_and_a_baseline_whose_steps_are_not_divided_say_why(tmp_path: Path) -> None:
    found = recommendation()
    two = on(2, msgspec.structs.replace(CANDIDATES[0], role=Role.SEARCHED))
    found = msgspec.structs.replace(found, winner=two, ranking=(two, *found.ranking))
    folder = write_study(tmp_path / "study", found, goal())
    assert study_part(read_finished(folder), "s0").not_divided == (
        "The step of the winner is not divided: no steps of it were profiled, as the study had no time left.",
        "The step of the baseline is not divided: the rates of this device were not measured.",
    )


def test_a_step_of_two_devices_that_was_not_profiled_is_not_divided(tmp_path: Path) -> None:
    two = on(2, msgspec.structs.replace(CANDIDATES[0], role=Role.SEARCHED))
    found = recommendation()
    found = msgspec.structs.replace(found, ranking=(*found.ranking, two))
    work = work_of(group(Phase.FORWARD, flops=(0, 1000)))
    traced = stored_trial(PredictTrial, two.policy, ended_at=4.0, counts_work=True, work=work)
    facts = msgspec.structs.replace(FACTS, device_rates=rates())
    folder = write_study(tmp_path / "study", found, goal(), trials=(traced,), facts=facts)
    part = study_part(read_finished(folder), "s0")
    assert part.time_of_step == ()
    assert any("on several some steps that a profiler watched" in one for one in part.missing)


def test_losses_stand_beside_those_of_the_reference_run(page: PageStudy) -> None:
    [found] = page.comparisons
    assert found.losses[0] == pytest.approx(found.reference[0] + 0.01)
    assert (found.reference_name, found.name, found.gradient_error) == ("plain", "precision bf16", 0.03)
    assert {named(page, id=one).methods for one in found.policies} == {("precision bf16",)}


def test_a_comparison_beyond_its_class_says_which_one_it_showed(tmp_path: Path) -> None:
    found = recommendation()
    ranking = tuple(
        msgspec.structs.replace(one, guard=guarded()) if one.policy.methods == (BF16,) else one for one in found.ranking
    )
    folder = write_study(tmp_path, msgspec.structs.replace(found, ranking=ranking), goal())
    shown = named(study_part(read_finished(folder), "s0"), roles=("hand-tuned",))
    assert (shown.fidelity, shown.observed_fidelity, shown.loss_drift) == ("precision", "lossy", 0.04)


def test_the_course_has_the_order_the_time_spent_and_what_led(page: PageStudy) -> None:
    assert [one.number for one in page.course] == list(range(1, len(page.course) + 1))
    [timed] = [one for one in page.course if one.took_seconds]
    assert (timed.policy, timed.ended_at_seconds) == (page.answer.baseline, 4.0), "the second of two that took 2 s"
    assert page.course[-1].best == next(one.id for one in page.policies if one.outcome == "ok" and not one.reason)


def test_a_line_of_the_ledger_that_was_replaced_counts_once(page: PageStudy) -> None:
    assert len(page.course) == len(page.policies)


def test_what_was_refused_is_there_with_its_reason(page: PageStudy) -> None:
    assert {one.setting: one.reason for one in page.refused} == {label_words(one): why for one, why in REFUSED.items()}


def test_an_older_study_has_a_page_that_says_what_it_lacks(tmp_path: Path) -> None:
    found = recommendation()
    page = study_part(read_finished(write_study(tmp_path, found, goal(), tried=found.ranking)), "s0")
    assert (page.memory_over_step, page.time_of_step, page.comparisons) == ((), (), ())
    assert len(page.missing) == 4
    assert len(page.course) == len(found.ranking)
    assert {one.ended_at_seconds for one in page.course} == {None}
    assert named(page, roles=("baseline",)).memory is not None


def test_an_interrupted_study_says_so(tmp_path: Path) -> None:
    found = msgspec.structs.replace(recommendation(confirmation=None), stopped_because="you interrupted it")
    page = study_part(read_finished(write_study(tmp_path, found, goal(), complete=False)), "s0")
    assert not page.complete
    assert page.stopped_because == "you interrupted it"
    assert page.answer.verdict is None


def test_the_answer_says_what_to_do_what_it_brings_and_how_sure_that_is(page: PageStudy) -> None:
    answer = page.answer
    assert answer.headline.startswith("Train with ")
    assert answer.gain is not None
    assert answer.gain.times.value == pytest.approx(131.7 / 61.3)
    assert answer.verdict is not None
    assert (answer.verdict.state, answer.verdict.words[:9]) == ("confirmed", "Confirmed")
    assert answer.apply_lines[0].startswith("from wrapper import prepare")
    assert answer.facts[0][0] == "speed"


def test_the_policy_file_is_shown_only_as_it_was_written(tmp_path: Path) -> None:
    folder = faster_study(tmp_path)
    (folder / "policy.yaml").write_text("edited: since\n")
    assert study_part(read_finished(folder), "s0").answer.policy_file == ()


def test_the_least_cost_has_its_frontier_with_the_pick_and_prices(tmp_path: Path) -> None:
    page = study_part(read_finished(write_study(tmp_path, cost_recommendation(), cost_goal())), "s0")
    frontier = page.frontier
    assert frontier is not None
    on_it = [one for one in frontier.places if one.on_frontier]
    assert [one.gpu_count for one in on_it] == [1, 2, 4]
    assert frontier.places[frontier.pick].policy == page.answer.policy
    assert on_it[2].cost_usd.value == pytest.approx(0.001204)
    assert on_it[2].cost_usd.low == pytest.approx(0.001204 * 0.99, rel=0.01)
    assert frontier.places[3].by == 0
    assert page.answer.gain is not None
    assert page.answer.gain.times.value == pytest.approx(1.204 / 1.92), "below 1 is less"


def test_the_largest_model_has_sizes_against_throughput_and_the_floor(tmp_path: Path) -> None:
    page = study_part(read_finished(write_study(tmp_path, test_growth.answer(), HALF)), "s0")
    growth = page.growth
    assert growth is not None
    assert growth.floor_samples_per_second == 50.0
    assert [(one.who, one.size, one.outcome) for one in growth.places][-1] == ("plain", "layers=8", "screened")
    assert growth.places[-1].peak_bytes is not None
    assert growth.places[-1].peak_bytes.source is Source.PREDICTED
    assert page.answer.gain is not None
    assert page.answer.gain.times.value == 2.5
    assert len({one.combination for one in page.policies}) == len(page.policies), "another size is another combination"


def test_two_hundred_trials_are_so_many_policies(tmp_path: Path) -> None:
    assert len(study_part(read_finished(write_study(tmp_path, many(200), goal())), "s0").policies) == 200
