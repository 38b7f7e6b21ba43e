"""One tuning from request to answer."""

from __future__ import annotations

from pathlib import Path

import msgspec

from advisor.decide.answer import Answer, load_answer
from advisor.decide.candidate import Role
from advisor.errors import OutputFolderError, WorkloadError
from advisor.goal import Goal
from advisor.report.page.writing import write_report_beside
from advisor.report.progress import Progress
from advisor.search.study.storage import put_aside_damaged
from advisor.session.answer.emit import put_right
from advisor.session.preparation import Preparation, prepare
from advisor.session.request import TuneRequest
from advisor.session.setup.bytecode import notes_on_bytecode
from advisor.session.setup.other_load import notes_on_device, notes_on_load
from advisor.session.setup.ranks import failing_together, launch_identity
from advisor.session.setup.same_model import OF_ANOTHER_STUDY, identity_in, what_has_changed
from advisor.session.study import (
    AnotherStudyError,
    StudyMarker,
    check_folder,
    default_folders,
    folders_to_make,
    locked,
    open_study,
    remove_begun,
)
from advisor.session.tuning import Tuning
from advisor.surroundings import check_working_folder, refused
from advisor.text.units import format_bytes
from advisor.trial.folder import StudyFolder
from advisor.trial.outcome import Outcome

__all__ = ["run_session"]


def run_session(request: TuneRequest, progress: Progress) -> Answer:
    """Tune, or return the stored answer of an equal request.

    Raises:
        UserError: A mistake that the user can fix.
        TrialError: Nothing could be measured, or nothing fits.
        KeyboardInterrupt: Interrupted before there was an answer.
    """
    request.check()
    check_working_folder()
    launch = launch_identity()
    preparation = prepare(request)
    if request.output is not None:
        answer = _answer_in(request.output, preparation, launch, progress)
        assert answer is not None, "of one folder there is an answer or an error"
        return answer
    folders = default_folders(preparation.marker)
    return next(answer for path in folders if (answer := _answer_in(path, preparation, launch, progress)) is not None)


def _answer_in(path: Path, preparation: Preparation, launch: str | None, progress: Progress) -> Answer | None:
    """Tune into a folder; ``None`` if its measurements are of another model."""
    request, made = preparation.request, folders_to_make(path)
    try:
        # Before locking: not even a lock file may appear in a foreign folder.
        is_new = check_folder(path, preparation.marker) is None
    except AnotherStudyError:
        if request.output is not None:
            raise
        return None

    def announce_wait() -> None:
        progress.note(f"another process is tuning into {path}; waiting for its answer")

    with locked(path, on_wait=announce_wait if request.wait else None):
        folder, kept = open_study(path, preparation.marker)
        differences = kept.differences(preparation.marker) + what_has_changed(folder, request, progress)
        changed = [one.words for one in differences if one.weight in OF_ANOTHER_STUDY]
        if changed and request.output is not None:
            raise OutputFolderError(
                f"--output must be a new folder or this study's own, but {folder.path} was measured with other "
                f"things that the model reads, or is: {', '.join(changed)}. Name another folder, or leave --output "
                "out; nothing in this one was changed."
            )
        if changed:
            progress.note(f"{path} is not used: {', '.join(changed)}")
            return None
        since = [f"since this study began: {one.words}" for one in differences]
        preparation = msgspec.structs.replace(preparation, marker=kept, notes=(*preparation.notes, *since))
        goal = preparation.goal(kept.memory_limit_bytes)
        stored = load_answer(folder)
        searched = stored if stored is not None and _searched_enough(stored, request) else None
        if request.wait_idle_seconds is not None and stored is not None and _not_reproduced(stored):
            folder.forget_confirmations()
        if searched is not None and _picks_alike(searched.goal, goal):
            notes = put_right(searched, kept.fingerprints_with(identity_in(folder)), folder)
            if notes is not None:
                notes += since + _notes_if_too_large(searched, preparation.memory.limit_bytes)
                answer = msgspec.structs.replace(searched, notes=(*searched.notes, *notes))
                return _with_page(answer, progress)
        try:
            tuning = Tuning(preparation, folder, goal, progress, _notes(preparation, kept, folder), searched)
            with failing_together(folder, launch), progress:
                return _with_page(tuning.run(), progress)
        except WorkloadError:
            # Of a model that is mistyped, or makes no step, nothing is kept. Ranks that wait hear of it in the folder.
            if is_new and not folder.identity.exists() and not request.wait:
                remove_begun(folder, made)
            raise
        except BrokenPipeError:
            raise  # the reader of our output is gone; the folder is fine
        except OSError as error:
            # The user's code runs in other processes, so this is our own reading or writing.
            raise refused(error, folder.path) from error
        finally:
            folder.clear_left_files()  # of workers that were killed


