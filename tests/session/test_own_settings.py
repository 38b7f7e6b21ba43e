"""Settings of the user's own are measured as the baseline, and the answer says that they are the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import advisor
from advisor.decide.candidate import Role
from advisor.decide.eligible import why_not_eligible
from advisor.errors import OptionError, PolicyError
from advisor.goal import Fidelity, Floor, GoalKind
from advisor.methods.setting import use
from advisor.policy.baseline import Baseline
from advisor.policy.policy import Policy
from advisor.search.space.space_file import load_space
from advisor.session.request import TuneRequest
from advisor.session.setup.device_counts import with_global_batch
from advisor.session.setup.own_settings import fit_to_own_settings, libraries_of
from advisor.session.trials.evaluate import Evaluator
from advisor.trial.outcome import Outcome
from tests.decide.examples import goal, measured
from tests.report.scenario import CPU
from tests.search.test_build_space import FACTS
from tests.session.contexts import SOURCE, study
from tests.session.test_evaluate import FakeTrials, limited
from tests.session.workloads import growing, tiny

OWN = "schema: 1\npolicy:\n  methods: {checkpoint: {every: 2}}\n  micro_batch: 4\n  accumulation_steps: 2\n"


def written(folder: Path, text: str = OWN) -> Path:
    path = folder / "own.yaml"
    path.write_text(text)
    return path


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> advisor.Answer:
    """One answer beside settings that the space does not hold."""
    folder = tmp_path_factory.mktemp("own")
    return advisor.tune(
        Path(tiny.__file__),
        baseline=written(folder),
        output=folder / "out",
        search_space="smoke",
        trials=2,
        time_limit=60,
    )


@pytest.mark.slow
def test_the_baseline_is_what_the_file_says_and_its_step_keeps_its_samples(tuned: advisor.Answer) -> None:
    baseline = tuned.recommendation.baseline
    assert baseline is not None
    assert baseline.policy == Policy(methods=(use("checkpoint", every=2),), micro_batch=4, accumulation_steps=2)
    assert tuned.goal.global_batch == 8
    assert {one.policy.global_batch for one in tuned.recommendation.ranking} == {8}
    others = [one.policy.methods for one in tuned.recommendation.ranking if one.role is not Role.BASELINE]
    assert () in others, "plain training is measured too"


@pytest.mark.slow
def test_the_answer_calls_it_the_users_own(tuned: advisor.Answer) -> None:
    notes = " ".join(tuned.notes)
    assert "own.yaml says: checkpoint every=2 at batch 4 x 2" in notes
    assert "every step has 8 samples, as the baseline's" in notes
    assert "your own settings" in " ".join(tuned.recommendation.why)


@pytest.mark.slow
def test_the_policy_file_keeps_what_it_was_compared_with(tuned: advisor.Answer) -> None:
    kept = advisor.load_policy_file(tuned.policy_path)
    assert tuned.recommendation.baseline is not None
    assert kept.baseline == tuned.recommendation.baseline.policy


@pytest.mark.slow
def test_a_baseline_that_says_a_size_is_measured_at_it_and_needs_no_file(tmp_path: Path) -> None:
    own = {"schema": 1, "policy": {"micro_batch": 4}, "model_size": {"layers": 6}}
    settings: dict[str, Any] = {"search_space": "smoke", "trials": 1, "time_limit": 60, "output": tmp_path / "out"}
    answer = advisor.tune(Path(growing.__file__), baseline=own, **settings)
    assert {tuple(one.model_size.items()) for one in answer.recommendation.ranking} == {(("layers", 6),)}
    assert "every trial has the model at the size that the policy that was given says: layers=6" in answer.notes
    assert advisor.load_policy_file(answer.policy_path).size == {"layers": 6}


def test_a_search_over_sizes_leaves_the_size_of_the_baseline_aside() -> None:
    own = Baseline(policy=Policy(micro_batch=4), origin="own.yaml", model_size={"layers": 6})
    request = TuneRequest(source=SOURCE, baseline=own)
    assert request.model_size == {"layers": 6}
    assert request.asked("")["baseline"] == "plain, batch 4 x 1 at layers=6"
    assert msgspec.structs.replace(request, goal=GoalKind.BIGGER, floor=Floor(share_of_baseline=0.5)).model_size == {}


def requested(policy: Policy, **others: Any) -> TuneRequest:
    baseline = Baseline(policy=policy, origin="own.yaml", notes=("one thing was left out",))
    return TuneRequest(source=SOURCE, baseline=baseline, **others)


def fitted(policy: Policy, **others: Any) -> tuple[Any, Any, list[str]]:
    said: list[str] = []
    space = load_space("default")
    found, aim = fit_to_own_settings(requested(policy, **others), space, goal(), FACTS, CPU, said.append)
    return found, aim, said


def test_its_methods_are_tried_first_at_values_that_the_space_did_not_have() -> None:
    space, _, said = fitted(Policy(methods=(use("checkpoint", every=3),), micro_batch=4))
    assert space.recipes[0].methods == {"checkpoint": {"every": 3}}
    assert 3 in (space.methods["checkpoint"] or {}).get("every", [3])
    assert "one thing was left out" in said


def test_a_ceiling_below_it_is_raised_unless_it_was_asked_for() -> None:
    own, exact = Policy(methods=(use("precision", dtype="bf16"),), micro_batch=4), goal(fidelity=Fidelity.EXACT)
    said: list[str] = []

    def ceiling(**asked: Any) -> Fidelity:
        _, aim = fit_to_own_settings(requested(own, **asked), load_space("default"), exact, FACTS, CPU, said.append)
        return aim.fidelity

    assert ceiling() is Fidelity.PRECISION
    assert any("--fidelity exact lowers it" in one for one in said)
    assert ceiling(fidelity=Fidelity.EXACT) is Fidelity.EXACT


def test_the_libraries_of_its_methods_are_looked_for_too() -> None:
    own = Baseline(policy=Policy(methods=(use("adam_low_bit", state="4bit"),), micro_batch=4), origin="own.yaml")
    space = load_space("smoke")
    assert "torchao" not in libraries_of(space, None)
    assert "torchao" in libraries_of(space, own)


def test_what_changes_what_is_learned_stays_in_every_policy_that_may_win() -> None:
    lora = use("lora", rank=8)
    facts = msgspec.structs.replace(
        FACTS, libraries={**FACTS.libraries, "peft": "0.21"}, matrices={"torch.nn.Linear": ((768, 768),)}
    )
    said: list[str] = []
    space, aim = fit_to_own_settings(
        requested(Policy(methods=(lora,), micro_batch=4)), load_space("default"), goal(), facts, CPU, said.append
    )
    assert aim.kept_methods == ("lora",)
    assert all("lora" in recipe.methods for recipe in space.recipes)
    assert "without lora something else is learned" in (why_not_eligible(measured(10.0), aim) or "")
    assert why_not_eligible(measured(10.0, lora, fidelity=Fidelity.MODEL), aim) is None


def test_only_who_accumulates_has_chosen_the_samples_of_a_step() -> None:
    assert fitted(Policy(micro_batch=4))[1].global_batch is None
    assert fitted(Policy(micro_batch=4, accumulation_steps=3))[1].global_batch == 12
    assert fitted(Policy(micro_batch=4, accumulation_steps=3), global_batch=24)[1].global_batch is None


def test_cheapest_compares_at_the_samples_of_their_step() -> None:
    """The trap: at the batch of the model file the user's own settings could not win, whatever they cost."""
    asked = requested(
        Policy(micro_batch=4, gpu_count=2, methods=(use("ddp", bucket_views=True, static_graph=False),)),
        goal=GoalKind.CHEAPEST,
    )
    aim = msgspec.structs.replace(goal(), kind=GoalKind.CHEAPEST, gpu_counts=(1, 2))
    _, found = fit_to_own_settings(asked, load_space("default"), aim, FACTS, CPU, lambda said: None)
    assert found.global_batch == 8
    assert with_global_batch(found, msgspec.structs.replace(FACTS, default_batch=4)).global_batch == 8


