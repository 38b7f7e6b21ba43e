"""The GitHub Action and the GitLab job: their steps are run here as they stand, on a small model.

What they push arrives in a repository of git's own. The service behind it is a stand-in: a command ``gh`` that writes
down how it was called, and a repository that takes GitLab's push options and does nothing with them.
"""

from __future__ import annotations

import http.server
import json
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

import advisor

from .pipelines import Ended, run_action, run_job, write_command
from .projects import Project
from .services import BRANCH, Origin, write_gh

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ACTION = ROOT / "action.yml"
GITLAB = ROOT / "docs" / "ci" / "gitlab-ci.yml"
TUNE = "--search-space smoke --trials 1 --time-limit 60s"

STALE = """\
#!{python}
import json, pathlib, sys
if sys.argv[1] == "check":
    print(json.dumps({{"command": ["momadvise", "--goal", "faster", "my model.py"]}}))
    sys.exit(int(pathlib.Path("status").read_text()))
def text(name, usual):
    path = pathlib.Path(name)
    return path.read_text() if path.is_file() else usual
pathlib.Path("tuned_with").write_text(json.dumps(sys.argv[1:]))
folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
folder.mkdir(exist_ok=True)
for name in ("policy.yaml", "wrapper.py"):
    (folder / name).write_text(text("new_policy", "new"))
pathlib.Path(sys.argv[sys.argv.index("--summary") + 1]).write_text(text("new_table", "a table"))
"""
"""A command in the place of the real one: it ends as the file ``status`` says."""


@pytest.fixture
def project(measured: advisor.Answer, tmp_path: Path) -> Project:
    (tmp_path / "repository").mkdir()
    return Project(tmp_path / "repository", measured.policy_path)


@pytest.fixture
def origin(project: Project) -> Origin:
    """Where the project was pushed to."""
    return Origin(project.folder)


def run(project: Project, stand_in: bool = False, **inputs: str) -> Ended:
    commands = write_gh(project.folder.parent / "commands")
    write_command(commands, STALE) if stand_in else write_command(commands)
    return run_action(ACTION, {name.replace("_", "-"): one for name, one in inputs.items()}, project.folder, commands)


def test_a_stale_policy_is_measured_again_and_proposed_and_then_holds(project: Project, origin: Origin) -> None:
    project.edit("cfg.json", "32", "48")
    before = project.policy.read_text()
    ended = run(project, tune_arguments=TUNE, wrapper="wrapper.py")
    assert ended.status == 0, ended.printed
    assert (ended.outputs["check"], ended.outputs["tune"]) == (
        {"status": "3", "base": "main"},
        {"tuned": "true"},
    )
    assert project.policy.read_text() != before
    assert (project.folder / "wrapper.py").exists()
    assert "model: parameters 2,144 -\\> 3,200" in ended.summary
    assert "| # | policy | batch | samples/s | peak |  |" in ended.summary
    (opened,) = origin.pull_requests
    assert "| # | policy | batch | samples/s | peak |  |" in opened["body"]
    assert opened["body"] in ended.summary
    assert origin.changed() == ["policy.yaml", "wrapper.py"]
    assert origin.text("policy.yaml") == project.policy.read_text().rstrip()

    again = run(project)
    assert (again.status, again.outputs) == (0, {"check": {"status": "0"}})
    assert "The policy holds." in again.summary
    assert len(origin.pull_requests) == 1


def test_a_pull_request_has_the_files_and_the_table_and_leaves_the_checkout_as_it_was(
    project: Project, origin: Origin
) -> None:
    project.edit("cfg.json", "32", "48")
    (project.folder / "status").write_text("3")
    main, index = origin.git("rev-parse", "main"), origin.here("diff", "--cached", "--name-only")
    ended = run(project, stand_in=True, token="of the input")
    assert ended.status == 0, ended.printed
    (opened,) = origin.pull_requests
    title = "Training policy measured again"
    assert opened == {"head": BRANCH, "base": "main", "title": title, "body": "a table", "token": "of the input"}
    assert origin.changed() == ["policy.yaml"], "no wrapper was asked for, and what else changed is nobody's"
    assert origin.text("policy.yaml") == "new"
    assert origin.git("log", "-1", "--format=%s %an %ae", BRANCH).startswith(f"{title} github-actions[bot] ")
    assert origin.git("rev-parse", "main") == origin.git("rev-parse", f"{BRANCH}~") == main
    assert origin.here("rev-parse", "main") == origin.here("rev-parse", "HEAD") == main
    assert origin.here("symbolic-ref", "--short", "HEAD") == "main"
    assert origin.here("diff", "--cached", "--name-only") == index == ""


