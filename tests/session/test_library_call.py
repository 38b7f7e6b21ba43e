"""The library call inside a training bootstrap: found again by name, not measured again when nothing has changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

import advisor
from advisor.errors import OptionError, WorkloadError
from advisor.report.progress import Progress
from advisor.session.study import StudyMarker
from advisor.trial.process.runner import Runner
from advisor.trial.result import TrialResult
from advisor.trial.spec import LookTrial, Trial, TrialSpec
from tests.session.workloads import tiny

TINY = Path(tiny.__file__)
SHORT: dict[str, Any] = {"search_space": "smoke", "trials": 1, "time_limit": 60}
GIB = 2**30


class Recording(Progress):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


class StoppedError(Exception):
    """Raised by a test before the first trial."""


class StoppingBeforeTrials(Recording):
    def stage(self, text: str) -> None:
        raise StoppedError


def run_script(path: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        cwd=path.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> advisor.Answer:
    """One answer from functions, looked at by several tests."""
    return advisor.tune(
        build_model=tiny.build_model,
        make_batch=tiny.make_batch,
        output=tmp_path_factory.mktemp("library") / "out",
        **SHORT,
    )


@pytest.mark.slow
def test_functions_that_can_be_imported_are_tuned_and_the_answer_trains(tuned: advisor.Answer) -> None:
    assert tuned.complete
    assert not tuned.cached
    assert tuned.recommendation.confirmation is not None
    assert tuned.recommendation.confirmation.outcome.value == "ok"
    assert tuned.wrapper_path.exists()
    training = advisor.apply_policy(tuned, tiny.build_model())
    torch.manual_seed(0)
    batch = tiny.make_batch(2 * tuned.policy.micro_batch)
    if not training.accumulates:
        batch = tiny.make_batch(tuned.policy.micro_batch)
    losses = [float(training.step(batch)) for _ in range(3)]
    assert losses[-1] < losses[0]
    assert advisor.load_policy_file(tuned.policy_path).policy == tuned.policy


@pytest.mark.slow
def test_what_was_measured_ran_under_the_limit_that_the_answer_names(tuned: advisor.Answer) -> None:
    specs = [json.loads(path.read_bytes()) for path in Path(tuned.folder).glob("trials/*/spec.json")]
    measured = [spec for spec in specs if spec["kind"] not in ("probe", "predict")]  # A trace runs nothing.
    assert {spec["kind"] for spec in measured} == {"size", "time", "confirm"}
    assert {spec["memory_limit_bytes"] for spec in measured} == {tuned.goal.memory_limit_bytes}


@pytest.mark.slow
def test_nothing_is_measured_while_nothing_has_changed(tuned: advisor.Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[type[Trial[Any]]] = []
    run = Runner.run

    def noted(self: Runner, spec: TrialSpec, **options: Any) -> TrialResult:
        kinds.append(type(spec))
        return run(self, spec, **options)

    monkeypatch.setattr(Runner, "run", noted)
    again = advisor.tune(build_model=tiny.build_model, make_batch=tiny.make_batch, output=tuned.folder, **SHORT)
    assert again.cached
    assert again.policy == tuned.policy
    assert again.recommendation == tuned.recommendation
    assert kinds == [LookTrial], "whether the model is what it was"


@pytest.mark.slow
def test_another_model_does_not_get_the_answer_of_this_one(tuned: advisor.Answer, tmp_path: Path) -> None:
    edited = tmp_path / "tiny.py"
    edited.write_text(TINY.read_text().replace("range(6)", "range(7)"))
    with pytest.raises(advisor.UserError, match=r"belongs to another study: model: code changed"):
        advisor.tune(edited, output=tuned.folder, **SHORT)


@pytest.mark.slow
def test_an_edited_file_is_tuned_anew_and_the_file_of_before_is_still_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model.py"
    model.write_text(TINY.read_text())
    first = advisor.tune(model, **SHORT)
    model.write_text(TINY.read_text().replace("range(6)", "range(2)"))
    second = advisor.tune("model.py", **SHORT)
    assert not second.cached
    assert second.folder != first.folder
    assert second.facts.block_count == 2
    model.write_text(TINY.read_text())
    again = advisor.tune(model, **SHORT)
    assert again.cached
    assert (again.folder, again.policy) == (first.folder, first.policy)
    assert {Path(first.folder).parent, Path(second.folder).parent} == {tmp_path / "momadvise-runs"}


def nested() -> Any:
    def make_batch(batch_size: int) -> dict[str, torch.Tensor]:
        return tiny.make_batch(batch_size)

    return make_batch


@pytest.mark.parametrize(
    ("make_batch", "expected"),
    [
        (lambda batch_size: tiny.make_batch(batch_size), "but got a lambda"),
        (nested(), "is defined inside another function"),
        (tiny.Model().forward, "is not the object that was passed"),
        (3, "but got 3 of type int"),
        (None, "there is no make_batch"),
    ],
    ids=["lambda", "nested", "bound method", "number", "missing"],
)
def test_a_function_that_cannot_be_found_again_is_refused(make_batch: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=expected):
        advisor.tune(build_model=tiny.build_model, make_batch=make_batch, output=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_and_functions_together_are_refused() -> None:
    with pytest.raises(OptionError, match="Either a model file or functions"):
        advisor.tune(TINY, build_model=tiny.build_model)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"goal": "fastest"}, "goal must be one of 'faster'"),
        ({"fidelity": "perfect"}, "fidelity must be one of 'exact'"),
        ({"memory_limit": "lots"}, "--memory-limit"),
        ({"time_limit": "soon"}, "--time-limit"),
    ],
)
def test_an_option_outside_its_rule_is_refused(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        advisor.tune(TINY, **options)


def test_functions_typed_into_an_interpreter_are_refused_because_there_is_no_file_to_import() -> None:
    program = (
        "import advisor\n"
        "def build_model(): ...\n"
        "def make_batch(batch_size): ...\n"
        "advisor.tune(build_model=build_model, make_batch=make_batch)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "was defined interactively or with python -c: there is no file to import it from" in result.stderr


CALL = (
    "answer = advisor.tune(build_model=build_model, make_batch=make_batch, search_space='smoke', trials=1, "
    "time_limit=60, output='out')\n"
)


@pytest.mark.slow
def test_a_guarded_script_tunes_its_own_functions(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    guarded = f"if __name__ == '__main__':\n    {CALL}    print(answer.facts.block_count, answer.policy.label)\n"
    script.write_text(f"import advisor\n{TINY.read_text()}\n{guarded}")
    result = run_script(script)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("6 ")


@pytest.mark.slow
def test_a_script_without_a_guard_is_told_so_and_starts_no_more_than_one_worker(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    count = "with open('starts', 'a') as file: file.write('started\\n')\n"
    script.write_text(f"import advisor\n{TINY.read_text()}\n{count}{CALL}")
    result = run_script(script)
    assert result.returncode == 1
    assert 'Put the call below if __name__ == "__main__":' in result.stderr
    assert (tmp_path / "starts").read_text().count("started") == 2, "the program itself, and one worker"
    assert len(list((tmp_path / "out" / "trials").iterdir())) == 1


RANK = """
import json, sys
import advisor