def test_a_method_that_cannot_apply_here_is_named_before_anything_is_measured() -> None:
    with pytest.raises(OptionError, match=r"trainable here, but own.yaml has a method .*checkpoint.*Take it out"):
        fit_to_own_settings(
            requested(Policy(methods=(use("checkpoint", every=1),), micro_batch=4)),
            load_space("default"),
            goal(),
            msgspec.structs.replace(FACTS, block_class=None, block_count=0),
            CPU,
            lambda text: None,
        )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"gpu_counts": (2, 4)}, r"number of devices of the baseline, but own.yaml is for 1 .* Give --gpus 1,2,4"),
    ],
)
def test_settings_that_nothing_can_be_compared_with_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        requested(Policy(micro_batch=4), **asked).check()


@pytest.mark.parametrize("aim", GoalKind)
def test_every_goal_takes_settings_of_the_users_own(aim: GoalKind) -> None:
    floor = Floor(share_of_baseline=0.5) if aim is GoalKind.BIGGER else None
    requested(Policy(micro_batch=4), goal=aim, floor=floor).check()


def test_a_file_that_is_no_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="`schema: 1`"):
        advisor.tune(Path(tiny.__file__), baseline=written(tmp_path, "a: 1\n"))


def test_two_requests_with_other_settings_are_two_studies() -> None:
    plain = TuneRequest(source=SOURCE)
    first, second = requested(Policy(micro_batch=4)), requested(Policy(micro_batch=8))
    assert len({one.fingerprint("space") for one in (plain, first, second)}) == 3


def test_what_somebody_trains_with_may_win_however_far_it_drifts() -> None:
    drifting = measured(10.0, role=Role.BASELINE, drift=0.9)
    assert why_not_eligible(drifting, goal()) is not None
    assert why_not_eligible(drifting, msgspec.structs.replace(goal(), own_settings="own.yaml")) is None


def baseline_of(own: Baseline, aim: Any = None, **facts: Any) -> Any:
    whole = study(
        aim or limited(1100),
        facts=msgspec.structs.replace(FACTS, **facts),
        request=TuneRequest(source=SOURCE, baseline=own),
    )
    return Evaluator(whole, FakeTrials()).baseline()


def test_its_batch_is_its_own_whatever_the_model_file_says() -> None:
    own = Baseline(
        policy=Policy(methods=(use("checkpoint", every=1),), micro_batch=6, accumulation_steps=2), origin="o"
    )
    found = baseline_of(own, default_batch=32)
    assert found.policy.combination_key == own.policy.combination_key
    assert (found.role, found.policy.micro_batch, found.policy.accumulation_steps) == (Role.BASELINE, 6, 2)
    assert baseline_of(own, limited(130)).outcome is Outcome.SCREENED


def test_where_it_states_no_batch_that_of_the_model_file_is_taken() -> None:
    own = Baseline(policy=Policy(micro_batch=1, accumulation_steps=2), origin="accelerate.yaml", states_batch=False)
    assert baseline_of(own, default_batch=16).policy == Policy(micro_batch=16, accumulation_steps=2)
    cheapest = limited(1100, kind=GoalKind.CHEAPEST)
    assert baseline_of(own, cheapest, default_batch=None).policy.micro_batch == 8, "a usual one"
