"""``momadvise predict``: an answer without a run, from the command line to the worker and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import advisor.session.predict
from advisor.predict.prediction import Affine, Category, MemoryPrediction, Moment
from advisor.session import prediction_cache
from advisor.session.predict import PredictRequest, run_prediction
from advisor.trial.outcome import Outcome
from advisor.trial.result import PredictResult
from advisor.trial.spec import PredictTrial
from advisor.workload.source import resolve_source
from tests.search.cutting_methods import add_cuts
from tests.session.command import run_command, run_here

MODEL = """\
import torch

BATCH_SIZE = 16


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(8)))

    def forward(self, inputs):
        return self.layers(inputs).square().mean()


def build_model():
    return Net()


def make_batch(batch_size):
    return {"inputs": torch.randn(batch_size, 256)}
"""
PARAMETERS = 8 * (256 * 256 + 256) * 4


@pytest.fixture(autouse=True)
def model(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)


@pytest.fixture(autouse=True)
def nobody_edits_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was predicted before an edit is predicted anew, also where somebody edits while the tests run."""
    monkeypatch.setattr(prediction_cache, "_package_stamp", lambda: "as it is")


def predicted(tmp_path: Path, *options: str) -> tuple[int, dict[str, object], str]:
    result = run_here("predict", "model.py", "--json", *options, cwd=tmp_path)
    assert "advisor/" not in result.stderr, "no frame of ours may be shown"
    assert {path.name for path in tmp_path.iterdir()} <= {"model.py", "model.json", "policy.yaml", "__pycache__"}, (
        "nothing is kept"
    )
    return result.returncode, json.loads(result.stdout) if result.stdout else {}, result.stderr


def test_a_model_that_fits(tmp_path: Path) -> None:
    status, found, stderr = predicted(tmp_path, "--memory-limit", "1GiB")
    assert status == 0, stderr
    assert found["predicted"] is True
    assert found["fits"] is True
    assert found["batch_from"] == "BATCH_SIZE"
    assert found["asked"]["micro_batch"] == 16  # type: ignore[index]
    assert found["asked"]["parts"]["parameters"] == PARAMETERS  # type: ignore[index]
    assert found["largest"]["peak_bytes"] <= 2**30 < 1.01 * found["largest"]["peak_bytes"]  # type: ignore[index]
    assert found["limit_bytes"] == 2**30
    times = found["times"]
    assert [step["batch"] for step in times] == [16, found["largest"]["micro_batch"]]  # type: ignore[attr-defined,index]
    assert all(step["measured_rates"] for step in times)  # type: ignore[attr-defined]


def test_the_second_time_it_says_when_it_was_traced_and_a_changed_model_is_traced_anew(tmp_path: Path) -> None:
    def first_run(found: dict[str, object]) -> bool:
        return not any("It was traced on" in note for note in found["notes"])  # type: ignore[attr-defined]

    first, second = (predicted(tmp_path, "--batch", "24")[1] for _ in range(2))
    assert (first_run(first), first_run(second)) == (True, False)
    assert second["asked"] == first["asked"]
    (tmp_path / "model.py").write_text(MODEL.replace("256", "128"))
    changed = predicted(tmp_path, "--batch", "24")[1]
    assert first_run(changed)
    assert changed["asked"]["peak_bytes"] < first["asked"]["peak_bytes"]  # type: ignore[index]


def test_a_prediction_of_before_is_not_that_of_a_changed_config_or_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def traced_before(*, hidden: int) -> bool:
        _, found, stderr = predicted(tmp_path, "--batch", "24")
        assert found["asked"]["parts"]["parameters"] == 4 * (hidden * hidden + hidden), stderr  # type: ignore[index]
        return any("It was traced on" in note for note in found["notes"])  # type: ignore[attr-defined]

    (tmp_path / "model.py").write_text(
        "import json, os\nfrom pathlib import Path\nimport torch\n"
        "H = int(os.environ.get('MODEL_HIDDEN', '8')) * json.loads(Path('model.json').read_text())\n"
        "def build_model():\n    return torch.nn.Linear(H, H)\n"
        "def make_batch(batch_size):\n    return torch.randn(batch_size, H)\n"
        "def compute_loss(model, batch):\n    return model(batch).square().mean()\n"
    )
    (tmp_path / "model.json").write_text("1")
    assert not traced_before(hidden=8)
    assert traced_before(hidden=8)
    (tmp_path / "model.json").write_text("2")
    assert not traced_before(hidden=16)
    monkeypatch.setenv("MODEL_HIDDEN", "16")
    assert not traced_before(hidden=32)


def test_a_model_that_does_not_fit_has_an_exit_status_of_its_own(tmp_path: Path) -> None:
    status, found, _ = predicted(tmp_path, "--batch", "4096", "--memory-limit", "16MiB")
    assert status == 3
    assert found["fits"] is False
    assert found["asked"]["micro_batch"] == 4096  # type: ignore[index]
    assert 1 <= found["largest"]["micro_batch"] < 4096  # type: ignore[index]


