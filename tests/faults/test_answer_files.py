"""Answer, policy and wrapper say the same at every moment; what somebody edited is theirs, and is not lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.decide.answer import load_answer
from advisor.policy.file import load_policy_file
from advisor.report.page import wrapper_of
from advisor.session.answer import conclude, emit
from advisor.trial.folder import StudyFolder
from advisor.trial.process.runner import Runner
from advisor.trial.result import TrialResult
from advisor.trial.spec import LookTrial, TimeTrial, Trial, TrialSpec
from tests.session.command import run_here

TINY = Path(__file__).parents[1] / "session" / "workloads" / "tiny.py"
FILES = ("policy.yaml", "wrapper.py")
MINE = "# mine\n"

pytestmark = pytest.mark.slow


class KilledError(BaseException):
    """As if the process ended here."""


def command(out: Path, trials: int = 1) -> tuple[int, dict[str, Any], str]:
    """Exit status, answer and what was said of a short search."""
    quick = ("--search-space", "smoke", "--time-limit", "60s", "--memory-limit", "6MiB", "--device", "cpu", "--json")
    result = run_here(TINY, *quick, "--trials", str(trials), "--output", out, cwd=out.parent)
    return result.returncode, json.loads(result.stdout or "{}"), result.stderr


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with its answer."""
    out = tmp_path_factory.mktemp("answer") / "out"
    status, _, stderr = command(out)
    assert status == 0, stderr
    return out


