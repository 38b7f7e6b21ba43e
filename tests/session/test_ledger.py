"""The ledger: what was found out about a measurement later replaces it, and nothing else is lost."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from advisor.decide.candidate import Candidate, Role
from advisor.goal import GoalKind
from advisor.methods.setting import use
from advisor.session import ledger as ledgers
from advisor.session.ledger import Ledger, lost_candidates, read_candidates, without_chance
from advisor.text.records import encode_record
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome
from tests.decide.examples import baseline, lost, measured
from tests.decide.test_guard import found


def ledger(folder: Path, kind: GoalKind = GoalKind.FASTER) -> Ledger:
    return Ledger(StudyFolder(folder), kind)


def reads(folder: Path) -> list[Candidate]:
    return read_candidates(folder / "ledger.jsonl")


def trial(rate: float, key: str) -> Candidate:
    return msgspec.structs.replace(measured(rate), trial_key=key)


def test_a_candidate_that_was_compared_later_is_read_once_with_what_was_found(tmp_path: Path) -> None:
    first, other = trial(100, "time-1"), trial(90, "time-2")
    compared = msgspec.structs.replace(first, guard=found(0.003))
    (tmp_path / "ledger.jsonl").write_bytes(b"\n".join(map(encode_record, (first, other, compared))))
    assert reads(tmp_path) == [compared, other], "as versions before wrote it, line after line"


def test_the_same_measurement_in_another_role_or_size_is_another_candidate(tmp_path: Path) -> None:
    first = msgspec.structs.replace(baseline(100), trial_key="time-1")
    others = [
        msgspec.structs.replace(first, role=Role.SEARCHED),
        msgspec.structs.replace(first, model_size={"layers": 8}),
        lost(Outcome.SCREENED, reason="too big"),
        lost(Outcome.SCREENED, use("checkpoint", every=2), reason="too big"),
    ]
    written = ledger(tmp_path)
    for candidate in (first, *others):
        written.add(candidate)
    assert reads(tmp_path) == list(written.candidates) == [first, *others]


def test_what_is_tried_again_takes_the_place_of_its_earlier_end(tmp_path: Path) -> None:
    """A process that was killed before the search learned of a candidate has it proposed, and written, again."""
    ended, screened = trial(90, "time-1"), lost(Outcome.SCREENED)
    held_up = msgspec.structs.replace(ended, outcome=Outcome.TIMEOUT, measurement=None)
    written = ledger(tmp_path)
    for candidate in (held_up, screened, ended, msgspec.structs.replace(screened, reason="too big")):
        written.add(candidate)
    assert [one.outcome for one in written.candidates] == [Outcome.OK, Outcome.SCREENED]
    assert written.candidates[1].reason == "too big"
    assert reads(tmp_path) == list(written.candidates)


def test_a_measurement_that_is_read_back_keeps_what_was_found_out_about_it(tmp_path: Path) -> None:
    written = ledger(tmp_path)
    written.add(trial(90, "time-1"))
    written.replace(lambda one: msgspec.structs.replace(one, not_confirmed="it was no faster"))
    written.add(trial(90, "time-1"))
    assert [one.not_confirmed for one in written.candidates] == ["it was no faster"]
    assert reads(tmp_path) == list(written.candidates)


def test_a_baseline_that_is_run_again_stays_in_the_file_until_it_has_ended(tmp_path: Path) -> None:
    held_up = msgspec.structs.replace(lost(Outcome.LOST, role=Role.BASELINE), trial_key="time-1")
    ledger(tmp_path).add(held_up)
    written = ledger(tmp_path)
    assert (written.candidates, written.tried_again) == ((), 1)
    written.add(trial(90, "time-2"))
    written.replace(lambda one: msgspec.structs.replace(one, not_compared="no time was left"))
    assert reads(tmp_path) == [held_up, *written.candidates]
    measured_now = msgspec.structs.replace(held_up, outcome=Outcome.OK, measurement=trial(90, "").measurement)
    written.add(measured_now)
    assert reads(tmp_path) == list(written.candidates)
    assert written.baseline == measured_now


def test_what_cannot_be_written_is_not_in_the_list_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = ledger(tmp_path)
    written.add(trial(90, "time-1"))

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("advisor.session.ledger.add_line", full)
    monkeypatch.setattr("advisor.session.ledger.write_whole", full)
    with pytest.raises(OSError, match="no space"):
        written.add(trial(80, "time-2"))
    with pytest.raises(OSError, match="no space"):
        written.replace(lambda one: msgspec.structs.replace(one, not_confirmed="it was no faster"))
    assert reads(tmp_path) == list(written.candidates) == [trial(90, "time-1")]


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize("writing", ["add_line", "write_whole"])
def test_ctrl_c_inside_of_a_write_leaves_list_and_file_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writing: str, written: bool
) -> None:
    one = ledger(tmp_path)
    one.add(trial(1.0, "a"))
    write = getattr(ledgers, writing)

    def interrupted(*arguments: object) -> None:
        if written:
            write(*arguments)
        raise KeyboardInterrupt

    def change() -> None:
        if writing == "add_line":
            one.add(trial(2.0, "b"))
        else:
            one.replace(lambda candidate: msgspec.structs.replace(candidate, guard=found()))

    monkeypatch.setattr(ledgers, writing, interrupted)
    with pytest.raises(KeyboardInterrupt):
        change()
    assert list(one.candidates) == reads(tmp_path)
    changed = len(one.candidates) == 2 or one.candidates[0].guard is not None
    assert changed == written


def test_a_stored_answer_is_withdrawn_before_something_that_it_rests_on_changes(tmp_path: Path) -> None:
    """Otherwise a process that is killed leaves an answer whose winner the ledger rules out."""
    folder = StudyFolder(tmp_path)
    written = ledger(tmp_path)
    folder.answer.write_text("an answer")
    written.add(trial(90, "time-1"))
    written.replace(lambda one: one)
    assert folder.answer.exists(), "it is the answer of a shorter search"
    written.replace(lambda one: msgspec.structs.replace(one, not_confirmed="it was no faster"))
    assert not folder.answer.exists()


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.LOST])
def test_a_baseline_that_ended_by_chance_is_none_for_the_next_run(outcome: Outcome) -> None:
    held_up, other = lost(outcome, role=Role.BASELINE), lost(outcome)
    assert without_chance([held_up, other, measured(90)], GoalKind.FASTER) == [other, measured(90)]
    assert without_chance([held_up, other, measured(90)], GoalKind.BIGGER) == [measured(90)]


def test_a_baseline_that_failed_by_itself_stays_so() -> None:
    failed = [lost(outcome, role=Role.BASELINE) for outcome in (Outcome.CRASHED, Outcome.FAILED, Outcome.OUT_OF_MEMORY)]
    assert without_chance(failed, GoalKind.FASTER) == failed


def test_what_was_ended_from_outside_is_tried_again_beyond_the_trials_until_it_is_measured() -> None:
    here, larger = lost(Outcome.LOST), msgspec.structs.replace(lost(Outcome.LOST), model_size={"layers": 8})
    late = lost(Outcome.TIMEOUT)
    assert lost_candidates([measured(90), late]) == 0
    assert lost_candidates([measured(90), here, larger, here]) == 2
    done = msgspec.structs.replace(here, outcome=Outcome.OK)
    assert lost_candidates([here, larger, done]) == 1


def test_what_was_lost_while_it_was_timed_may_lead_again_as_it_did_by_its_short_steps() -> None:
    gone = lost(Outcome.LOST)
    compared = msgspec.structs.replace(gone, outcome=Outcome.COMPARED)
    assert without_chance([compared, gone], GoalKind.FASTER) == [compared]
    assert without_chance([gone], GoalKind.FASTER) == [gone]


def test_so_may_what_was_compared_at_another_batch() -> None:
    """A leader is timed from the best batch of the last ladder on."""
    compared = msgspec.structs.replace(lost(Outcome.LOST), outcome=Outcome.COMPARED)
    larger = msgspec.structs.replace(compared.policy, micro_batch=2 * compared.policy.micro_batch)
    gone = msgspec.structs.replace(lost(Outcome.LOST), policy=larger)
    assert without_chance([compared, gone], GoalKind.FASTER) == [compared]


def test_a_combination_counts_once_whether_it_was_compared_or_timed_at_several_batches(tmp_path: Path) -> None:
    counted = ledger(tmp_path)
    rungs = [
        msgspec.structs.replace(measured(90, use("checkpoint", every=1), micro_batch=batch), trial_key="time-1")
        for batch in (8, 16)
    ]
    counted.add(msgspec.structs.replace(rungs[0], outcome=Outcome.COMPARED, measurement=None, trial_key=None))
    assert counted.measured == 1
    for rung in rungs:
        counted.add(rung)
    assert counted.measured == 1
    counted.add(msgspec.structs.replace(measured(80), trial_key="time-2"))
    assert counted.measured == 2
