"""Models that several devices hold together: what is run of them, what it is compared with, and a size none holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Role
from advisor.decide.choose import choose
from advisor.errors import OptionError
from advisor.goal import Fidelity, Floor, Goal, GoalKind
from advisor.hardware.mesh import DATA_ONLY, Mesh, MeshAxis
from advisor.measure.fidelity import FidelityRecord
from advisor.measure.measurement import SizePoint, Sizing
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.predict.prediction import Affine, MemoryPrediction, Moment
from advisor.search.space.space import Axis, Combination, ResolvedRecipe, ResolvedSpace
from advisor.search.space.space_file import load_space
from advisor.search.study.sampler import Proposer
from advisor.session.climb import SizeSearch
from advisor.session.setup import device_counts
from advisor.session.setup.device_counts import build_on_devices, with_global_batch
from advisor.session.setup.fit import what_stays_whole, within_fidelity
from advisor.session.trials.evaluate import Evaluator
from advisor.session.trials.guard import Guard
from advisor.session.trials.sized_trials import SizedTrials
from advisor.session.trials.trials import Trials
from advisor.trial.outcome import Outcome
from advisor.trial.spec import FidelityTrial, PredictTrial, SizeTrial, TimeTrial
from tests.decide.examples import goal, measurement, memory
from tests.search.cutting_methods import WITH_CUTS, add_cuts
from tests.search.test_build_space import CPU
from tests.search.test_meshes import FACTS
from tests.session.contexts import study
from tests.session.test_climb import COUNTS
from tests.session.unguarded import UNGUARDED

GIB = 2**30
DDP = use("ddp", bucket_views=True, static_graph=False)
SLICED, STAGES = use("sliced", sequence=False), use("stages")
CHECKPOINT = use("checkpoint", every=1)


@pytest.fixture(autouse=True)
def _cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    add_cuts(monkeypatch)


def meshed(*counts: int) -> ResolvedSpace:
    cut = {2: (DATA_ONLY, Mesh(tensor=2), Mesh(pipeline=2)), 4: (DATA_ONLY, Mesh(tensor=2), Mesh(tensor=4))}
    return ResolvedSpace(
        name="test",
        fidelity=Fidelity.LOSSY,
        axes=(
            Axis(method="checkpoint", settings=(CHECKPOINT,)),
            Axis(method="ddp", settings=(DDP,), divides=MeshAxis.DATA),
            Axis(method="sliced", settings=(SLICED,), divides=MeshAxis.TENSOR),
            Axis(method="stages", settings=(STAGES,), divides=MeshAxis.PIPELINE),
        ),
        batch_fractions=(1.0,),
        recipes=(),
        refused={},
        dropped_recipes={},
        conflicts={},
        gpu_counts=counts,
        meshes={count: cut[count] for count in counts if count > 1},
    )


class Devices:
    """Answers trials as devices would: a sample and a layer need 1 GiB, divided among those that hold a model."""

    def __init__(self, *, limit: int = 10 * GIB) -> None:
        self.limit = limit
        self.ran: list[Any] = []

    def need(self, policy: Policy, micro_batch: int, layers: float) -> int:
        return int((layers + micro_batch) * GIB / policy.axes.model_degree)

    def run(self, spec: Any) -> Any:
        if isinstance(spec, PredictTrial):
            return spec.ended(Outcome.OK, "a step reads the value of a tensor")
        self.ran.append(spec)
        layers = spec.model_size.get("layers", 1)
        if self.need(spec.policy, spec.policy.micro_batch, layers) > self.limit:
            return spec.ended(Outcome.OUT_OF_MEMORY, "it did not fit")
        match spec:
            case SizeTrial():
                return spec.ended(Outcome.OK, sizing=self._sizing(spec, layers))
            case TimeTrial():
                peak = self.need(spec.policy, spec.policy.micro_batch, layers)
                passes = spec.policy.accumulation_steps
                found = measurement(100.0, micro_batch=spec.policy.micro_batch, accumulation_steps=passes, peak=peak)
                return spec.ended(Outcome.OK, measurement=found)
            case FidelityTrial():
                return spec.ended(Outcome.OK, fidelity=FidelityRecord(losses=(4.0,) * 30, distinct_batches=4))
        raise AssertionError(spec)

    def gradient_file(self, key: str) -> Path:
        return Path(key)

    def _sizing(self, spec: SizeTrial, layers: float) -> Sizing:
        points = []
        for micro_batch in (spec.policy.micro_batch, 2 * spec.policy.micro_batch):
            need = self.need(spec.policy, micro_batch, layers)
            activations = int(micro_batch * GIB / spec.policy.axes.model_degree)
            if need <= self.limit:
                seconds = 0.001 * micro_batch * spec.policy.accumulation_steps
                points.append(
                    SizePoint(
                        micro_batch=micro_batch, memory=memory(need, activations=activations), step_seconds=seconds
                    )
                )
        return Sizing(points=tuple(points), out_of_memory_at=None, loss_trace=(1.0, 1.0, 1.0))

    @property
    def labels(self) -> list[str]:
        return [f"{spec.kind} {Combination.of(spec.policy).label}" for spec in self.ran]


def context(*counts: int, limit: int = 10 * GIB, **changes: Any) -> Any:
    aim = msgspec.structs.replace(goal(), memory_limit_bytes=limit, gpu_counts=counts, **changes)
    facts = msgspec.structs.replace(FACTS, default_batch=2)
    return study(aim, seconds=10_000.0, space=meshed(*counts), facts=facts)


def trials(*counts: int, devices: Devices | None = None, **changes: Any) -> tuple[Trials, Devices, Any]:
    devices = devices or Devices()
    about = context(*counts, limit=devices.limit, **changes)
    runner: Any = devices
    return Trials(about, runner), devices, about


class Picky(Devices):
    """Fails in profiling runs at 64 samples."""

    def run(self, spec: Any) -> Any:
        if isinstance(spec, SizeTrial) and (spec.largest_batch or 64) >= 64:
            self.ran.append(spec)
            return spec.ended(Outcome.FAILED, "ValueError: too many (at batch 64)", failed_at=64)
        return super().run(spec)


class TestWhatIsRun:
    def test_profiling_runs_of_a_pipeline_have_its_micro_batches_and_time_counts_for_one(self) -> None:
        made, devices, _ = trials(1, 2)
        model, _ = made.size(Combination((STAGES,), 2, Mesh(pipeline=2)), None)
        assert model is not None
        assert (devices.ran[0].policy.accumulation_steps, devices.ran[0].policy.global_batch) == (8, 16)
        assert model.seconds(2) == pytest.approx(0.002)
        assert model.seconds(2, 8) == pytest.approx(0.016)
        made.size(Combination((SLICED,), 2, Mesh(tensor=2)), None)
        assert (devices.ran[1].policy.accumulation_steps, devices.ran[1].policy.global_batch) == (1, 2)

    def test_the_batch_of_a_mesh_is_one_share_for_those_that_hold_a_model_together(self) -> None:
        made, _, about = trials(4, global_batch=24)
        evaluator = Evaluator(about, made)
        found = evaluator.evaluate(Combination((DDP, SLICED), 4, Mesh(tensor=2)), 1.0, Role.SEARCHED, best=None)
        policy = found.candidate.policy
        assert (policy.data_degree, policy.micro_batch, policy.accumulation_steps) == (2, 12, 1)
        assert policy.global_batch == 24

    def test_a_pipeline_is_timed_at_twice_its_stages_of_micro_batches_or_more(self) -> None:
        made, _, about = trials(2, global_batch=24)
        found = Evaluator(about, made).evaluate(
            Combination((STAGES,), 2, Mesh(pipeline=2)), 1.0, Role.SEARCHED, best=None
        )
        assert (found.candidate.policy.micro_batch, found.candidate.policy.accumulation_steps) == (6, 4)

    def test_a_batch_that_a_method_cannot_take_bounds_no_other_though_plain_training_is_not_known(self) -> None:
        """Trap: in a study of two devices alone, what the first combination could not take bounded all others."""
        made, devices, _ = trials(2, devices=Picky())
        made.size(Combination((DDP, SLICED), 2, Mesh(tensor=2)), None)
        assert [spec.largest_batch for spec in devices.ran] == [None, 32]
        assert made.most_samples is None
        made.size(Combination((DDP,), 2), None)
        assert made.most_samples == 64, "plain training on two devices, each with 32"

    def test_samples_that_make_batch_does_not_make_are_not_asked_for(self) -> None:
        _, devices, about = trials(2)
        runner: Any = devices
        made = Trials(about, runner, most_samples=20)
        model, _ = made.size(Combination((STAGES,), 2, Mesh(pipeline=2)), None)
        assert devices.ran[0].largest_batch == 2, "20 samples in 8 micro-batches"
        assert model is not None
        assert model.most_samples == 2

    def test_a_cut_is_sized_and_timed_although_plain_training_fits_on_no_device(self) -> None:
        made, _, about = trials(1, 2, devices=Devices(limit=int(1.2 * GIB)))
        evaluator = Evaluator(about, made)
        baseline = evaluator.baseline()
        assert baseline is not None
        assert baseline.outcome is Outcome.OUT_OF_MEMORY
        found = evaluator.evaluate(Combination((SLICED,), 2, Mesh(tensor=2)), 1.0, Role.SEARCHED, best=None)
        assert found.candidate.outcome is Outcome.OK
        assert found.candidate.loss_drift is None, "there is nothing to compare with"


class Traced(Devices):
    """Also answers traces: the last of two stages takes as much again, for its output layer."""

    def run(self, spec: Any) -> Any:
        if not isinstance(spec, PredictTrial):
            return super().run(spec)
        self.ran.append(spec)
        live = Affine(fixed=float(self.need(spec.policy, 0, 1) * (1 + spec.rank)), per_sample=0.0)
        moment = Moment(phase="forward", live=live, parts={})
        prediction = MemoryPrediction(moments=(moment,), activations=live, traced_at=(2, 4))
        return spec.ended(Outcome.OK, prediction=prediction)


class TestWhatIsPredicted:
    @staticmethod
    def evaluated(limit: int, *, parameter_bytes: int) -> tuple[Candidate, Traced]:
        made, devices, about = trials(1, 2, devices=Traced(limit=limit))
        facts = msgspec.structs.replace(about.facts, parameter_bytes=parameter_bytes)
        about = msgspec.structs.replace(about, facts=facts)
        made = Trials(about, devices)  # type: ignore[arg-type]
        cut = Combination((STAGES,), 2, Mesh(pipeline=2))
        found = Evaluator(about, made).evaluate(cut, 1.0, Role.SEARCHED, best=None)
        return found.candidate, devices  # type: ignore[return-value]

    def test_a_cut_whose_fullest_device_is_predicted_not_to_fit_is_never_run(self) -> None:
        candidate, devices = self.evaluated(int(0.9 * GIB), parameter_bytes=GIB)
        assert [(type(spec), spec.rank) for spec in devices.ran] == [(PredictTrial, 0), (PredictTrial, 1)]
        assert candidate.outcome is Outcome.SCREENED
        assert candidate.predicted_peak_bytes == GIB
        assert candidate.reason == (
            "one sample is predicted to need 1.00 GiB; the limit is 922 MiB (a trace of its fullest device)"
        )

    def test_one_that_fits_is_run(self) -> None:
        candidate, devices = self.evaluated(2 * GIB, parameter_bytes=GIB)
        assert [type(spec) for spec in devices.ran[:2]] == [PredictTrial, PredictTrial]
        assert candidate.outcome is Outcome.OK

    def test_nothing_is_traced_where_it_certainly_fits(self) -> None:
        candidate, devices = self.evaluated(2 * GIB, parameter_bytes=GIB // 8)
        assert not any(isinstance(spec, PredictTrial) for spec in devices.ran)
        assert candidate.outcome is Outcome.OK


def test_what_stays_whole_is_said_with_its_share_for_every_mesh_that_divides_layers() -> None:
    reasons = {
        degree: f"{degree}0 % of the blocks' parameters stay whole on every device: experts" for degree in (2, 8)
    }
    facts = msgspec.structs.replace(FACTS, tensor_whole=reasons)
    said = what_stays_whole(meshed(1, 2, 4), facts)
    assert said == [f"where 2 devices divide each layer, {reasons[2]}"], "no mesh has 8"


class TestReferences:
    def test_losses_are_compared_with_plain_training_on_as_many_devices_as_there_are_shares(self) -> None:
        made, _, _ = trials(4)
        cut, plain = Combination((DDP, SLICED), 4, Mesh(tensor=2)), Combination((DDP,), 2)
        assert made.reference(cut.data_degree) == plain
        made.size(plain, None)
        made.size(cut, None)
        assert made.drift(cut) == 0.0

    def test_steps_of_a_pipeline_have_more_samples_than_those_of_profiling_runs_without_one(self) -> None:
        made, _, _ = trials(1, 2)
        cut = Combination((STAGES,), 2, Mesh(pipeline=2))
        made.size(Combination(), None)
        made.size(cut, None)
        assert made.drift(cut) is None

    def test_the_guard_gives_a_pipeline_and_its_reference_as_many_micro_batches_as_stages(self) -> None:
        made, devices, about = trials(1, 2)
        evaluator = Evaluator(about, made)
        cut = evaluator.evaluate(Combination((STAGES,), 2, Mesh(pipeline=2)), 1.0, Role.SEARCHED, best=None).candidate
        devices.ran.clear()
        checked = Guard(about, made).checked(cut)
        assert checked.guard is not None
        assert [(one.policy.label, one.policy.gpu_count, one.policy.global_batch) for one in devices.ran] == [
            ("plain", 1, 4),
            ("stages", 2, 4),
        ]

    def test_the_plainest_on_a_number_of_devices_is_that_of_its_plainest_mesh(self) -> None:
        about = context(2)
        only_cut = msgspec.structs.replace(
            about, space=msgspec.structs.replace(about.space, meshes={2: (Mesh(tensor=2),)})
        )
        assert about.plainest(2) == Combination((DDP,), 2)
        assert only_cut.plainest(2) == Combination((SLICED,), 2, Mesh(tensor=2))
        assert only_cut.reference(1) == Combination()


class TestNumbersOfDevices:
    def test_a_fidelity_that_forbids_to_share_a_batch_leaves_meshes_that_do_not(self) -> None:
        batchnorm = msgspec.structs.replace(FACTS, has_batchnorm=True)
        aim = msgspec.structs.replace(goal(), gpu_counts=(1, 2, 4))
        aim, space, note = within_fidelity(aim, meshed(1, 2, 4), batchnorm)
        assert note == ""
        assert aim.gpu_counts == (1, 2, 4)
        assert space.meshes[2] == (Mesh(tensor=2), Mesh(pipeline=2)), "methods say more of their own fidelity"
        assert space.meshes[4] == (Mesh(tensor=4),)

    def test_recipes_for_meshes_that_it_forbids_are_left_out_with_them(self) -> None:
        """The trap: such a recipe was enqueued on a mesh that the search does not know, and ended in a KeyError."""
        batchnorm = msgspec.structs.replace(FACTS, has_batchnorm=True)
        for counts in ((1, 2), (2,), (1, 2, 4)):
            recipes = tuple(
                ResolvedRecipe(name=mesh.label(count), hand_tuned=False, settings=(CHECKPOINT,), place=(count, mesh))
                for count, mesh in meshed(*counts).places
            )
            space = msgspec.structs.replace(meshed(*counts), recipes=recipes)
            aim = msgspec.structs.replace(goal(), gpu_counts=counts)
            _, space, _ = within_fidelity(aim, space, batchnorm)
            assert {recipe.place for recipe in space.recipes} == set(space.places)
            Proposer(space, storage=None, study_name="s", maximize=(True,)).close()

    def test_devices_that_cannot_share_a_global_batch_may_hold_models_together(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(device_counts, "CATALOGUE", WITH_CUTS)
        path = tmp_path / "mine.yaml"
        path.write_text("schema: 1\nname: mine\nfidelity: lossy\nmethods: {ddp: {}, sliced: {}}\n")
        space = load_space(str(path), catalogue=WITH_CUTS)
        aim = msgspec.structs.replace(goal(), gpu_counts=(1, 2, 3, 4), global_batch=2)
        assert with_global_batch(aim, FACTS, space).gpu_counts == (1, 2, 4), "nothing slices layers for 3 devices"
        assert with_global_batch(aim, FACTS).gpu_counts == (1, 2)
        resolved, note = build_on_devices(space, FACTS, CPU, msgspec.structs.replace(aim, gpu_counts=(4,)), asked=True)
        assert note is None
        assert resolved.meshes_on(4) == (Mesh(tensor=2), Mesh(tensor=4))

    def test_without_a_mesh_such_devices_are_left_out_with_the_reason(self) -> None:
        batchnorm = msgspec.structs.replace(FACTS, has_batchnorm=True)
        aim = msgspec.structs.replace(goal(), gpu_counts=(2,))
        alone = msgspec.structs.replace(meshed(2), meshes={})
        with pytest.raises(OptionError, match="BatchNorm"):
            within_fidelity(aim, alone, batchnorm)


class TestBigger:
    def search(self, devices: Devices, floor: Floor) -> tuple[SizeSearch, SizedTrials, Goal]:
        about = context(1, 2, limit=devices.limit, kind=GoalKind.BIGGER, floor=floor)
        runner: Any = devices
        sized = SizedTrials(about, Trials(about, runner), UNGUARDED, COUNTS)
        proposer = Proposer(about.space, storage=None, study_name="test", maximize=(True,))
        return SizeSearch(about, proposer, sized), sized, about.goal

    def test_a_model_that_fits_on_no_single_device_is_cut(self) -> None:
        """Its own size has 4 layers; a device holds 3 with one sample, two devices 7 together."""
        devices = Devices(limit=int(4.4 * GIB))
        search, sized, aim = self.search(devices, Floor(samples_per_second=1.0))
        search.run()
        found = choose(sized.candidates, aim, refused_settings={}, untried=0, stopped_because="it ended")
        best = found.winner
        assert best.policy.axes.model_degree == 2
        assert best.model_size == {"layers": 7}
        assert devices.need(Policy(micro_batch=1), 1, best.model_size["layers"]) > devices.limit
        whole = [one for one in sized.candidates if one.outcome is Outcome.OK and one.policy.axes == DATA_ONLY]
        assert max((one.model_size["layers"] for one in whole), default=0) <= 3

    def test_a_share_as_the_floor_is_of_the_smallest_cut_that_fits_where_plain_training_does_not(self) -> None:
        devices = Devices(limit=int(3.5 * GIB))
        search, sized, aim = self.search(devices, Floor(share_of_baseline=0.5))
        search.run()
        baselines = [one for one in sized.candidates if one.role is Role.BASELINE]
        assert [(one.policy.label, one.outcome) for one in baselines] == [
            ("plain", Outcome.OUT_OF_MEMORY),
            ("sliced(sequence=False)", Outcome.OK),
        ]
        found = choose(sized.candidates, aim, refused_settings={}, untried=0, stopped_because="it ended")
        assert found.winner.policy.axes.model_degree == 2
        assert found.baseline is not None
        assert found.baseline.policy.axes == Mesh(tensor=2)
