"""The GitHub Action and the GitLab job: their steps are run here as they stand, on a small model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

import advisor

from .pipelines import Ended, run_action, run_job, write_command
from .projects import Project

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
pathlib.Path("tuned_with").write_text(json.dumps(sys.argv[1:]))
folder = pathlib.Path(sys.argv[sys.argv.index("--output") + 1])
folder.mkdir()
for name in ("policy.yaml", "wrapper.py"):
    (folder / name).write_text("new")
pathlib.Path(sys.argv[sys.argv.index("--summary") + 1]).write_text("a table")
"""
"""A command in the place of the real one: it ends as the file ``status`` says."""

GIT = """\
#!{python}
import pathlib, sys
with pathlib.Path("git").open("a") as file:
    print(*sys.argv[1:], file=file)
"""


@pytest.fixture
def project(measured: advisor.Answer, tmp_path: Path) -> Project:
    (tmp_path / "repository").mkdir()
    return Project(tmp_path / "repository", measured.policy_path)


def run(project: Project, **inputs: str) -> Ended:
    commands = write_command(project.folder.parent / "commands")
    return run_action(ACTION, {name.replace("_", "-"): one for name, one in inputs.items()}, project.folder, commands)


def test_a_stale_policy_is_measured_again_and_proposed_and_then_holds(project: Project) -> None:
    project.edit("cfg.json", "32", "48")
    before = project.policy.read_text()
    ended = run(project, tune_arguments=TUNE, wrapper="wrapper.py")
    assert ended.status == 0, ended.printed
    assert (ended.outputs["check"], ended.outputs["tune"]) == ({"status": "3"}, {"tuned": "true"})
    assert project.policy.read_text() != before
    assert (project.folder / "wrapper.py").exists()
    assert "model: parameters 2,144 -\\> 3,200" in ended.summary
    assert "| # | policy | batch | samples/s | peak |  |" in ended.summary
    ((action, given),) = ended.used
    assert action.startswith("peter-evans/create-pull-request@")
    assert Path(given["body-path"]).read_text() in ended.summary
    assert given["add-paths"].split() == ["policy.yaml", "wrapper.py"]

    again = run(project)
    assert (again.status, again.outputs, again.used) == (0, {"check": {"status": "0"}}, [])
    assert "The policy holds." in again.summary


def test_a_policy_that_cannot_be_told_fails_the_job(project: Project) -> None:
    project.restate("fingerprints", identity=None)
    ended = run(project, model="model.py")
    assert (ended.status, ended.outputs["check"], ended.used) == (1, {"status": "1"}, [])
    assert "::error::whether policy.yaml holds could not be told" in ended.printed
    assert "older version of momadvise" in ended.summary


def test_a_mistake_fails_the_job(project: Project) -> None:
    ended = run(project, policy="nowhere.yaml")
    assert (ended.status, ended.outputs["check"], ended.used) == (2, {"status": "2"}, [])
    assert "momadvise: error: " in ended.printed


@pytest.mark.parametrize(("status", "tune", "ends"), [(4, "true", 0), (3, "false", 3), (3, "true", 0)])
def test_each_status_has_its_end(status: int, tune: str, ends: int, project: Project) -> None:
    (project.folder / "status").write_text(str(status))
    commands = write_command(project.folder.parent / "commands", STALE)
    ended = run_action(ACTION, {"tune": tune, "tune-arguments": "--trials 2"}, project.folder, commands)
    assert ended.status == ends
    tuned = project.folder / "tuned_with"
    assert tuned.exists() == bool(ended.used) == (status == 3 and tune == "true")
    if tuned.exists():
        assert json.loads(tuned.read_text())[:5] == ["--goal", "faster", "my model.py", "--trials", "2"]


@pytest.mark.parametrize("status", [0, 1, 2, 3, 4])
def test_the_gitlab_job_pushes_a_merge_request_when_the_policy_is_stale(status: int, project: Project) -> None:
    (project.folder / "status").write_text(str(status))
    (project.folder / "momadvise.md").write_text("")
    commands = write_command(project.folder.parent / "commands", STALE)
    write_command(commands, GIT, "git")
    variables = {"CI_DEFAULT_BRANCH": "main", "PUSH_TOKEN": "t", "CI_SERVER_HOST": "h", "CI_PROJECT_PATH": "p"}
    ended = run_job(GITLAB, "momadvise", project.folder, commands, **variables)
    assert ended.status == (status if status in (1, 2) else 0), ended.printed
    assert (project.folder / "git").exists() == (status == 3)
    if status == 3:
        assert project.policy.read_text() == "new"
        pushed = (project.folder / "git").read_text().splitlines()[-1]
        assert "merge_request.create" in pushed
        assert "a table<br>" in pushed


def test_the_workflow_of_the_page_gives_the_action_inputs_that_it_has() -> None:
    workflow = yaml.safe_load((ROOT / "docs" / "ci" / "github.yml").read_text())
    (step,) = [one for one in workflow["jobs"]["policy"]["steps"] if "momadvise@" in one.get("uses", "")]
    assert set(step["with"]) <= set(yaml.safe_load(ACTION.read_text())["inputs"])
