"""A process that is killed at any write of the ledger leaves a study that is read back whole and goes on."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import advisor
from advisor.decide.answer import load_answer
from advisor.decide.candidate import Candidate
from advisor.session.ledger import Ledger, read_candidates
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from tests.faults.invariants import disagreements, finished
from tests.session.workloads import tiny

pytestmark = pytest.mark.slow

_TUNE = "build_model=tiny.build_model, make_batch=tiny.make_batch, search_space='smoke', trials=4, time_limit=60"
_KILLED = f"""
import os, signal, sys
import advisor
from advisor.session.ledger import Ledger
from tests.session.workloads import tiny

write, left = getattr(Ledger, sys.argv[2]), [int(sys.argv[3])]

def last(self, *arguments):
    write(self, *arguments)
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)

setattr(Ledger, sys.argv[2], last)
advisor.tune(output=sys.argv[1], {_TUNE})
"""


class Moment(msgspec.Struct):
    """What a kill beside a write would have left.

    Attributes:
        study: A copy of the study folder.
        before: The list as it was before the write.
        after: The same after it.
    """

    study: Path
    before: Sequence[Candidate]
    after: Sequence[Candidate]


class Watched:
    """A study that is copied before and after each write of its ledger, until the answer.

    Args:
        study: Its folder.
        copies: Where copies go.
    """

    def __init__(self, study: Path, copies: Path) -> None:
        self.moments: list[Moment] = []
        self.left: list[Candidate] = []
        with pytest.MonkeyPatch.context() as patch:
            for change, write in (("add", "_append"), ("replace", "_rewrite")):
                patch.setattr(Ledger, write, self._copying(getattr(Ledger, write), study, copies))
                patch.setattr(Ledger, change, self._noting(getattr(Ledger, change)))
            self.answer = tune(study)
        self.left = read_candidates(study / "ledger.jsonl")

    def _copying(self, write: Callable[..., None], study: Path, copies: Path) -> Callable[..., None]:
        def copied(ledger: Ledger, *arguments: Any) -> None:
            for begins in (True, False):
                if not begins:
                    write(ledger, *arguments)
                copy = copies / str(len(self.moments))
                shutil.copytree(study, copy)
                self.moments.append(Moment(copy, ledger.candidates, ledger.candidates))

        return copied

    def _noting(self, change: Callable[..., None]) -> Callable[..., None]:
        def noted(ledger: Ledger, *arguments: Any) -> None:
            begin = len(self.moments)
            change(ledger, *arguments)
            for moment in self.moments[begin:]:
                moment.after = ledger.candidates

        return noted


def tune(study: Path) -> advisor.Answer:
    return advisor.tune(
        build_model=tiny.build_model,
        make_batch=tiny.make_batch,
        search_space="smoke",
        trials=4,
        time_limit=60,
        output=study,
    )


def identities(candidates: Sequence[Candidate]) -> Counter[object]:
    return Counter((one.trial_key or one.outcome, one.role, one.policy.key) for one in candidates)


def killed(study: Path, write: str, number: int) -> list[Candidate]:
    """Have a process that tunes kill itself right after a write; the candidates that it leaves."""
    command = [sys.executable, "-c", _KILLED, study, write, str(number)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = read_candidates(study / "ledger.jsonl")
    assert left, "it was killed after a write"
    return left


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """A study whose process was killed, and the same command once more, copied at each of its writes."""
    study = tmp_path_factory.mktemp("killed") / "out"
    left = killed(study, "_append", 2)
    found = Watched(study, tmp_path_factory.mktemp("copies"))
    is_answered(found.answer, study, left)
    return found


def is_answered(answer: advisor.Answer, study: Path, earlier: Sequence[Candidate]) -> None:
    """The answer is confirmed and agrees with its files; of what was found before nothing is lost or doubled."""
    assert answer.complete
    assert answer.recommendation.confirmation is not None
    assert answer.recommendation.confirmation.outcome is Outcome.OK
    assert list(disagreements(study)) == []
    now = read_candidates(study / "ledger.jsonl")
    assert identities(earlier) <= identities(now)
    assert set(identities(now).values()) == {1}
    figures = {(one.trial_key, one.role, one.policy.key): one.measurement for one in now}
    for one in earlier:
        assert one.measurement in (None, figures[one.trial_key, one.role, one.policy.key])


def test_killed_at_a_changed_candidate_the_same_command_goes_on_to_an_answer(tmp_path: Path) -> None:
    study = tmp_path / "out"
    left = killed(study, "_rewrite", 1)
    is_answered(tune(study), study, left)


def test_at_every_write_the_file_holds_the_list_before_or_after_it(watched: Watched) -> None:
    assert len(watched.moments) >= 4
    for moment in watched.moments:
        found = read_candidates(moment.study / "ledger.jsonl")
        assert found in (list(moment.before), list(moment.after))
        assert set(identities(found).values()) <= {1}
    assert watched.left == list(watched.moments[-1].after)


def test_an_answer_that_is_stored_at_a_write_is_one_of_what_the_ledger_holds(watched: Watched) -> None:
    for moment in watched.moments:
        answer = load_answer(StudyFolder(moment.study))
        if answer is not None:
            held = read_candidates(moment.study / "ledger.jsonl")
            assert answer.recommendation.winner in held
            assert list(disagreements(moment.study)) == []


def test_a_copy_from_beside_a_write_goes_on_to_an_answer(watched: Watched) -> None:
    moment = watched.moments[len(watched.moments) // 2]
    before, trials = read_candidates(moment.study / "ledger.jsonl"), finished(moment.study)
    is_answered(tune(moment.study), moment.study, before)
    assert trials.items() <= finished(moment.study).items(), "what had finished was read back"
