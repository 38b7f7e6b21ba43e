"""``momadvise check`` and ``advisor.check``: their statuses, what they print, and the mistakes they name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

import advisor
from advisor.decide.policy_status import PolicyStatus
from advisor.errors import OptionError, PolicyError, WorkloadError
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import use
from advisor.policy.policy import Policy
from advisor.report.summary import answer_summary
from advisor.session import check as checking
from advisor.session.policy_runs import PolicyRuns, SideBySide, speedup_beside_both
from advisor.trial.outcome import Outcome
from advisor.trial.result import ConfirmResult, LookResult
from advisor.workload.source import resolve_source
from tests.decide.examples import measurement
from tests.session.command import run_here

from .projects import Project, look_here

pytestmark = pytest.mark.slow


@pytest.fixture
def project(measured: advisor.Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    look_here(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return Project(tmp_path, measured.policy_path)


def printed(project: Project, *arguments: str) -> tuple[int, list[str], str]:
    result = run_here("check", "policy.yaml", *arguments, cwd=project.folder)
    return result.returncode, result.stdout.splitlines(), result.stderr


# ---- what is printed


def test_a_policy_that_holds_is_said_to_in_one_line(project: Project) -> None:
    assert printed(project) == (0, ["The policy holds."], "")
    assert printed(project, "model.py")[0] == 0


def test_a_stale_policy_has_a_line_for_each_difference_and_the_command_that_helps(project: Project) -> None:
    project.edit("cfg.json", "32", "48")
    project.restate("fingerprints.versions", momadvise="0.0.9")
    status, lines, _ = printed(project)
    assert status == 3
    again = "momadvise --goal faster model.py --memory-limit 2GiB --device cpu --search-space smoke"
    assert lines[0] == f"The policy is stale: tune again ({again})."
    assert lines[1:3] == ["model: parameters 2,144 -> 3,200", "model: trainable parameters 2,144 -> 3,200"]
    assert lines[-2:] == [
        "the file cfg.json changed (warning)",
        f"momadvise: 0.0.9 -> {advisor.__version__} (warning)",
    ]


def test_with_json_everything_is_in_one_document(project: Project) -> None:
    project.edit("parts.py", "relu", "tanh")
    status, lines, _ = printed(project, "--json")
    found = json.loads("\n".join(lines))
    assert (status, found["status"], found["workload"]) == (3, "stale", "model")
    assert found["differences"] == [
        {"subject": "model", "what": "code", "was": "", "now": "", "weight": "stale", "words": "model: code changed"}
    ]
    assert found["command"][:4] == ["momadvise", "--goal", "faster", "model.py"]


def test_the_command_that_helps_has_what_is_asked_for_now(project: Project) -> None:
    status, lines, _ = printed(project, "--global-batch", "64", "--memory-limit", "1GiB", "--device", "cpu")
    assert status == 3
    assert "model.py --device cpu --global-batch 64 --memory-limit 1GiB --search-space smoke)" in lines[0]


def test_the_command_that_helps_picks_as_is_asked_for_now_or_as_then(project: Project) -> None:
    """The trap: both were in it, and momadvise refused the command that it had printed."""
    project.restate("fingerprints.asked", goal="cheapest", max_latency_seconds=0.2)
    project.restate("evidence", goal="cheapest")
    project.edit("parts.py", "relu", "tanh")
    assert "--max-latency 0.2s" in printed(project)[1][0]
    status, lines, said = printed(project, "--max-cost", "5", "--iterations", "1000")
    assert status == 3, said
    now = lines[0]
    assert "--max-cost 5" in now
    assert "--max-latency" not in now


def test_the_command_that_helps_names_devices_only_if_they_were_named(project: Project) -> None:
    project.restate("fingerprints.asked", goal="cheapest", gpus="1,2,4")
    project.restate("evidence", goal="cheapest")
    project.edit("parts.py", "relu", "tanh")
    assert "--gpus" not in printed(project)[1][0]
    project.restate("fingerprints.options", **{"--gpus": "1,2"})
    assert "--gpus 1,2 " in printed(project)[1][0] + " "


def test_the_command_that_helps_compares_with_the_same_settings_of_the_users_own(project: Project) -> None:
    project.restate("", baseline=Policy(methods=(use("checkpoint", every=1),), micro_batch=4))
    project.edit("parts.py", "relu", "tanh")
    asked = "--memory-limit 2GiB --device cpu --search-space smoke"
    assert printed(project)[1][0].endswith(f"model.py {asked} --from policy.yaml).")


def test_a_summary_is_appended_as_markdown(project: Project) -> None:
    project.edit("parts.py", "relu", "tanh")
    (project.folder / "summary.md").write_text("# Before\n")
    assert printed(project, "--summary", "summary.md")[0] == 3
    text = (project.folder / "summary.md").read_text()
    assert text.startswith("# Before\n### momadvise check: model on ")
    assert "- model: code changed\n" in text


def test_the_answer_of_a_search_is_a_table_in_a_summary(measured: advisor.Answer) -> None:
    lines = answer_summary(measured).splitlines()
    assert "| # | policy | batch | samples/s | peak |  |" in lines
    assert sum(line.startswith("| 1 | ") and "winner" in line for line in lines) == 1
    assert sum(line.startswith("| ") and line.endswith("baseline |") for line in lines) == 1


# ---- what cannot be told


@pytest.mark.parametrize("missing", ["fingerprints", "identity"])
def test_a_file_that_does_not_state_its_model_cannot_be_told(missing: str, project: Project) -> None:
    project.restate("" if missing == "fingerprints" else "fingerprints", **{missing: None})
    status, lines, _ = printed(project, "model.py")
    assert status == 1
    assert "by an older version of momadvise. Tune again to get one that does" in lines[0]


def test_a_model_that_takes_too_long_to_build_cannot_be_told(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    late = LookResult(key="k", outcome=Outcome.TIMEOUT, reason="it took longer than its limit of 300 s")
    monkeypatch.setattr(checking, "look_at_model", lambda *arguments: late)
    found = project.check()
    assert found.status is PolicyStatus.UNKNOWN
    assert found.reason.startswith("building the model ended as timeout: it took longer")


# ---- mistakes


def test_a_model_that_raises_is_the_users_mistake(project: Project) -> None:
    project.edit("model.py", "import torch\n", "import torch\n\nraise ValueError('no data')\n")
    with pytest.raises(WorkloadError, match="no data"):
        project.check()


def test_the_model_that_a_policy_names_must_be_there(project: Project, tmp_path: Path) -> None:
    (project.folder / "model.py").rename(project.folder / "network.py")
    with pytest.raises(PolicyError, match=r"names model\.py, which is neither .* momadvise check .*policy\.yaml MODEL"):
        project.check()
    project.restate("fingerprints.workload", model="")
    with pytest.raises(PolicyError, match=r"names none\. Name it: momadvise check .*policy\.yaml MODEL"):
        project.check()


def test_of_two_models_of_a_name_it_is_the_one_that_was_measured(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    Project(elsewhere).edit("model.py", "range(2)", "range(3)")
    monkeypatch.chdir(elsewhere)
    assert project.check().holds
    (elsewhere / "model.py").write_text("def predict(): ...\n")
    assert project.check().holds, "what is no model of this kind is not asked"
    Project(elsewhere).edit("model.py", "range(2)", "range(3)")
    project.edit("model.py", "range(2)", "range(4)")
    assert "momadvise --goal faster model.py " in " ".join(project.check().command), "the current folder's"


def test_a_module_of_folders_without_an_init_file_is_found_by_its_name(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "own_code"
    package.mkdir()
    text = (
        (tmp_path / "model.py")
        .read_text()
        .replace("from parts", "from own_code.parts")
        .replace(".parent /", ".parent.parent /")
    )
    (package / "model.py").write_text(text)
    (tmp_path / "parts.py").rename(package / "parts.py")
    source = resolve_source("own_code.model")
    project.restate("fingerprints.workload", model=source.typed, fingerprint=source.fingerprint)
    (tmp_path / "model.py").unlink()
    found = project.check()
    assert found.holds, found.words
    assert found.command[3] == "own_code.model"


def test_a_model_beside_the_policy_is_found_from_another_folder(
    project: Project, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert project.check().holds


def test_a_price_for_a_policy_that_has_none_is_refused(project: Project) -> None:
    with pytest.raises(OptionError, match=r"was found with --goal faster\. Leave it out"):
        advisor.check(project.policy, price=2.0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere.yaml",), "nowhere.yaml"),
        (("policy.yaml", "nowhere.py"), "there is no file nowhere.py"),
        (("policy.yaml", "--device", "tpu"), "a device must be"),
        (("policy.yaml", "--memory-limit", "much"), "--memory-limit must be"),
        (("policy.yaml", "--global-batch", "0"), "--global-batch must be"),
        (("policy.yaml", "--summary", "no/such/folder.md"), "--summary must be a file in an existing folder"),
        (("policy.yaml", "--fast"), "--fast"),
        ((), "policy"),
    ],
)
def test_a_mistake_on_the_command_line_has_status_two(arguments: tuple[str, ...], words: str, project: Project) -> None:
    result = run_here("check", *arguments, cwd=project.folder)
    assert result.returncode == 2
    assert result.stderr.startswith("momadvise: error: ")
    assert words in result.stderr.lower()


# ---- figures measured again


def side_by_side(peak: float, speedup: tuple[float, float, float] | None) -> Any:
    """Runs that end with this peak, relative to the one stated, and this speedup."""

    def run(runs: PolicyRuns, plain_batch: int) -> SideBySide:
        assert runs.file.evidence is not None
        found = measurement(10.0, peak=int(peak * runs.file.evidence.peak_bytes))
        times = None if speedup is None else Speedup(value=speedup[0], low=speedup[1], high=speedup[2], rounds=4)
        wrapper = ConfirmResult(key="k", outcome=Outcome.OK, measurement=found, speedup=times)
        return SideBySide(wrapper, measurement(5.0), Policy(micro_batch=3))

    return run


@pytest.mark.parametrize(
    ("peak", "speedup", "status", "line"),
    [
        (1.05, (1.6, 1.5, 1.7), 0, ""),
        (1.0, None, 0, "note: the speed was not compared: both do not fit at once"),
        (1.2, (1.6, 1.5, 1.7), 4, "peak memory: 1.00 MiB -> 1.20 MiB"),
        (0.8, (1.6, 1.5, 1.7), 4, "peak memory: 1.00 MiB -> 819 KiB"),
        (1.0, (1.2, 1.1, 1.3), 4, "speed beside plain training: "),
        (1.0, (2.2, 2.1, 2.3), 4, "speed beside plain training: "),
    ],
)
def test_figures_that_moved_have_a_status_of_their_own(
    peak: float,
    speedup: tuple[float, float, float] | None,
    status: int,
    line: str,
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    project.restate(
        "evidence", peak_bytes=2**20, confirmed_peak_bytes=None, speedup_over_baseline=(1.5, 1.4, 1.6), baseline_batch=3
    )
    monkeypatch.setattr(PolicyRuns, "beside_baseline", side_by_side(peak, speedup))
    found, lines, _ = printed(project, "--remeasure")
    assert found == status
    assert [one for one in lines[1:] if one.startswith(line)] == lines[1:]
    assert bool(lines[1:]) == bool(line)


def test_of_a_model_that_was_made_larger_only_the_peak_is_compared(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.restate(
        "evidence",
        goal="bigger",
        peak_bytes=2**20,
        confirmed_peak_bytes=None,
        speedup_over_baseline=None,
        baseline_samples_per_second=1000.0,
        floor_samples_per_second=500.0,
    )
    monkeypatch.setattr(PolicyRuns, "beside_baseline", side_by_side(1.0, (1.6, 1.5, 1.7)))
    assert printed(project, "--remeasure")[:2] == (0, ["The policy holds, and the wrapper does what it promises."])


def test_batches_are_made_as_in_the_search(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trap: a trial that finds where samples are does not look whether batches differ in size."""
    seen: list[Any] = []

    def run(runs: PolicyRuns, plain_batch: int) -> SideBySide:
        seen.append(runs.layout)
        return side_by_side(1.0, None)(runs, plain_batch)

    project.edit("model.py", "torch.randn(batch_size, DIM)", "torch.randn(batch_size, 1 + torch.randint(9, ()), DIM)")
    project.restate("fingerprints.workload", fingerprint=resolve_source(project.folder / "model.py").fingerprint)
    project.restate("fingerprints.identity", model=None)
    monkeypatch.setattr(PolicyRuns, "beside_baseline", run)
    assert printed(project, "--remeasure")[0] in (0, 4)
    assert seen[0].sizes is not None


