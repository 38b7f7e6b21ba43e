"""``momadvise verify``: real steps of a policy's wrapper beside those of a plain loop, and a status that tells."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from advisor.policy.file import load_policy_file
from tests.session.command import run_here
from tests.session.processes import wait_until_gone

MODEL = """\
import torch

BATCH_SIZE = 9


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.outside = torch.nn.Linear(32, 64), torch.nn.Linear(64, 32)

    def forward(self, x):
        return x + self.outside(torch.nn.functional.dropout(self.inside(x).relu(), {dropout}, self.training))


def build_model():
    return torch.nn.Sequential(*(Block() for _ in range(4)))


def make_batch(batch_size):
    return torch.randn(batch_size, 32), torch.randint(32, (batch_size,))


def compute_loss(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="{reduction}")
"""


def write(folder: Path, policy: str, *, reduction: str = "mean", dropout: float = 0.0, **parts: str) -> None:
    (folder / "model.py").write_text(MODEL.format(reduction=reduction, dropout=dropout))
    lines = ["schema: 1", f"policy: {policy}", *(f"{name}: {value}" for name, value in parts.items())]
    (folder / "policy.yaml").write_text("\n".join(lines))


def verified(folder: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    result = run_here("verify", "policy.yaml", "model.py", "--json", *options, cwd=folder)
    assert "Traceback" not in result.stderr
    kept_files = {"model.py", "policy.yaml", "policy.json", "__pycache__"}
    assert {path.name for path in folder.iterdir()} <= kept_files, "nothing is kept"
    return result.returncode, json.loads(result.stdout) if result.stdout else {}, result.stderr


def checks(found: dict[str, Any]) -> dict[str, str]:
    return {check["name"]: check["kept"] for check in found["checks"]}


def test_what_promises_the_same_bits_is_held_to_them(tmp_path: Path) -> None:
    write(tmp_path, "{methods: {checkpoint: {every: 1}}, micro_batch: 9}", dropout=0.3)
    status, found, stderr = verified(tmp_path)
    assert status == 0, (found, stderr)
    assert (found["kept"], found["fidelity"], found["outcome"]) == (True, "exact", "ok")
    assert found["losses"] == found["plain_losses"]
    assert found["gradient_error"] == 0
    assert found["update_errors"] == [0, 0, 0]
    assert found["peak_bytes"] > 0
    assert found["plain_peak_bytes"] > 0
    assert found["samples_per_second"] > 0
    assert checks(found)["speed"] == "not judged", "a file written by hand promises none"


def test_micro_batches_of_a_batch_are_its_steps_but_for_rounding(tmp_path: Path) -> None:
    policy = "{methods: {}, micro_batch: 3, accumulation_steps: 3}"
    write(tmp_path, policy, reduction="sum", dropout=0.3)
    with (tmp_path / "policy.yaml").open("a") as file:
        file.write("\nreduction: {kind: sum}\n")
    status, found, _ = verified(tmp_path)
    assert status == 0, found
    assert found["fidelity"] == "rounding"
    assert 0 < found["gradient_error"] < 1e-5
    assert any("dropout was off" in note for note in found["notes"])


def test_a_gradient_that_adam_hides_from_the_updates_is_a_broken_promise(tmp_path: Path) -> None:
    """The sum of a batch cut into three as if it were a mean: every gradient is a third of what it should be."""
    write(tmp_path, "{methods: {}, micro_batch: 3, accumulation_steps: 3}", reduction="sum")
    status, found, _ = verified(tmp_path)
    assert status == 4
    assert found["kept"] is False
    assert found["gradient_error"] == pytest.approx(2 / 3, rel=1e-3)
    assert max(found["update_errors"]) < 0.05
    assert checks(found) | {"peak memory": "", "speed": ""} == {
        "losses": "not kept",
        "first gradient": "not kept",
        "updates": "kept",
        "peak memory": "",
        "speed": "",
    }


def test_a_lower_precision_is_held_to_its_own_figures(tmp_path: Path) -> None:
    write(tmp_path, "{methods: {precision: {dtype: bf16}}, micro_batch: 9}")
    status, found, _ = verified(tmp_path)
    if status == 2:
        assert "this device only emulates bfloat16" in found["message"]
        return
    assert status == 0, found
    assert found["fidelity"] == "precision"
    assert 1e-6 < found["gradient_error"] < 0.2


def test_what_changes_the_model_is_shown_and_not_judged(tmp_path: Path) -> None:
    write(tmp_path, "{methods: {}, micro_batch: 3, accumulation_steps: 3}")
    text = (tmp_path / "model.py").read_text()
    normalized = text.replace("(Block() for _ in range(4))", "(torch.nn.BatchNorm1d(32), Block())")
    (tmp_path / "model.py").write_text(normalized)
    status, found, _ = verified(tmp_path)
    assert status == 0, found
    assert found["fidelity"] == "model"
    assert {checks(found)[name] for name in ("losses", "first gradient", "updates")} == {"not judged"}


EVIDENCE = (
    "{{goal: faster, date: '2026-01-01', samples_per_second: 1.0, relative_spread: 0.1, peak_bytes: {peak}, "
    "memory_limit_bytes: 1000000000, fidelity: exact, tie: false, trials: 3, why: [], "
    "speedup_over_baseline: [{value}, {low}, {high}], baseline_batch: 9}}"
)
PROMISING = EVIDENCE.format(peak=10**9, value=0.5, low=0.0001, high=1000.0)
PLAIN = "{methods: {checkpoint: {every: 1}}, micro_batch: 9}"


def test_peak_and_speed_stand_beside_the_promise(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, evidence=PROMISING)
    status, found, _ = verified(tmp_path)
    assert status == 0, found
    assert (checks(found)["peak memory"], checks(found)["speed"]) == ("kept", "kept")


@pytest.mark.parametrize(
    ("evidence", "broken"),
    [
        (EVIDENCE.format(peak=1000, value=0.5, low=0.0001, high=1000.0), "peak memory"),
        (EVIDENCE.format(peak=10**9, value=5000.0, low=4000.0, high=6000.0), "speed"),
    ],
)
def test_a_figure_beyond_its_promise_has_the_status_of_a_broken_promise(
    evidence: str, broken: str, tmp_path: Path
) -> None:
    write(tmp_path, PLAIN, evidence=evidence)
    status, found, _ = verified(tmp_path)
    assert status == 4
    assert [name for name, kept in checks(found).items() if kept == "not kept"] == [broken]


def fingerprints(name: str, device: str = "elsewhere") -> str:
    return f"{{workload: {{name: {name}, fingerprint: '1'}}, hardware: {{name: {device}}}, versions: {{}}, request: r}}"


def test_figures_of_another_device_and_an_edited_model_are_said_and_not_judged(tmp_path: Path) -> None:
    evidence = EVIDENCE.format(peak=1000, value=5000.0, low=4000.0, high=6000.0)
    write(tmp_path, PLAIN, evidence=evidence, fingerprints=fingerprints("model"))
    status, found, _ = verified(tmp_path)
    assert status == 0, found
    assert (checks(found)["peak memory"], checks(found)["speed"]) == ("not judged", "not judged")
    assert any("the model's file has changed" in note for note in found["notes"])
    assert any("was measured on elsewhere" in note for note in found["notes"])


def test_where_plain_training_does_not_fit_fewer_samples_are_compared(tmp_path: Path) -> None:
    write(tmp_path, "{methods: {checkpoint: {every: 1}}, micro_batch: 4096}")
    status, found, _ = verified(tmp_path, "--memory-limit", "6MiB")
    assert status == 0, found
    assert 1 < found["compared_samples"] < 4096
    assert any("a plain loop does not fit" in note for note in found["notes"])


# ---- what a user can put right


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("{methods: {checkpont: {}}, micro_batch: 9}", "checkpoint"),
        ("{methods: {channels_last: {}}, micro_batch: 9}", "no convolution"),
        ("{methods: {ddp: {bucket_views: true, static_graph: false}}, micro_batch: 9, gpu_count: 2}", "one device"),
        ("{methods: {}, micro_batch: 0}", "micro_batch must be at least 1"),
    ],
)
def test_a_policy_that_cannot_be_applied_says_why(policy: str, words: str, tmp_path: Path) -> None:
    write(tmp_path, policy)
    status, found, stderr = verified(tmp_path)
    assert status == 2
    assert words in stderr
    assert set(found) == {"schema", "error", "message"}


def test_a_policy_of_another_model_is_refused(tmp_path: Path) -> None:
    write(tmp_path, PLAIN, fingerprints=fingerprints("gpt2"))
    status, _, stderr = verified(tmp_path)
    assert status == 2
    assert "is of 'gpt2' and the model is 'model'" in stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("nowhere.yaml", "model.py"),
        ("policy.yaml", "nowhere.py"),
        ("model.py", "model.py"),
        ("policy.yaml", "model.py", "--device", "tpu"),
        ("policy.yaml", "model.py", "--memory-limit", "much"),
        ("policy.yaml",),
        (),
        ("policy.yaml", "model.py", "--fast"),
    ],
)
def test_a_mistake_on_the_command_line_has_status_two(arguments: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    result = run_here("verify", *arguments, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith("momadvise: error: ")
    assert "Traceback" not in result.stderr


def test_what_the_users_code_raises_is_shown_as_theirs(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    (tmp_path / "model.py").write_text(MODEL.replace("return torch.nn.functional.cross", "raise KeyError; cross"))
    result = run_here("verify", "policy.yaml", "model.py", cwd=tmp_path)
    assert result.returncode == 2
    assert "KeyError" in result.stderr
    assert "advisor/" not in result.stderr, "no frame of ours may be shown"


# ---- runs that do not come to their end

IN_TRAINING = "\n_plain_compute_loss = compute_loss\n\n\ndef compute_loss(model, batch):\n"


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("os._exit(7)", "crashed"),
        ("raise MemoryError('no more')", "host out of memory"),
        ("raise ValueError('not under a policy')", "failed"),
        ("return _plain_compute_loss(model, batch) * float('nan')", "diverged"),
    ],
)
def test_a_wrapper_that_ends_badly_where_the_plain_loop_does_not_breaks_its_promise(
    line: str, outcome: str, tmp_path: Path
) -> None:
    write(tmp_path, "{methods: {checkpoint: {every: 1}}, micro_batch: 9}")
    text = MODEL.format(reduction="mean", dropout=0.0) + IN_TRAINING
    text += "    if any('Checkpoint' in type(one).__name__ for one in model.modules()):\n"
    text += f"        {line}\n    return _plain_compute_loss(model, batch)\n"
    (tmp_path / "model.py").write_text("import os\n" + text)
    before = psutil.Process().children(recursive=True)
    status, found, _ = verified(tmp_path)
    assert status == 4
    assert found["outcome"] == outcome
    assert checks(found) == {"run": "not kept"}
    workers = [one for one in psutil.Process().children(recursive=True) if one not in before]
    assert not wait_until_gone(workers), "nothing is left running"


def test_plain_training_that_does_not_run_says_how_it_ended(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    (tmp_path / "model.py").write_text(MODEL.format(reduction="mean", dropout=0.0) + "\n\nimport os; os._exit(7)\n")
    status, found, stderr = verified(tmp_path)
    assert status == 1
    assert found["error"] == "NothingMeasuredError"
    assert "crashed" in stderr


# ---- for people


def test_a_person_reads_the_verdict_first(tmp_path: Path) -> None:
    write(tmp_path, "{methods: {}, micro_batch: 3, accumulation_steps: 3}", reduction="sum")
    result = run_here("verify", "policy.yaml", "model.py", cwd=tmp_path)
    lines = result.stdout.splitlines()
    assert lines[0].startswith("model: plain, batch 3 x 3, on ")
    assert lines[1] == "It does not keep its promise: losses, first gradient."
    assert len(lines) <= 15
    assert result.stderr == ""


@pytest.mark.slow
def test_the_answer_of_a_search_is_verified(tmp_path: Path) -> None:
    write(tmp_path, PLAIN)
    (tmp_path / "policy.yaml").unlink()
    tuned = run_here(
        "model.py", "--search-space", "smoke", "--trials", "2", "--time-limit", "20s", "--output", "out", cwd=tmp_path
    )
    assert tuned.returncode == 0, tuned.stderr
    assert load_policy_file(tmp_path / "out" / "policy.yaml").evidence is not None
    result = run_here("verify", "out/policy.yaml", "model.py", "--json", cwd=tmp_path)
    assert result.returncode in (0, 4), result.stderr
    found = json.loads(result.stdout)
    assert {kept for name, kept in checks(found).items() if name != "speed"} == {"kept"}