def test_a_pull_request_that_is_open_gets_the_newer_policy(project: Project, origin: Origin) -> None:
    (project.folder / "status").write_text("3")
    assert run(project, stand_in=True).status == 0
    project.policy.write_text("as it was in the next checkout")
    (project.folder / "new_policy").write_text("a newer one")
    (project.folder / "new_table").write_text("another table")
    (project.folder / "train").mkdir()
    ended = run(project, stand_in=True, wrapper="train/wrapper.py")
    assert ended.status == 0, ended.printed
    (still,) = origin.pull_requests
    assert (still["base"], still["body"]) == ("main", "another table")
    assert origin.changed() == ["policy.yaml", "train/wrapper.py"]
    assert origin.text("policy.yaml") == "a newer one"
    assert origin.git("rev-parse", f"{BRANCH}~") == origin.git("rev-parse", "main")


def test_an_input_is_a_text_and_no_code(project: Project, origin: Origin) -> None:
    (project.folder / "status").write_text("3")
    policy = "$(touch ran) 'a\"b.yaml"
    (project.folder / policy).write_text("")
    assert run(project, stand_in=True, policy=policy, wrapper="-f; touch ran").status == 0
    assert origin.changed() == sorted([policy, "-f; touch ran"])
    assert not (project.folder / "ran").exists()


def test_the_token_of_the_input_replaces_the_one_of_the_checkout(project: Project, origin: Origin) -> None:
    (project.folder / "status").write_text("3")
    with _Listening() as (url, authorizations):
        origin.here("remote", "set-url", "origin", f"{url}/a/b.git")
        origin.here("config", f"http.{url}/.extraheader", "AUTHORIZATION: basic of-the-checkout")
        commands = write_command(write_gh(project.folder.parent / "commands"), STALE)
        ended = run_action(ACTION, {"token": "own"}, project.folder, commands, GITHUB_SERVER_URL=url)
    assert ended.status != 0, "nothing was pushed"
    assert set(map(tuple, authorizations)) == {("basic eC1hY2Nlc3MtdG9rZW46b3du",)}, "x-access-token:own"
    assert origin.pull_requests == []


class _Listening:
    """A server that refuses everything and keeps the ``Authorization`` headers of each request."""

    def __enter__(self) -> tuple[str, list[list[str]]]:
        kept: list[list[str]] = []

        class Refusing(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kept.append(self.headers.get_all("Authorization", []))
                self.send_error(403)

            def log_message(self, *_: Any) -> None: ...

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self._server.server_port}", kept

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def test_a_policy_that_came_out_the_same_is_not_proposed(project: Project, origin: Origin) -> None:
    project.policy.write_text("new")
    origin.commit("the same")
    (project.folder / "status").write_text("3")
    ended = run(project, stand_in=True)
    assert (ended.status, origin.pull_requests) == (0, []), ended.printed
    assert "the new policy is the one that is there" in ended.printed
    assert not origin.has(BRANCH)


@pytest.mark.parametrize("pull_request", ["true", "false"])
def test_a_job_without_a_branch_is_told_before_it_measures(pull_request: str, project: Project, origin: Origin) -> None:
    (project.folder / "status").write_text("3")
    origin.here("checkout", "--quiet", "--detach")
    ended = run(project, stand_in=True, pull_request=pull_request)
    refused = pull_request == "true"
    assert (ended.status, (project.folder / "tuned_with").exists()) == ((2, False) if refused else (0, True))
    assert ("needs a branch to go into, but the job checked out a commit" in ended.printed) == refused
    assert origin.pull_requests == []


def test_a_runner_without_gh_is_told_before_it_measures(
    project: Project, origin: Origin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "status").write_text("3")
    (tmp_path / "tools").mkdir()
    for name in ("bash", "git"):
        (tmp_path / "tools" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    ended = run_action(ACTION, {}, project.folder, write_command(tmp_path / "commands", STALE))
    assert (ended.status, (project.folder / "tuned_with").exists()) == (2, False)
    assert "install it, or set pull-request: false" in ended.printed


@pytest.mark.parametrize("name", ["python3", "python", ""])
def test_either_name_of_python_does(
    name: str, project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project.folder / "status").write_text("3")
    (tmp_path / "tools").mkdir()
    for tool in ("bash", "cat", "cp"):
        (tmp_path / "tools" / tool).symlink_to(str(shutil.which(tool)))
    if name:
        (tmp_path / "tools" / name).symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path / "tools"))
    commands = write_command(tmp_path / "commands", STALE)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "tools" / "python of the tests"))  # its folder is on the PATH
    ended = run_action(ACTION, {"pull-request": "false"}, project.folder, commands)
    assert (ended.status, (project.folder / "tuned_with").exists()) == ((0, True) if name else (2, False))
    assert ("Python is not on the PATH" in ended.printed) == (not name)