@pytest.fixture
def out(measured: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    shutil.copytree(measured, tmp_path / "out")
    return tmp_path / "out"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[type[Trial[Any]]]:
    """The kinds of trials that were run, not read back."""
    kinds: list[type[Trial[Any]]] = []
    wait = Runner._wait

    def waited(runner: Runner, spec: TrialSpec, *more: Any) -> tuple[TrialResult, bool]:
        kinds.append(type(spec))
        return wait(runner, spec, *more)

    monkeypatch.setattr(Runner, "_wait", waited)
    return kinds


def contents(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in (*FILES, "answer.json")}


def agree(out: Path) -> None:
    """The answer's policy is that of the policy file and of the wrapper, and its digests are theirs."""
    answer = load_answer(StudyFolder(out))
    assert answer is not None
    assert load_policy_file(out / "policy.yaml").policy == answer.policy
    names: dict[str, Any] = {}
    exec((out / "wrapper.py").read_text(), names)
    assert names["POLICY"] == answer.policy
    assert answer.digests == {name: emit._digest((out / name).read_bytes()) for name in FILES}


def test_the_files_of_an_answer_belong_to_it(out: Path, ran: list[type[Trial[Any]]]) -> None:
    agree(out)
    before = contents(out)
    status, answer, _ = command(out)
    assert status == 0
    assert ran == [LookTrial], "whether the model is what it was"
    assert not any("written again" in note or "edited" in note for note in answer["notes"])
    assert contents(out) == before


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(("left", "said"), [(None, "gone"), (0, "cut short"), (700, "cut short")])
def test_a_file_that_is_gone_or_cut_is_written_again_and_nothing_is_measured(
    out: Path, ran: list[type[Trial[Any]]], name: str, left: int | None, said: str
) -> None:
    before = contents(out)
    (out / name).unlink()
    if left is not None:
        (out / name).write_bytes(before[name][:left])
    status, answer, _ = command(out)
    assert status == 0
    assert ran == [LookTrial]
    assert f"{name} was {said}: it is written again as it was" in answer["notes"]
    assert contents(out) == before


def test_a_file_that_somebody_edited_stays_and_that_is_said(out: Path, ran: list[type[Trial[Any]]]) -> None:
    edited = (out / "wrapper.py").read_text() + MINE
    (out / "wrapper.py").write_text(edited)
    status, answer, _ = command(out)
    assert status == 0
    assert ran == [LookTrial]
    assert any("wrapper.py was edited since, and is left as it is" in note for note in answer["notes"])
    assert (out / "wrapper.py").read_text() == edited
    (out / "wrapper.py").rename(out / "my_wrapper.py")
    assert command(out)[0] == 0
    agree(out)


def test_another_answer_takes_no_edited_files_place(out: Path) -> None:
    before = contents(out)
    for name in FILES:
        (out / name).write_bytes(before[name] + MINE.encode())
    (out / "wrapper.edited.py").write_text("an earlier one")
    status, answer, stderr = command(out, trials=3)
    assert status == 0, stderr
    agree(out)
    assert (out / "wrapper.edited.py").read_text() == "an earlier one"
    assert (out / "wrapper.edited-2.py").read_bytes() == before["wrapper.py"] + MINE.encode()
    assert (out / "policy.edited.yaml").read_bytes() == before["policy.yaml"] + MINE.encode()
    assert any("wrapper.py had been edited: it is kept as wrapper.edited-2.py" in note for note in answer["notes"])
    assert len(list(out.glob("*edited*"))) == 3, "what this run itself has written first is nobody's edit"


@pytest.fixture
def something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The stored answer is not enough, and what is concluded from the same trials reads differently in both files."""
    measured = wrapper_of._measured_words
    monkeypatch.setattr("advisor.session.tune._searched_enough", lambda *_: False)
    monkeypatch.setattr(wrapper_of, "_measured_words", lambda candidate: f"once more, {measured(candidate)}")
    choose_as_usual = conclude.Conclusion.choose

    def choose(self: conclude.Conclusion, candidates: Any) -> Any:
        chosen = choose_as_usual(self, candidates)
        return msgspec.structs.replace(chosen, tie=not chosen.tie)

    monkeypatch.setattr(conclude.Conclusion, "choose", choose)
    return monkeypatch


@pytest.mark.parametrize("moment", ["before the wrapper", "between the files", "while it is confirmed", "at the end"])
def test_after_a_kill_no_answer_stands_beside_other_files(
    out: Path, something_else_is_found: pytest.MonkeyPatch, moment: str
) -> None:
    """A later search is killed while it concludes; then the first command is given again."""
    _kill(something_else_is_found, moment)
    with pytest.raises(KilledError):
        command(out)
    something_else_is_found.undo()
    assert load_answer(StudyFolder(out)) is None or moment == "before the wrapper"
    status, _, stderr = command(out)
    assert status == 0, stderr
    agree(out)
    assert not list(out.glob("*edited*")), "nobody has edited anything"


def _kill(patch: pytest.MonkeyPatch, moment: str) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KilledError

    if moment == "before the wrapper":
        patch.setattr("advisor.session.answer.confirm.emit", killed)
    elif moment == "between the files":
        write = emit._write

        def first(folder: StudyFolder, path: Path, text: str) -> None:
            write(folder, path, text)
            raise KilledError

        patch.setattr(emit, "_write", first)
    elif moment == "while it is confirmed":
        patch.setattr("advisor.session.trials.trials.Trials.confirm", killed)
    else:
        patch.setattr("advisor.session.tuning.store_answer", killed)


def test_what_is_not_confirmed_leaves_no_answer_and_an_edited_file(tmp_path: Path) -> None:
    folder = StudyFolder(tmp_path)
    for path in (folder.answer, folder.policy, folder.wrapper):
        path.write_text("")
    emit._write(folder, folder.policy, "ours")
    folder.wrapper.write_text(MINE)
    emit.take_back(folder)
    assert {path.name for path in tmp_path.iterdir()} == {"wrapper.py", "emitted.json"}


def test_the_answer_is_withdrawn_before_the_first_of_other_files_is_written(
    out: Path, something_else_is_found: pytest.MonkeyPatch
) -> None:
    before = contents(out)
    stood: list[bool] = []
    write = emit.write_whole

    def noted(path: Path, content: bytes | str) -> None:
        stood.append((out / "answer.json").exists())
        write(path, content)

    something_else_is_found.setattr(emit, "write_whole", noted)
    assert command(out)[0] == 0
    assert stood
    assert not any(stood)
    now = contents(out)
    assert all(now[name] != before[name] for name in FILES)
    agree(out)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_cannot_be_read_any_more_is_kept_beside_the_one_that_is_written_again(
    out: Path, ran: list[type[Trial[Any]]], name: str
) -> None:
    before = contents(out)
    damaged = before[name].replace(b"methods", b"met[ods:", 1)
    assert damaged != before[name]
    (out / name).write_bytes(damaged)
    status, answer, _ = command(out)
    assert status == 0
    assert ran == [LookTrial]
    kept = Path(name).with_stem(f"{Path(name).stem}.edited").name
    assert any(f"{name} could not be read any more: it is kept as {kept}" in note for note in answer["notes"])
    assert (out / kept).read_bytes() == damaged
    assert contents(out) == before


@pytest.mark.parametrize("damage", ["cut", "overwritten"])
def test_a_damaged_database_is_kept_aside_and_made_anew_from_what_was_measured(
    out: Path, ran: list[type[Trial[Any]]], damage: str
) -> None:
    database = (out / "study.db").read_bytes()
    damaged = database[: len(database) // 2] if damage == "cut" else b"no database" * 1000
    (out / "study.db").write_bytes(damaged)
    (out / "answer.json").unlink()
    status, answer, stderr = command(out)
    assert status == 0, stderr
    assert any("study.db was damaged: it is kept as study.damaged.db" in note for note in answer["notes"])
    assert (out / "study.damaged.db").read_bytes() == damaged
    assert TimeTrial not in ran, "what was measured is in the ledger"
    agree(out)