def _with_page(answer: Answer, progress: Progress) -> Answer:
    """The answer, with its page in the study's folder, or a note on why there is none."""
    note = write_report_beside(answer)
    if note is None:
        return answer
    progress.note(note)
    return msgspec.structs.replace(answer, notes=(*answer.notes, note))


def _notes(preparation: Preparation, kept: StudyMarker, folder: StudyFolder) -> list[str]:
    """Notes for the user before anything is measured."""
    notes = list(preparation.notes)
    if kept.memory_limit_bytes > preparation.memory.limit_bytes:
        notes.append("less memory is free now than when this study began; its limit was kept")
    notes += notes_on_device(preparation.hardware)
    notes += notes_on_bytecode()
    if preparation.request.wait_idle_seconds is None:
        notes += notes_on_load(preparation.hardware)
    if aside := put_aside_damaged(folder.database):
        notes.append(
            f"{folder.database.name} was damaged: it is kept as {aside.name}, and is made anew from what was measured"
        )
    return notes


def _notes_if_too_large(stored: Answer, limit_bytes: int) -> list[str]:
    measurement = stored.recommendation.winner.measurement
    assert measurement is not None, "a winner is measured"
    peak, limit = measurement.memory.peak_bytes, format_bytes(limit_bytes)
    note = f"its peak of {format_bytes(peak)} is more than the {limit} that may be taken right now"
    return [note] if peak > limit_bytes else []


def _searched_enough(stored: Answer, request: TuneRequest) -> bool:
    """Whether a stored answer's search is enough for this request.

    It ended by itself with no smaller budget, and nothing it rests on failed by chance.
    """
    if not stored.complete or _rests_on_chance(stored):
        return False
    if request.wait_idle_seconds is not None and _not_reproduced(stored):
        return False
    if stored.exhausted and not (request.time_limit_seconds > stored.time_budget_seconds and _wants_time(stored)):
        return True
    return request.trials <= stored.trial_budget and request.time_limit_seconds <= stored.time_budget_seconds


def _wants_time(stored: Answer) -> bool:
    """Whether more time may tell more although everything was tried: of what took too long, or of a vague gain."""
    recommendation = stored.recommendation
    late = any(one.outcome is Outcome.TIMEOUT for one in recommendation.not_measured)
    confirmed = (one.confirmed for one in recommendation.ranking)
    return late or any(one is not None and one.low <= 1 < one.value for one in confirmed)


def _rests_on_chance(stored: Answer) -> bool:
    """Whether its baseline or confirmation took too long, or anything was killed from outside.

    These are run again. Another combination that took too long would do so every time.
    """
    recommendation = stored.recommendation
    ends = [one.outcome for one in recommendation.not_measured if one.role is Role.BASELINE]
    if recommendation.confirmation is not None:
        ends.append(recommendation.confirmation.outcome)
    # By combination: the batch that a trial was lost at need not be the one that it is measured at later.
    last = {(one.policy.combination_key, *one.model_size.items()): one.outcome for one in recommendation.not_measured}
    measured = {(one.policy.combination_key, *one.model_size.items()) for one in recommendation.ranking}
    # A candidate that was compared after it was lost, and then not timed, may not lead.
    lost = {key for key, outcome in last.items() if outcome is Outcome.LOST}
    return not lost <= measured or any(outcome.is_by_chance for outcome in ends)


def _not_reproduced(stored: Answer) -> bool:
    """Whether its wrapper ran far from its promise, or the promise is too unsteady to say much.

    Who asks to wait for an idle machine has it confirmed again.
    """
    confirmation = stored.recommendation.confirmation
    if confirmation is None or confirmation.kept is None:
        return False
    return not confirmation.as_promised or confirmation.is_unsteady


def _picks_alike(one: Goal, other: Goal) -> bool:
    return (one.price, one.usd_per_kilowatt_hour, one.preference) == (
        other.price,
        other.usd_per_kilowatt_hour,
        other.preference,
    )