def test_a_policy_that_cannot_be_told_fails_the_job(project: Project) -> None:
    project.restate("fingerprints", identity=None)
    ended = run(project, model="model.py")
    assert (ended.status, ended.outputs) == (1, {"check": {"status": "1"}})
    assert "::error::whether policy.yaml holds could not be told" in ended.printed
    assert "older version of momadvise" in ended.summary


def test_a_mistake_fails_the_job(project: Project) -> None:
    ended = run(project, policy="nowhere.yaml")
    assert (ended.status, ended.outputs) == (2, {"check": {"status": "2"}})
    assert "momadvise: error: " in ended.printed


@pytest.mark.parametrize(("status", "tune", "ends"), [(4, "true", 0), (3, "false", 3), (3, "true", 0)])
def test_each_status_has_its_end(status: int, tune: str, ends: int, project: Project, origin: Origin) -> None:
    (project.folder / "status").write_text(str(status))
    ended = run(project, stand_in=True, tune=tune, tune_arguments="--trials 2", pull_request="false")
    assert (ended.status, origin.pull_requests, origin.has(BRANCH)) == (ends, [], False)
    tuned = project.folder / "tuned_with"
    assert tuned.exists() == (status == 3 and tune == "true")
    if tuned.exists():
        assert json.loads(tuned.read_text())[:5] == ["--goal", "faster", "my model.py", "--trials", "2"]


def run_gitlab(project: Project, origin: Origin) -> Ended:
    (project.folder / "momadvise.md").write_text("")
    commands = write_command(project.folder.parent / "commands", STALE)
    variables = {"CI_DEFAULT_BRANCH": "main", "PUSH_TOKEN": "t", "CI_PROJECT_PATH": "p"}
    variables |= {"CI_SERVER_URL": "http://h:8443", **origin.found_at("http://oauth2:t@h:8443/p.git")}
    return run_job(GITLAB, "momadvise", project.folder, commands, **variables)


@pytest.mark.parametrize("status", [0, 1, 2, 3, 4])
def test_the_gitlab_job_pushes_a_merge_request_when_the_policy_is_stale(
    status: int, project: Project, origin: Origin
) -> None:
    (project.folder / "status").write_text(str(status))
    (project.folder / "new_table").write_text("a table\n\n| a | b |\n")
    main = origin.git("rev-parse", "main")
    ended = run_gitlab(project, origin)
    assert ended.status == (status if status in (1, 2) else 0), ended.printed
    assert origin.has(BRANCH) == (status == 3)
    assert origin.git("rev-parse", "main") == main
    if status == 3:
        assert origin.push_options == [
            "merge_request.create",
            "merge_request.target=main",
            "merge_request.title=Training policy measured again",
            r"merge_request.description=a table\n\n| a | b |\n",
        ]
        assert (origin.changed(), origin.text("policy.yaml")) == (["policy.yaml"], "new")


def test_a_second_gitlab_job_replaces_what_the_first_one_proposed(project: Project, origin: Origin) -> None:
    (project.folder / "status").write_text("3")
    assert run_gitlab(project, origin).status == 0
    origin.here("checkout", "--quiet", "main")
    (project.folder / "new_policy").write_text("a newer one")
    ended = run_gitlab(project, origin)
    assert ended.status == 0, ended.printed
    assert origin.text("policy.yaml") == "a newer one"
    assert origin.git("rev-parse", f"{BRANCH}~") == origin.git("rev-parse", "main")


def test_the_workflow_of_the_page_gives_the_action_inputs_that_it_has() -> None:
    workflow = yaml.safe_load((ROOT / "docs" / "ci" / "github.yml").read_text())
    (step,) = [one for one in workflow["jobs"]["policy"]["steps"] if "momadvise@" in one.get("uses", "")]
    assert set(step["with"]) <= set(yaml.safe_load(ACTION.read_text())["inputs"])
