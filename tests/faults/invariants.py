"""What holds after every row. Each looks at one thing and says in words what is wrong, if something is."""

from __future__ import annotations

import contextlib
import json
import re
import runpy
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from advisor.errors import MomadviseError
from advisor.policy.file import load_policy_file
from advisor.policy.policy import Policy
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from advisor.trial.result import TrialResult

__all__ = ["disagreements", "finished", "one_sentence", "outcome_of", "temporary_files", "unconfirmed", "unreadable"]

_OURS = re.compile(r"momadvise|^\.")


def unreadable(study: Path) -> Iterator[str]:
    """Files that do not parse."""
    for path in sorted(study.rglob("*.json")):
        with _told(path, study) as told:
            json.loads(path.read_bytes())
        yield from told
    ledger = study / "ledger.jsonl"
    if ledger.exists():
        for line in ledger.read_bytes().splitlines():
            with _told(ledger, study) as told:
                json.loads(line)
            yield from told
    if (study / "policy.yaml").exists():
        with _told(study / "policy.yaml", study) as told:
            load_policy_file(study / "policy.yaml")
        yield from told
    if (study / "wrapper.py").exists():
        with _told(study / "wrapper.py", study) as told:
            compile((study / "wrapper.py").read_bytes(), "wrapper.py", "exec")
        yield from told
    if (study / "study.db").exists():
        with _told(study / "study.db", study) as told, contextlib.closing(sqlite3.connect(study / "study.db")) as one:
            found = one.execute("pragma integrity_check").fetchall()
            if found != [("ok",)]:
                raise ValueError(str(found))
        yield from told


@contextlib.contextmanager
def _told(path: Path, study: Path) -> Iterator[list[str]]:
    told: list[str] = []
    try:
        yield told
    except (OSError, ValueError, SyntaxError, sqlite3.Error, MomadviseError) as error:
        told.append(f"{path.relative_to(study)} does not parse: {type(error).__name__}: {error}")


def disagreements(study: Path) -> Iterator[str]:
    """Of answer, policy and wrapper those that are there name one policy; an answer has both of the others."""
    folder = StudyFolder(study)
    named: dict[str, Policy] = {}
    with contextlib.suppress(MomadviseError, OSError):
        named["policy.yaml"] = load_policy_file(folder.policy).policy
    with contextlib.suppress(Exception):  # it is code
        named["wrapper.py"] = runpy.run_path(str(folder.wrapper))["POLICY"]
    with contextlib.suppress(OSError, ValueError):
        winner = json.loads(folder.answer.read_bytes())["recommendation"]["winner"]["policy"]
        named["answer.json"] = msgspec.convert(winner, Policy)
    if len({one.key for one in named.values()}) > 1:
        yield "; ".join(f"{name} says {one.label}, batch {one.global_batch}" for name, one in named.items())
    if "answer.json" in named and len(named) < 3:
        yield f"there is an answer, but of it and its files only these can be used: {', '.join(sorted(named))}"


def temporary_files(study: Path, *others: Path) -> list[str]:
    """What was written under another name to be renamed, or for a while."""
    found = [one for one in study.rglob(".*") if one.name != ".gitignore"] if study.exists() else []
    for folder in others:
        found += [one for one in folder.rglob("*") if _OURS.search(one.name)]
    return sorted(one.name for one in found)


def finished(study: Path) -> dict[str, int]:
    """Trials that went well -> when that was written."""
    found = {}
    for path in study.glob("trials/*/result.json"):
        if outcome_of(study, path.parent.name) is Outcome.OK:
            found[path.parent.name] = path.stat().st_mtime_ns
    return found


def outcome_of(study: Path, key: str) -> Outcome | None:
    """How a trial ended; ``None`` if it did not."""
    try:
        data = StudyFolder(study).trial(key).result.read_bytes()
        outcome: Outcome = msgspec.json.decode(data, type=TrialResult).outcome
    except (OSError, msgspec.DecodeError):
        return None
    return outcome


def one_sentence(status: int, stderr: str, allowed: Mapping[int, str]) -> Iterator[str]:
    """Whether a command that ended so says why in one sentence, and never with a traceback.

    Args:
        status: Its own.
        stderr: What it said.
        allowed: Statuses that it may end with -> what is then said at least.
    """
    if "Traceback" in stderr or "Exception ignored" in stderr:
        yield f"a traceback: {stderr[stderr.find('Traceback') :].strip()[-300:]}"
    if status not in allowed:
        said = stderr.strip().splitlines()[-1:] or ["nothing"]
        yield f"it ended with status {status} and said: {said[0]}"
    elif allowed[status] not in stderr:
        yield f"status {status} without {allowed[status]!r} on standard error"


def unconfirmed(stdout: str) -> Iterator[str]:
    """Whether an answer is given that no wrapper has confirmed."""
    confirmation = json.loads(stdout)["recommendation"]["confirmation"]
    if confirmation is None or confirmation["outcome"] != Outcome.OK.value:
        yield f"its answer is not confirmed: {confirmation and confirmation['outcome']}"