def test_a_policy_is_applied_at_its_own_batch(tmp_path: Path) -> None:
    plain = predicted(tmp_path, "--batch", "512")[1]
    policy = "schema: 1\npolicy:\n  methods: {optimizer_in_backward: {}}\n  micro_batch: 512\n"
    (tmp_path / "policy.yaml").write_text(policy + "  accumulation_steps: 1\n  gpu_count: 1\n")
    status, found, stderr = predicted(tmp_path, "--policy", "policy.yaml")
    assert status == 0, stderr
    assert found["batch_from"] == "the policy's"
    assert found["asked"]["micro_batch"] == 512  # type: ignore[index]
    assert found["methods"] == [{"name": "optimizer_in_backward", "parameters": {}}]
    gradients = PARAMETERS
    saved = plain["asked"]["phase_peaks"]["optimizer"] - found["asked"]["phase_peaks"]["optimizer"]  # type: ignore[index]
    assert saved > 0.8 * gradients


def test_a_policy_of_a_model_at_another_size_is_predicted_at_that_size(tmp_path: Path) -> None:
    """The trap: what ``bigger`` found was predicted for the model as it is in the file, which fits."""
    sized = MODEL.replace("__init__(self)", "__init__(self, layers)").replace("range(8)", "range(layers)")
    sized = sized.replace("def build_model():\n    return Net()", "def build_model(layers=8):\n    return Net(layers)")
    (tmp_path / "model.py").write_text(sized + "\n\nSIZES = {'layers': [8, 32]}\n")
    policy = "schema: 1\npolicy: {methods: {}, micro_batch: 4, accumulation_steps: 1, gpu_count: 1}\n"
    (tmp_path / "policy.yaml").write_text(policy + "model_size: {layers: 32}\n")
    status, found, stderr = predicted(tmp_path, "--policy", "policy.yaml", "--memory-limit", "1GiB")
    assert status == 0, stderr
    assert found["asked"]["parts"]["parameters"] == 4 * PARAMETERS  # type: ignore[index]
    assert "layers=32" in " ".join(found["notes"])  # type: ignore[arg-type]
    (tmp_path / "policy.yaml").write_text(policy)
    assert predicted(tmp_path, "--policy", "policy.yaml")[1]["asked"]["parts"]["parameters"] == PARAMETERS  # type: ignore[index]


def test_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    status, found, stderr = predicted(tmp_path, "--profile", "h100_80gb")
    assert status == 0, stderr
    assert found["device"] == "NVIDIA H100 SXM5 80 GB"
    assert any("--profile h100_80gb_pcie" in note for note in found["notes"]), "one of two was taken"  # type: ignore[attr-defined]
    assert found["limit_bytes"] == 80 * 10**9 - 600 * 2**20
    native, expandable = found["reserved"]  # type: ignore[misc]
    assert native["peak_bytes"] >= found["asked"]["peak_bytes"]  # type: ignore[index]
    assert found["largest"]["micro_batch"] == native["largest_batch"]  # type: ignore[index]
    assert expandable["largest_batch"] >= 0.9 * native["largest_batch"]
    assert found["times"][0]["batch"] == 16  # type: ignore[index]
    assert found["times"][0]["measured_rates"] is False  # type: ignore[index]
    assert any("not measured on that GPU" in note for note in found["notes"])  # type: ignore[attr-defined]
    assert any("A sample was: inputs of 256." in note for note in found["notes"])  # type: ignore[attr-defined]


def test_people_get_a_chart(tmp_path: Path) -> None:
    result = run_command("predict", "model.py", "--memory-limit", "1GiB", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("model: plain on ")
    assert "nothing was trained, and of the device only its rates were measured." in result.stdout
    assert "Time of a step, predicted on measured rates" in result.stdout
    assert "floating-point operations for each byte moved" in result.stdout
    assert "It fits: batch 16 (BATCH_SIZE)" in result.stdout
    assert "█" in result.stdout
    assert result.stderr == "", "progress is for terminals"


def test_a_model_that_cannot_be_traced_is_not_guessed_at(tmp_path: Path) -> None:
    reads = "inputs = inputs / inputs.abs().max().item()\n        return self.layers"
    (tmp_path / "model.py").write_text(MODEL.replace("return self.layers", reads))
    status, found, stderr = predicted(tmp_path)
    assert status == 1
    assert found["error"] == "NothingPredictedError"
    assert "a step reads the value of a tensor" in stderr
    assert "momadvise --goal faster MODEL" in stderr


def test_a_model_that_raises_shows_its_own_traceback(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL.replace("return Net()", 'raise ValueError("no weights")'))
    status, _, stderr = predicted(tmp_path)
    assert status == 2
    assert "no weights" in stderr
    assert 'model.py", line' in stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--batch", "0"), "--batch must be at least 1, but got 0."),
        (("--memory-limit", "lots"), "--memory-limit must be a number with a unit"),
        (("--profile", "h200", "--device", "cpu"), "Keep one."),
        (("--profile", "v100"), "Did you mean v100_16gb or v100_32gb?"),
        (("--policy", "model.py"), "A policy file must"),
        (("--policy", "none.yaml"), "A policy file must be readable"),
        (("--batches", "3"), "momadvise predict --help"),
    ],
)
def test_mistakes_are_named_with_what_to_do(tmp_path: Path, options: tuple[str, ...], message: str) -> None:
    status, _, stderr = predicted(tmp_path, *options)
    assert status == 2
    assert message in stderr


