"""The main job: one command measures, decides, and hands back a policy that works."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from advisor.policy.file import load_policy_file
from advisor.report.page.finished import read_finished
from advisor.report.page.page_text import is_page
from advisor.report.page.study_part import study_part
from tests.session.command import run_here, start_command
from tests.session.processes import descendants, wait_until_gone

TINY = Path(__file__).parent / "workloads" / "tiny.py"

pytestmark = pytest.mark.slow


# A low memory limit keeps the batches, and so the steps, small; the trials end the search, not the clock.
QUICK = ("--memory-limit", "6MiB", "--time-limit", "90s")
# Many methods, and none whose library takes seconds to import.
EXACT = ("--search-space", "exact", *QUICK)


def tune(out: Path, *options: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return run_here(
        "--goal", "faster", TINY, "--search-space", "smoke", "--trials", "3", *QUICK, "--output", out, *options,
        cwd=cwd,
    )  # fmt: skip


def measured(out: Path) -> int:
    """Policies that the parent has written down as measured."""
    try:
        return (out / "ledger.jsonl").read_text().count('"outcome":"ok"')
    except FileNotFoundError:
        return 0


def tried_before(out: Path) -> tuple[int, set[str]]:
    """How many lines the ledger has, compared ones included, and the policies that have figures."""
    lines = [json.loads(line) for line in (out / "ledger.jsonl").read_text().splitlines()]
    return len(lines), {json.dumps(line["policy"]) for line in lines if line["outcome"] == "ok"}


def wait_for_measurements(out: Path, count: int, command: subprocess.Popen[str]) -> list[psutil.Process]:
    """Wait until some policies are measured and a trial is under way; the processes below the command."""
    deadline = time.monotonic() + 200
    while True:
        below = descendants(command.pid)
        if measured(out) >= count and below:
            return below
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < deadline, "the search measured nothing"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """One finished tuning, looked at by several tests."""
    folder = tmp_path_factory.mktemp("tuned")
    return folder / "out", tune(folder / "out", "--json", cwd=folder)


def test_it_writes_a_policy_with_its_evidence(tuned: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    out, result = tuned
    assert result.returncode == 0, result.stderr
    file = load_policy_file(out / "policy.yaml")
    assert file.evidence is not None
    assert file.fingerprints is not None
    assert file.evidence.samples_per_second > 0
    assert file.evidence.baseline_batch == 4
    assert file.evidence.confirmed_samples_per_second is not None
    assert file.fingerprints.versions["torch"].startswith("2.")
    assert file.fingerprints.workload["name"] == "tiny"


def test_with_json_stdout_is_one_document_and_nothing_else(
    tuned: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    _, result = tuned
    document = json.loads(result.stdout)
    assert document["schema"] == 1
    assert document["recommendation"]["confirmation"]["outcome"] == "ok"
    assert document["recommendation"]["baseline"]["policy"]["micro_batch"] == 4
    assert Path(document["files"]["wrapper"]).exists()


def test_the_report_lies_beside_the_policy_with_the_memory_over_a_step(
    tuned: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, result = tuned
    assert json.loads(result.stdout)["files"]["report"] == str(out / "report.html")
    assert is_page(out / "report.html")
    study = study_part(read_finished(out), "s0")
    assert study.answer.baseline in {one.policy for one in study.memory_over_step}
    assert all(one.ended_at_seconds is not None for one in study.course)
    for one in study.memory_over_step:
        assert {"parameters", "gradients", "activations"} <= one.bytes.keys()
        assert len({len(values) for values in one.bytes.values()}) == 1


def test_the_baseline_is_measured_and_the_winner_is_not_slower(
    tuned: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    recommendation = json.loads(tuned[1].stdout)["recommendation"]
    winner = recommendation["winner"]["measurement"]["samples_per_second"]
    baseline = recommendation["baseline"]["measurement"]["samples_per_second"]
    assert winner >= baseline


def test_the_wrapper_trains_in_a_process_that_knows_nothing_of_the_search(
    tuned: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, _ = tuned
    script = (
        "import sys; sys.path.insert(0, sys.argv[1]); sys.path.insert(0, sys.argv[2])\n"
        "import tiny; from wrapper import POLICY, prepare\n"
        "training = prepare(tiny.build_model())\n"
        "losses = [training.step(tiny.make_batch(POLICY.global_batch)).item() for _ in range(3)]\n"
        "assert losses[2] < losses[0], losses\n"
        "tiny.build_model().load_state_dict(training.state_dict()['model'])\n"
        "print('trained')\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(out), str(TINY.parent)], capture_output=True, text=True, check=False
    )
    assert result.stdout == "trained\n", result.stderr


def test_the_same_command_again_answers_from_what_was_measured(
    tuned: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    out, first = tuned
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    again = tune(out, "--json", cwd=out.parent)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["winner"] == json.loads(first.stdout)["winner"]
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json")} == before


def test_the_study_opens_in_optuna_and_its_first_trial_is_plain_training(
    tuned: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    import optuna

    out, _ = tuned
    study = optuna.load_study(study_name="momadvise", storage=f"sqlite:///{out / 'study.db'}")
    assert study.trials[0].user_attrs["policy"] == "plain"
    assert study.best_value > 0


def test_a_search_that_was_killed_goes_on_without_repeating_a_finished_trial(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = start_command(TINY, *EXACT, "--output", out, cwd=tmp_path)
    try:
        below = wait_for_measurements(out, 2, command)
    finally:
        command.send_signal(signal.SIGKILL)
        command.communicate()
    assert wait_until_gone(below) == [], "no process may outlive the parent"

    finished = {path: path.stat().st_mtime_ns for path in out.glob("trials/*/result.json")}
    assert len(finished) >= 4, "the probe, a sizing and two timings"
    tried, measured_policies = tried_before(out)
    again = run_here(TINY, *EXACT, "--output", out, "--trials", str(tried + 1), "--json", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    for path, written in finished.items():
        assert path.stat().st_mtime_ns == written, f"{path} was run again"
    ranking = json.loads(again.stdout)["recommendation"]["ranking"]
    assert tried_before(out)[0] > tried, "it goes on"
    assert measured_policies <= {json.dumps(candidate["policy"]) for candidate in ranking}, "nothing finished is lost"
    assert all(candidate["loss_drift"] is not None for candidate in ranking), "the loss guard works after a resume"
    assert (out / "policy.yaml").exists()


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_search_leaves_a_policy_from_what_was_measured_and_no_process(
    tmp_path: Path, ending: signal.Signals
) -> None:
    out = tmp_path / "out"
    command = start_command(TINY, *EXACT, "--output", out, "--json", cwd=tmp_path)
    try:
        below = wait_for_measurements(out, 1, command)
        command.send_signal(ending)
        stdout, stderr = command.communicate(timeout=120)
    finally:
        if command.poll() is None:
            command.kill()
            command.communicate()
    assert command.returncode == 130, stderr
    assert wait_until_gone(below) == []
    assert json.loads(stdout)["recommendation"]["confirmation"]["outcome"] == "interrupted"
    assert load_policy_file(out / "policy.yaml").policy.micro_batch >= 1
    assert not study_part(read_finished(out), "s0").complete
    assert is_page(out / "report.html")
    assert "Traceback" not in stderr
    assert "interrupted: the answer comes from what was measured so far" in stderr
    assert "\x1b[" not in stderr + stdout, "there is no colour in a pipe"


def test_an_interruption_while_the_winner_is_confirmed_keeps_the_policy(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = start_command(
        TINY, "--search-space", "smoke", "--trials", "1", *QUICK, "--output", out, cwd=tmp_path
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 200
        while not list(out.glob("trials/confirm-*")):
            assert command.poll() is None, command.communicate()
            assert time.monotonic() < deadline, "nothing was confirmed"
            time.sleep(0.02)
        below = descendants(command.pid)
        command.send_signal(signal.SIGINT)
        _, stderr = command.communicate(timeout=120)
    finally:
        if command.poll() is None:
            command.kill()
            command.communicate()
    assert command.returncode == 130, stderr
    assert wait_until_gone(below) == []
    assert "Traceback" not in stderr
    assert load_policy_file(out / "policy.yaml").policy.micro_batch >= 1
    assert (out / "wrapper.py").exists()


def test_an_interruption_before_anything_was_measured_ends_at_once_without_a_traceback(tmp_path: Path) -> None:
    command = start_command(TINY, "--output", tmp_path / "out", cwd=tmp_path)
    below: list[psutil.Process] = []
    deadline = time.monotonic() + 120
    while not below:
        assert time.monotonic() < deadline, "no worker was started"
        below = descendants(command.pid)
        time.sleep(0.1)
    command.send_signal(signal.SIGINT)
    _, stderr = command.communicate(timeout=60)
    assert command.returncode == 130
    assert "Traceback" not in stderr
    assert wait_until_gone(below) == []
