"""The code blocks of the pages, and a runner that does in a folder what a reader would do with them, in order.

A block is run as it stands, with two differences: a search is told to end early (:data:`LIMITS`), because most pages
mean models and hours that a test has not; and ``momadvise`` is called in this process. A comment before a block says
why it is not run (``<!-- not run: needs a GPU -->``), which test or script runs it (``<!-- run by .ci/cpu -->``), or
with which status it ends (``<!-- exit status 3 -->``).
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import yaml

import advisor
from advisor.cli import EXIT_NOT_KEPT
from advisor.policy.file import load_policy_file
from tests.session.command import run_here

__all__ = ["LIMITS", "ROOT", "Block", "Runner", "blocks_of", "pages"]

ROOT = Path(__file__).resolve().parents[2]

SHELL, PYTHON, YAML = ("sh", "bash"), ("python", "py"), ("yaml",)
OUTPUT = ("", "text")
"""What a command printed, and pictures in characters: nothing that could be run."""

LIMITS: dict[str, Any] = {"search_space": Path(__file__).with_name("space.yaml"), "trials": 1, "time_limit": "60s"}

_FENCE = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE
)
_KINDS = ("needs a GPU",)
_SPEED_ALONE = "It does not keep its promise: speed."
"""Why a block may stay unrun. Anything else is a block to be repaired, or a reason to be agreed on here."""

HUB = "hub"
"""Folder of the Hugging Face cache, in the folder of a page."""


@dataclass(frozen=True)
class Block:
    """A code block.

    Attributes:
        page: Its page, from the root of the repository.
        line: Where it begins.
        language: As its fence names it.
        code: As it stands.
        mark: What the comment before it says; empty without one.
    """

    page: str
    line: int
    language: str
    code: str
    mark: str

    @property
    def place(self) -> str:
        """Page and line."""
        return f"{self.page}:{self.line}"

    @property
    def is_code(self) -> bool:
        """Whether it is more than something that was printed."""
        return self.language not in OUTPUT

    @property
    def reason(self) -> str:
        """Why nothing runs it; empty if something does."""
        return self.mark.removeprefix("not run: ") if self.mark.startswith("not run: ") else ""

    @property
    def elsewhere(self) -> str:
        """The test or script that runs it in the place of this one; empty without one."""
        return self.mark.removeprefix("run by ") if self.mark.startswith("run by ") else ""

    @property
    def status(self) -> int:
        """The exit status that its last command ends with."""
        return int(self.mark.removeprefix("exit status ")) if self.mark.startswith("exit status ") else 0

    def check(self) -> None:
        """The mark is one that there is."""
        known = not self.mark or self.elsewhere or self.status or self.reason.startswith(_KINDS)
        assert known, f"{self.place}: no such mark: {self.mark!r}"
        assert self.is_code or not self.reason, f"{self.place}: output is not run anyway"
        assert self.language in (*SHELL, *PYTHON, *YAML, *OUTPUT), f"{self.place}: nothing runs {self.language}"

    @property
    def commands(self) -> tuple[str, ...]:
        """The commands of its lines."""
        return tuple(_lines(self.code))


def pages() -> list[str]:
    """Pages with code, in the order in which a reader meets them."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    names = (path.relative_to(ROOT).as_posix() for path in sorted(found))
    return [name for name in names if any(block.is_code for block in blocks_of(name))]


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page in order."""
    text = (ROOT / page).read_text()
    found = _FENCE.finditer(text)
    marks = ("not run: ", "run by ", "exit status ")
    return [
        Block(
            page=page,
            line=text.count("\n", 0, one.start("code")),
            language=one["language"],
            code=one["code"],
            mark=one["mark"] if (one["mark"] or "").startswith(marks) else "",
        )
        for one in found
    ]


class Runner:
    """Runs the blocks of one page in one folder.

    Args:
        folder: Where commands run and files are written.
        names: Makes what the Python of the page may take for granted, anew for each block.
    """

    def __init__(self, folder: Path, names: Callable[[], Mapping[str, Any]]) -> None:
        self._folder = folder
        self._taken_for_granted = names
        self._names: dict[str, Any] = {"__name__": "__main__"}

    def run(self, block: Block) -> None:
        """Run one."""
        if block.language in SHELL:
            self._shell(block)
        elif block.language in PYTHON:
            self._python(block)
        elif block.language in YAML:
            self._yaml(block)

    def _shell(self, block: Block) -> None:
        commands = list(_commands(block.code))
        for number, command in enumerate(commands):
            expected = block.status if number == len(commands) - 1 else 0
            status, said = self._momadvise(command) if command.startswith("momadvise") else self._other(command)
            if (status, expected) == (EXIT_NOT_KEPT, 0) and _SPEED_ALONE in said:
                status = 0  # how fast a machine is that runs other tests beside this one is no mistake of the page
            assert status == expected, f"{block.place}: {command}\nended with {status}\n{said[-3000:]}"
            assert "Traceback" not in said, f"{block.place}: {command}\n{said[-3000:]}"

    def _momadvise(self, command: str) -> tuple[int, str]:
        command, _, target = command.partition(" > ")
        with contextlib.chdir(self._folder):
            arguments = [found for word in shlex.split(command)[1:] for found in (_globbed(word) or [word])]
        verbs = (
            "predict",
            "verify",
            "check",
            "export",
            "methods",
            "hardware",
            "report",
            "completion",
            "--help",
            "--version",
        )
        if arguments and arguments[0] not in verbs:
            for name, value in (LIMITS | {"memory_limit": "24MiB"}).items():  # batches of a moment
                arguments += [f"--{name.replace('_', '-')}", str(value)]
        idle = mock.patch("advisor.session.setup.wait_idle.wait_until_idle", return_value=None)
        cache = mock.patch("huggingface_hub.constants.HF_HUB_CACHE", str(self._folder / HUB))
        with mock.patch("webbrowser.open"), idle, cache:
            ended = run_here(*arguments, cwd=self._folder)
        if target:
            (self._folder / target.strip()).write_text(ended.stdout)
        return ended.returncode, ended.stdout + ended.stderr

    def _other(self, command: str) -> tuple[int, str]:
        ended = subprocess.run(
            ["bash", "-euc", command],
            cwd=self._folder,
            env=os.environ
            | {
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return ended.returncode, ended.stdout + ended.stderr

    def _python(self, block: Block) -> None:
        file = re.match(r"# (\w+\.py)\n", block.code)
        if file:
            (self._folder / file[1]).write_text(block.code)
        with self._here(), warnings.catch_warnings():
            warnings.simplefilter("default")  # as in a program of the reader's
            self._names.update(self._taken_for_granted())
            exec(compile(block.code, block.place, "exec"), self._names)

    def _yaml(self, block: Block) -> None:
        if "\npolicy:" in block.code:
            path = self._folder / "policy.yaml"
            path.write_text(block.code)
            load_policy_file(path)
        else:
            assert yaml.safe_load(block.code)

    @contextlib.contextmanager
    def _here(self) -> Iterator[None]:
        """Within, Python runs as in the folder, and searches end early."""
        loaded = set(sys.modules)
        tune = advisor.tune
        with (
            contextlib.chdir(self._folder),
            mock.patch.object(sys, "path", [str(self._folder), *sys.path]),
            mock.patch.object(advisor, "tune", lambda *args, **asked: tune(*args, **asked | LIMITS), create=True),
        ):
            yield
        for name in set(sys.modules) - loaded:
            if str(self._folder) in str(getattr(sys.modules[name], "__file__", "")):
                del sys.modules[name]


def _commands(code: str) -> Iterator[str]:
    """The commands of a block, one after another where the page starts several."""
    for line in _lines(code):
        yield from (part.strip() for part in line.removesuffix(" &").split(" && "))


def _lines(code: str) -> Iterator[str]:
    """The lines of a block, without comments and continuations."""
    for line in re.sub(r"\\\n\s*", " ", code).splitlines():
        bare = re.sub(r"(^|\s+)#.*$", "", line).strip()
        if bare:
            yield bare


def _globbed(word: str) -> list[str]:
    return sorted(str(path) for path in Path().glob(word)) if "*" in word else []