def test_a_policy_for_several_devices_is_of_each_of_them(tmp_path: Path) -> None:
    policy = "schema: 1\npolicy:\n  methods: {zero_1: {}}\n  micro_batch: 4\n  accumulation_steps: 1\n  gpu_count: 2\n"
    (tmp_path / "policy.yaml").write_text(policy)
    status, found, stderr = predicted(tmp_path, "--policy", "policy.yaml", "--memory-limit", "1GiB")
    assert status == 0, stderr
    assert found["asked"]["micro_batch"] == 4  # type: ignore[index]
    own, gradients_to_send = 2 * PARAMETERS // 2, PARAMETERS
    assert found["asked"]["parts"]["optimizer_state"] == pytest.approx(own, rel=0.1)  # type: ignore[index]
    assert found["asked"]["peak_bytes"] > PARAMETERS + own + gradients_to_send  # type: ignore[index]
    assert any("of each of the 2 devices" in note for note in found["notes"])  # type: ignore[attr-defined]
    assert found["times"] == []


def policy_of(folder: Path, methods: str) -> str:
    path = folder / "policy.yaml"
    path.write_text(
        f"schema: 1\npolicy:\n  methods: {methods}\n  micro_batch: 4\n  accumulation_steps: 1\n  gpu_count: 1\n"
    )
    return path.name


def test_segments_that_expand_decide_what_fits_on_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "{expandable_segments: {}}")
    status, found, stderr = predicted(tmp_path, "--policy", policy, "--profile", "h200")
    assert status == 0, stderr
    assert found["methods"] == [{"name": "expandable_segments", "parameters": {}}]
    _, expandable = found["reserved"]  # type: ignore[misc]
    assert found["largest"]["micro_batch"] == expandable["largest_batch"]  # type: ignore[index]


def test_a_method_that_needs_the_gpu_to_be_applied_is_measured_there(tmp_path: Path) -> None:
    policy = policy_of(tmp_path, "{attention_backend: {kernel: efficient}}")
    status, found, stderr = predicted(tmp_path, "--policy", policy, "--profile", "h200")
    assert status == 1
    assert found["error"] == "NothingPredictedError"
    assert "Measure it on that GPU" in stderr


def test_a_pipeline_is_predicted_by_its_fullest_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last of two stages of two devices each takes more: what is said is of its first device."""
    add_cuts(monkeypatch)
    monkeypatch.setenv("MOMADVISE_CACHE", str(tmp_path / "cache"))

    def answered(spec: PredictTrial, tell: object) -> PredictResult:
        live = Affine(fixed=2**20 * (1 + spec.rank), per_sample=1024)
        moment = Moment(phase="forward", live=live, parts={Category.ACTIVATIONS: live})
        prediction = MemoryPrediction(moments=(moment,), activations=live, traced_at=(2, 4))
        return spec.ended(Outcome.OK, prediction=prediction)

    monkeypatch.setattr(advisor.session.predict, "_answered", answered)
    path = tmp_path / "policy.yaml"
    path.write_text(
        "schema: 1\npolicy:\n  methods: {stages: {}, zero_1: {}}\n  micro_batch: 4\n  accumulation_steps: 8\n"
        "  gpu_count: 4\n  mesh: {pipeline: 2}\n"
    )
    request = PredictRequest(source=resolve_source(tmp_path / "model.py"), policy_file=path, device="cpu")
    found = run_prediction(request, lambda text: None)
    assert found.asked.peak_bytes == 3 * 2**20 + 4 * 1024
    assert any(
        note.startswith(
            "Memory and batch are of the fullest of 4 devices (2 data x 2 pipeline), rank 2 in stage 2 of 2"
        )
        for note in found.notes
    )


def test_a_mesh_in_a_policy_by_hand_that_its_methods_do_not_divide_is_refused_with_the_fix(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(
        "schema: 1\npolicy:\n  methods: {zero_1: {}}\n  micro_batch: 4\n  gpu_count: 2\n  mesh: {tensor: 2}\n"
    )
    status, _, stderr = predicted(tmp_path, "--policy", "policy.yaml")
    assert status == 2
    assert "the data axis, which has one device in a mesh of 2 tensor; leave it out, or give the axis more" in stderr
