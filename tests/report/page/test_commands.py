"""Every policy of a page has what measures exactly it: a command, or a program where functions were tuned."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import yaml

from advisor.command_line import tune_parser, verify_parser
from advisor.decide.candidate import Candidate, Recommendation
from advisor.goal import Price
from advisor.policy.file import load_policy_file, policy_from
from advisor.report.page.document import PageStudy
from advisor.report.page.finished import read_finished
from advisor.report.page.study_part import study_part
from advisor.trial.outcome import Outcome
from advisor.trial.spec import TimeTrial
from advisor.workload.workload import WorkloadKind, WorkloadSource
from tests.decide.examples import goal, policy
from tests.decide.test_largest import HALF, ON_TWO, chosen
from tests.report import test_growth
from tests.report.cost_scenario import cost_goal, cost_recommendation
from tests.report.page.folders import faster_study, stored_trial, write_study
from tests.report.page.test_study_part import named, text
from tests.report.scenario import CANDIDATES, recommendation

CHECK = "is the policy still right here?"


@pytest.fixture
def page(tmp_path: Path) -> PageStudy:
    return study_part(read_finished(faster_study(tmp_path / "study")), "s0")


def test_commands_can_be_pasted_whatever_the_model_is_called(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "a study", recommendation(), goal(), model="my $(rm -rf) model.py")
    found = study_part(read_finished(folder), "s0")
    assert found.command == "momadvise --goal faster 'my $(rm -rf) model.py' --batch 8"
    assert named(found, roles=("winner",)).command.endswith("--methods chunked_cross_entropy,precision")
    assert f"'{tmp_path}/a study'" in found.answer.commands["this page again"]
    assert shlex.split(named(found, roles=("winner",)).verify_command)[-1] == "my $(rm -rf) model.py"


def test_a_command_finds_the_model_from_whichever_folder_the_page_is_made_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "gpt2.py").write_text("")
    source = WorkloadSource(
        kind=WorkloadKind.FILE, location=str(tmp_path / "models" / "gpt2.py"), name="gpt2", fingerprint="f"
    )
    spec, result = stored_trial(TimeTrial, policy(), ended_at=4.0, measurement=CANDIDATES[0].measurement)
    trials = [(msgspec.structs.replace(spec, workload=source), result)]
    folder = write_study(tmp_path / "study", recommendation(), goal(), trials=trials)
    for here, model in ((tmp_path, "models/gpt2.py"), (tmp_path / "study", source.location)):
        monkeypatch.chdir(here)
        found = study_part(read_finished(folder), "s0")
        commands = (found.command, *(one.verify_command for one in found.policies), found.answer.commands[CHECK])
        assert all(f" {model}" in one for one in commands)
    (tmp_path / "models" / "gpt2.py").unlink()
    assert study_part(read_finished(folder), "s0").command.startswith("momadvise --goal faster gpt2.py ")


def test_a_command_measures_exactly_one_policy_beside_the_baseline_without_a_file(
    page: PageStudy, tmp_path: Path
) -> None:
    found, passed = recommendation(), tmp_path / "stdin"
    assert found.baseline is not None
    tried = [one.policy for one in (*found.ranking, *found.not_measured)]
    commands = [shlex.split(one.verify_command) for one in page.policies]
    assert len(commands) == len(tried)
    for program, pattern, content, pipe, *command in commands:
        assert (program, pattern, pipe, *command[:2]) == ("printf", "%s", "|", "momadvise", "verify")
        assert verify_parser().checked(command[2:]).policy == "/dev/stdin"
        passed.write_text(content)
        file = load_policy_file(passed)
        assert file.policy in tried
        assert file.baseline == (None if file.policy == found.baseline.policy else found.baseline.policy)


def test_a_policy_of_several_devices_is_the_only_trial_of_a_search_on_them(tmp_path: Path) -> None:
    part = study_part(read_finished(write_study(tmp_path / "study", cost_recommendation(), cost_goal())), "s0")
    several = [one for one in part.policies if one.gpu_count > 1]
    assert several
    for one in several:
        _, _, content, _, program, *command = shlex.split(one.verify_command)
        asked = tune_parser().checked(command)
        assert (program, asked.baseline, asked.gpus, asked.trials) == ("momadvise", "/dev/stdin", str(one.gpu_count), 1)
        assert f"gpu_count: {one.gpu_count}}}" in content


def test_without_a_model_there_is_no_command_that_needs_one(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "study", recommendation(), goal(), model="")
    assert set(study_part(read_finished(folder), "s0").answer.commands) == {
        "as the settings of a trainer",
        "this page again",
    }


def test_every_policy_at_another_size_of_the_model_has_a_command_that_says_the_size(tmp_path: Path) -> None:
    for number, found in enumerate((test_growth.answer(), chosen(ON_TWO))):
        part = study_part(read_finished(write_study(tmp_path / str(number), found, HALF)), "s0")
        for one in part.policies:
            said = yaml.safe_load(shlex.split(one.verify_command)[2])
            measured = said.get("evidence", {})
            assert (measured.get("model_size") or said.get("model_size", {})) == one.model_size
            assert bool(measured) == bool(one.model_size and one.samples_per_second), "nothing else was measured"


def test_a_refused_policy_has_its_wrapper_and_its_commands_as_well(tmp_path: Path) -> None:
    ran = CANDIDATES[1]
    refused = Candidate(policy=ran.policy, role=ran.role, outcome=Outcome.REFUSED, reason="no", fidelity=ran.fidelity)
    found = msgspec.structs.replace(recommendation(), not_measured=(refused,))
    part = study_part(read_finished(write_study(tmp_path / "study", found, goal())), "s0")
    one = named(part, outcome="refused")
    assert one.command
    assert one.verify_command
    compile(text(part, one.wrapper), "wrapper.py", "exec")


def test_the_command_of_a_study_says_its_floor_prices_methods_space_and_device(tmp_path: Path) -> None:
    bigger = study_part(
        read_finished(asked(tmp_path / "b", test_growth.answer(), HALF, min_share_of_baseline=0.5)), "s0"
    )
    assert bigger.command == "momadvise --goal bigger gpt2.py --min-throughput 0.5x"
    assert all("--min-throughput 0.5x" in one.command for one in bigger.policies if one.command)
    priced = msgspec.structs.replace(cost_goal(), price=Price(usd_per_hour=2.5, source="--price", date="as given"))
    folder = asked(tmp_path / "c", cost_recommendation(), priced, gpus="1")
    marker = json.loads((folder / "study.json").read_text())
    options = {"--device": "cpu", "--methods": "precision,ddp", "--search-space": "all"}
    (folder / "study.json").write_text(json.dumps({**marker, "options": options}))
    cheapest = study_part(read_finished(folder), "s0")
    again = tune_parser().checked(shlex.split(cheapest.command)[1:])
    assert (again.goal, again.gpus, again.price, again.device) == ("cheapest", "1", 2.5, "cpu")
    assert (again.methods, again.search_space) == ("precision,ddp", "all")
    assert all("--device cpu" in one.verify_command for one in cheapest.policies)


def test_settings_of_the_users_own_are_passed_to_the_command_of_their_study(tmp_path: Path) -> None:
    own = msgspec.structs.replace(goal(), own_settings="axolotl.yaml")
    part = study_part(read_finished(write_study(tmp_path / "study", recommendation(), own)), "s0")
    _, _, passed, _, program, *command = shlex.split(part.command)
    (tmp_path / "stdin").write_text(passed)
    baseline = recommendation().baseline
    assert baseline is not None
    assert load_policy_file(tmp_path / "stdin").policy == baseline.policy
    assert (program, tune_parser().checked(command).baseline) == ("momadvise", "/dev/stdin")


def test_a_winner_on_several_devices_is_measured_again_by_a_check_as_no_plain_loop_has_them(tmp_path: Path) -> None:
    found = cost_recommendation()
    several = next(one for one in found.ranking if one.policy.gpu_count > 1)
    found = msgspec.structs.replace(found, winner=several)
    part = study_part(read_finished(write_study(tmp_path / "study", found, cost_goal())), "s0")
    promise = shlex.split(part.answer.commands["does it keep its promise?"])
    assert promise[:2] == ["momadvise", "check"]
    assert promise[-1] == "--remeasure"


FUNCTIONS = WorkloadSource(
    kind=WorkloadKind.FUNCTIONS,
    location="",
    functions={"build_model": "/elsewhere/my-train.py:build", "make_batch": "data.make:batches"},
    import_paths=("/elsewhere", "/libraries"),
    name="build",
    fingerprint="f",
)


def of_functions(folder: Path, found: Recommendation, aim: Any) -> PageStudy:
    spec, result = stored_trial(TimeTrial, policy(), ended_at=1.0)
    trials = [(msgspec.structs.replace(spec, workload=FUNCTIONS), result)]
    return study_part(read_finished(write_study(folder, found, aim, trials=trials, model="")), "s0")


def called(program: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """What a program calls of the library, where its modules are stand-ins."""
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    class Module:
        make = SimpleNamespace(batches="data.make.batches")
        build = "build"

        def __getattr__(self, name: str) -> Any:
            return lambda *given, **keywords: calls.append((name, given, keywords)) or self

    program = program.replace("import advisor\n", "").replace("import data.make\n", "")
    names = {"advisor": Module(), "data": Module(), "print": lambda words: None}
    monkeypatch.setattr("importlib.import_module", lambda name: Module())
    monkeypatch.setattr("sys.path", [])
    exec(compile(program, "program.py", "exec"), names)
    [one] = calls
    return one


def test_functions_have_programs_that_measure_exactly_each_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (found, aim) in enumerate(((recommendation(), goal()), (test_growth.answer(), HALF))):
        part = of_functions(tmp_path / str(number), found, aim)
        tried = {(one.policy.key, tuple(one.model_size.items())) for one in (*found.ranking, *found.not_measured)}
        for one in part.policies:
            assert (one.command, one.verify_command) == ("", "")
            name, _, passed = called(text(part, one.verify_call), monkeypatch)
            assert (name, passed["trials"], passed["gpus"]) == ("tune", 1, one.gpu_count)
            assert (passed["build_model"], passed["make_batch"]) == ("build", "data.make.batches")
            file = policy_from(passed["baseline"], "the program")
            assert (file.policy.key, tuple(file.size.items())) in tried
            if one.call:
                name, _, passed = called(text(part, one.call), monkeypatch)
                assert (name, passed["goal"]) == ("tune", aim.kind.value)
                assert passed["methods"].split(",") == [method.split()[0] for method in one.methods]


def test_functions_whose_names_are_no_python_have_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, hostile in enumerate(("train:build\nimport os", "train:build()", "/a\x1b[2J.py:build")):
        named = msgspec.structs.replace(FUNCTIONS, functions={**FUNCTIONS.functions, "build_model": hostile})
        monkeypatch.setattr("tests.report.page.test_commands.FUNCTIONS", named)
        part = of_functions(tmp_path / str(number), recommendation(), goal())
        assert {one.verify_call for one in part.policies} == {()}


def test_functions_have_programs_that_ask_for_the_study_and_check_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = of_functions(tmp_path / "study", recommendation(), goal())
    assert part.command == ""
    assert called(text(part, part.call), monkeypatch)[2]["batch"] == 8
    assert set(part.answer.commands) == {"as the settings of a trainer", "this page again"}
    for label, again in (("is the policy still right here?", None), ("does it keep its promise?", True)):
        name, given, passed = called(text(part, part.answer.calls[label]), monkeypatch)
        assert (name, given) == ("check", (str(tmp_path / "study" / "policy.yaml"),))
        assert passed.get("remeasure") == again


def asked(path: Path, found: Recommendation, aim: Any, **values: Any) -> Path:
    """A study for which that was asked."""
    folder = write_study(path, found, aim)
    marker = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps({**marker, "asked": {"goal": aim.kind.value, **values}}))
    return folder