def test_a_wrapper_that_no_longer_runs_moved_too(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(runs: PolicyRuns, plain_batch: int) -> SideBySide:
        result = ConfirmResult(key="k", outcome=Outcome.OUT_OF_MEMORY, reason="it needs more")
        return SideBySide(result, None, Policy(micro_batch=3))

    monkeypatch.setattr(PolicyRuns, "beside_baseline", fails)
    status, lines, _ = printed(project, "--remeasure")
    assert status == 4
    assert "the wrapper's run: ok -> out of memory: it needs more" in lines


def test_a_stale_policy_is_not_measured(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    def runs(*arguments: object) -> SideBySide:
        raise AssertionError

    monkeypatch.setattr(PolicyRuns, "beside_baseline", runs)
    project.edit("parts.py", "relu", "tanh")
    assert printed(project, "--remeasure")[0] == 3


def test_the_wrapper_is_really_run(measured: advisor.Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, measured.policy_path)
    project.restate("evidence", speedup_over_baseline=(0.5, 0.0001, 1000.0))
    found = advisor.check(project.policy, project.folder / "model.py", remeasure=True)
    assert (found.status, found.remeasured) == (PolicyStatus.HOLDS, True), found.words
    assert {path.name for path in tmp_path.iterdir()} <= {
        "model.py",
        "parts.py",
        "cfg.json",
        "policy.yaml",
        "__pycache__",
    }


def test_of_several_devices_the_wrapper_is_measured_between_two_runs_of_the_baseline(
    measured: advisor.Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = Project(tmp_path, measured.policy_path)
    project.restate("policy", methods=(use("ddp", bucket_views=True, static_graph=False),), gpu_count=2)
    project.restate("evidence", speedup_over_baseline=(0.5, 0.0001, 1000.0))
    found = advisor.check(project.policy, project.folder / "model.py", remeasure=True)
    assert found.remeasured, found.words
    assert "the speed was not compared" not in " ".join(found.notes)
    assert {one.subject for one in found.differences} <= {"peak memory"}


@pytest.mark.parametrize(
    ("before", "after", "value", "width"),
    [(10.0, 10.0, 2.0, 0.1), (16.0, 9.0, 20 / 12, 0.2877), (9.0, 16.0, 20 / 12, 0.2877)],
)
def test_what_the_baseline_changed_meanwhile_widens_the_interval(
    before: float, after: float, value: float, width: float
) -> None:
    found = speedup_beside_both(
        measurement(20.0, spread=0.0), measurement(before, spread=0.0), measurement(after, spread=0.0)
    )
    assert found.value == pytest.approx(value)
    assert [found.low, found.high] == pytest.approx([value * math.exp(-width), value * math.exp(width)], rel=1e-3)