try:
    answer = advisor.tune(sys.argv[1], search_space="smoke", trials=1, time_limit=60, output="out")
except advisor.MomadviseError as error:
    print(json.dumps({"error": type(error).__name__, "message": str(error)}))
else:
    print(json.dumps({"cached": answer.cached, "policy": answer.policy.label, "rate":
        answer.recommendation.winner.measurement.samples_per_second}))
"""


def launch(folder: Path, model: Path, ranks: int = 3) -> list[dict[str, Any]]:
    """Start the ranks of one launch together, and give back what each of them printed."""
    (folder / "rank.py").write_text(RANK)
    processes = [
        subprocess.Popen(
            [sys.executable, "rank.py", str(model)],
            cwd=folder,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "MASTER_PORT": "29517"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    printed = []
    for process in processes:
        stdout, stderr = process.communicate(timeout=120)
        assert process.returncode == 0, stderr
        printed.append(json.loads(stdout))
    return printed


@pytest.mark.slow
def test_of_several_ranks_one_tunes_and_all_get_its_answer(tmp_path: Path) -> None:
    answers = launch(tmp_path, TINY)
    assert sorted(answer.pop("cached") for answer in answers) == [False, True, True]
    assert answers[0] == answers[1] == answers[2]
    probes = list(tmp_path.glob("out/trials/probe-*"))
    assert len(probes) == 1


@pytest.mark.slow
def test_of_several_ranks_one_fails_and_the_others_do_not_try_again(tmp_path: Path) -> None:
    model = tmp_path / "broken.py"
    model.write_text(
        "def build_model():\n"
        "    with open('builds', 'a') as file: file.write('built\\n')\n"
        "    raise RuntimeError('no weights')\n"
        "def make_batch(batch_size): return {}\n"
    )
    answers = launch(tmp_path, model)
    assert sorted(answer["error"] for answer in answers) == ["TrialError", "TrialError", "WorkloadError"]
    assert all("no weights" in answer["message"] for answer in answers)
    assert (tmp_path / "builds").read_text() == "built\n"


@pytest.fixture
def held() -> torch.Tensor:
    """300 MiB that this process holds, really written to."""
    return torch.ones(300 * 2**20, dtype=torch.uint8)


def test_what_this_process_holds_is_said_and_comes_off_the_limit(held: torch.Tensor, tmp_path: Path) -> None:
    progress = StoppingBeforeTrials()
    with pytest.raises(StoppedError):
        advisor.tune(TINY, memory_limit=8 * GIB, output=tmp_path / "out", progress=progress, device="cpu", **SHORT)
    (note,) = (note for note in progress.notes if "already holds" in note)
    assert "are left for the trials" in note
    marker = msgspec.json.decode((tmp_path / "out" / "study.json").read_bytes(), type=StudyMarker)
    assert marker.memory_limit_bytes <= 8 * GIB - held.nbytes
    assert f"{marker.memory_limit_bytes / GIB:.2f} GiB are left" in note


def test_a_process_that_holds_the_whole_limit_is_told_so(held: torch.Tensor, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"this process holds .* raise --memory-limit"):
        advisor.tune(TINY, memory_limit="300MiB", output=tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()
