"""The services that a pipeline pushes to: git's own side is real, GitHub's and GitLab's is written down."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from .pipelines import write_command

__all__ = ["BRANCH", "Origin", "write_gh"]

BRANCH = "momadvise/policy"

_GH = """\
#!{python}
import json, os, pathlib, sys
kind, given = sys.argv[1:3], sys.argv[3:]
assert (os.environ["GH_HOST"], os.environ["GH_REPO"]) == ("github.example", "owner/name")
file = pathlib.Path(__file__).with_name("pull_requests.json")
opened = json.loads(file.read_text()) if file.exists() else []
def value(option):
    return given[given.index(option) + 1]
if kind == ["pr", "list"]:
    for number, one in enumerate(opened, start=1):
        if (one["head"], one["base"]) == (value("--head"), value("--base")):
            print(number)
elif kind == ["pr", "create"]:
    own = {{name: value("--" + name) for name in ("head", "base", "title")}}
    opened.append(own | {{"body": pathlib.Path(value("--body-file")).read_text(), "token": os.environ["GH_TOKEN"]}})
else:
    assert sys.argv[1:4] == ["api", "--method", "PATCH"], sys.argv
    place, number = sys.argv[4].rsplit("/", 1)
    assert place == "repos/{{owner}}/{{repo}}/pulls"
    name, _, path = value("--field").partition("=@")
    opened[int(number) - 1][name] = pathlib.Path(path).read_text()
file.write_text(json.dumps(opened))
"""


def write_gh(folder: Path) -> Path:
    """Add a stand-in for GitHub's command to a folder for ``PATH``: it keeps pull requests in a file beside itself."""
    return write_command(folder, _GH, "gh")


class Origin:
    """A bare repository, which a folder becomes a checkout of."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder.parent / "origin.git"
        self._options = folder.parent / "push_options"
        self._commands = folder.parent / "commands"
        subprocess.run(["git", "init", "--quiet", "--bare", str(self._path)], check=True)
        self.git("config", "receive.advertisePushOptions", "true")
        hook = self._path / "hooks" / "pre-receive"
        hook.write_text(f"#!/bin/sh\nenv | grep ^GIT_PUSH_OPTION_[0-9] | sort > {self._options}\nexit 0\n")
        hook.chmod(0o755)
        self.here("init", "--quiet", "--initial-branch=main")
        self.here("remote", "add", "origin", str(self._path))
        self.commit("as it is")

    def commit(self, message: str) -> None:
        """Commit the policy and the files of the model, and push them."""
        self.here("add", "model.py", "parts.py", "cfg.json", "policy.yaml")
        self.here("-c", "user.name=someone", "-c", "user.email=someone@localhost", "commit", "--quiet", "-m", message)
        self.here("push", "--quiet", "origin", "main")

    def git(self, *arguments: str) -> str:
        """Ask the repository."""
        return _git(self._path, *arguments)

    def here(self, *arguments: str) -> str:
        """Run git in the checkout."""
        return _git(self._folder, *arguments)

    def has(self, branch: str) -> bool:
        """Whether it was pushed."""
        return self.git("branch", "--list", branch) != ""

    def changed(self) -> list[str]:
        """The files in which the pushed branch differs from the main one."""
        return sorted(filter(None, self.git("diff", "-z", "--name-only", "main", BRANCH).split("\0")))

    def text(self, name: str) -> str:
        """A file of the pushed branch."""
        return self.git("show", f"{BRANCH}:{name}")

    @property
    def pull_requests(self) -> list[dict[str, str]]:
        """What the stand-in for ``gh`` was asked to open, as it was asked to change it since."""
        file = self._commands / "pull_requests.json"
        opened: list[dict[str, str]] = json.loads(file.read_text()) if file.exists() else []
        return opened

    @property
    def push_options(self) -> list[str]:
        """The options of the last push, in their order."""
        return [line.partition("=")[2] for line in self._options.read_text().splitlines()]

    def found_at(self, url: str) -> dict[str, str]:
        """Variables with which git finds the repository at another address."""
        return {
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": f"url.{self._path}.insteadOf",
            "GIT_CONFIG_VALUE_0": url,
        }


def _git(folder: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=folder, env=dict(os.environ), check=True, capture_output=True, text=True
    ).stdout.rstrip("\n")
