"""One tuning from request to answer: the order of everything."""

from __future__ import annotations

from pathlib import Path

import msgspec

from advisor.decide.answer import Answer, load_answer
from advisor.decide.candidate import Role
from advisor.errors import OutputFolderError
from advisor.goal import Goal, GoalKind
from advisor.hardware.detect import detect_hardware, list_devices
from advisor.hardware.hardware import DeviceKind
from advisor.hardware.price import resolve_price
from advisor.hardware.profiles import load_profiles
from advisor.report.progress import Progress
from advisor.search.space.requested_methods import check_asked_on, only_methods
from advisor.search.space.space_file import load_space
from advisor.search.study.storage import check_opens, check_storage, put_aside_damaged
from advisor.session.answer.emit import put_right
from advisor.session.budget import TimeBudget
from advisor.session.climb import SHARE_OF_CLIMBING_TRIAL
from advisor.session.request import TuneRequest
from advisor.session.setup.devices import choose_devices
from advisor.session.setup.limits import memory_budget
from advisor.session.setup.other_load import notes_on_load
from advisor.session.setup.preflight import check_foreseen
from advisor.session.setup.ranks import failing_together, launch_identity
from advisor.session.setup.same_model import what_has_changed
from advisor.session.setup.versions import versions
from advisor.session.study import check_folder, default_folders, locked, open_study, study_marker
from advisor.session.tuning import Tuning
from advisor.surroundings import check_working_folder, refused
from advisor.text.units import format_bytes
from advisor.trial.outcome import Outcome
from advisor.workload.missing_sizes import check_sizes

__all__ = ["run_session"]


def run_session(request: TuneRequest, progress: Progress) -> Answer:
    """Tune, or give the stored answer of an equal request back.

    Args:
        request: What to tune.
        progress: Told of everything that happens.

    Raises:
        UserError: A mistake that the user can fix.
        TrialError: Nothing could be measured, or nothing fits.
        KeyboardInterrupt: Interrupted before there was anything to answer with.
    """
    request.check()
    check_working_folder()
    launch = launch_identity()
    if request.storage is not None:
        check_storage(request.storage)
    if request.goal is GoalKind.BIGGER:
        check_sizes(request.source)
        budget = TimeBudget(request.time_limit_seconds, share_of_trial=SHARE_OF_CLIMBING_TRIAL)
    else:
        budget = TimeBudget(request.time_limit_seconds)
    space = load_space(request.search_space)
    if request.methods:
        space = only_methods(space, request.methods)
    devices = choose_devices(request, detect_hardware(request.device), list_devices())
    check_foreseen(request, space, devices.counts)
    hardware = devices.hardware
    check_asked_on(request.methods, hardware)
    memory = memory_budget(hardware, request.memory_limit_bytes)
    price = None
    if request.goal is GoalKind.CHEAPEST:
        price = resolve_price(request.price, load_profiles().get(hardware.profile or ""), device_name=hardware.name)
    # The devices that are meant, however they were said: without --gpus it depends on how many there are.
    on_devices = msgspec.structs.replace(request, gpu_counts=devices.counts)
    marker = study_marker(on_devices, hardware, versions(), space.canonical_text, memory.limit_bytes)

    if request.storage is not None:
        check_opens(request.storage)

    def in_folder(path: Path) -> Answer | None:
        """Tune into a folder; ``None`` if what is in it was measured of another model."""
        check_folder(path, marker)  # before locking: not even a lock file may appear in a folder that is not ours

        def announce_wait() -> None:
            progress.note(f"another process is tuning into {path}; waiting for its answer")

        with locked(path, on_wait=announce_wait if request.wait else None):
            folder, kept = open_study(path, marker)
            changed = what_has_changed(folder, request, progress)
            if changed and request.output is not None:
                raise OutputFolderError(
                    f"--output must be a new folder or this study's own, but {folder.path} was measured with other "
                    f"things that the model reads, or is: {', '.join(changed)}. Name another folder, or leave --output "
                    "out; nothing in this one was changed."
                )
            if changed:
                progress.note(f"{path} is not used: since then {', '.join(changed)} changed")
                return None
            notes = [*devices.notes, *memory.notes]
            goal = Goal(
                kind=request.goal,
                global_batch=request.global_batch,
                fidelity=request.fidelity or space.fidelity,
                memory_limit_bytes=kept.memory_limit_bytes,
                gpu_counts=devices.counts,
                machines=request.nodes.count,
                shares_memory=hardware.kind is DeviceKind.CPU,
                price=price,
                usd_per_kilowatt_hour=request.usd_per_kilowatt_hour,
                preference=request.preference,
                floor=request.floor,
            )
            stored = load_answer(folder)
            settled = stored if stored is not None and _searched_enough(stored, request) else None
            if settled is not None and _picks_alike(settled.goal, goal):
                put_notes = put_right(settled, kept.fingerprints, folder)
                if put_notes is not None:
                    settled = msgspec.structs.replace(settled, notes=(*settled.notes, *put_notes))
                    return _with_note_if_too_large(settled, memory.limit_bytes)
            if kept.memory_limit_bytes > memory.limit_bytes:
                notes.append("less memory is free now than when this study began; its limit was kept")
            notes += notes_on_load(hardware)
            try:
                if aside := put_aside_damaged(folder.database):
                    notes.append(
                        f"{folder.database.name} was damaged: it is kept as {aside.name}, and is made anew from what "
                        "was measured"
                    )
                tuning = Tuning(
                    request, goal, space, hardware, kept, folder, budget, progress, notes, memory.usable_bytes, settled
                )
                with failing_together(folder, launch), progress:
                    return tuning.run()
            except BrokenPipeError:
                raise  # whoever read our output is gone; the folder is all right
            except OSError as error:
                # The user's code runs in other processes: what fails here is our own reading and writing.
                raise refused(error, folder.path) from error
            finally:
                folder.clear_left_files()  # of workers that were killed

    if request.output is not None:
        answer = in_folder(request.output)
        assert answer is not None, "of one folder there is an answer or an error"
        return answer
    return next(answer for path in default_folders(marker) if (answer := in_folder(path)) is not None)


def _with_note_if_too_large(stored: Answer, limit_bytes: int) -> Answer:
    measurement = stored.recommendation.winner.measurement
    assert measurement is not None, "a winner is measured"
    peak = measurement.memory.peak_bytes
    if peak <= limit_bytes:
        return stored
    note = f"its peak of {format_bytes(peak)} is more than the {format_bytes(limit_bytes)} that may be taken right now"
    return msgspec.structs.replace(stored, notes=(*stored.notes, note))


def _searched_enough(stored: Answer, request: TuneRequest) -> bool:
    """Whether a stored answer's search is enough for this request.

    It had ended by itself with no smaller budget, and what it rests on not by chance.
    """
    if not stored.complete or _rests_on_chance(stored):
        return False
    if stored.exhausted:
        return True
    return request.trials <= stored.trial_budget and request.time_limit_seconds <= stored.time_budget_seconds


def _rests_on_chance(stored: Answer) -> bool:
    """Whether its baseline or its confirmation took too long, or whatever was tried was ended from outside.

    Both are run again, and so is what was ended. Another combination that took too long would do so again, every time.
    """
    recommendation = stored.recommendation
    ends = [one.outcome for one in recommendation.not_measured if one.role is Role.BASELINE]
    if recommendation.confirmation is not None:
        ends.append(recommendation.confirmation.outcome)
    last = {(one.policy.key, *one.model_size.items()): one.outcome for one in recommendation.not_measured}
    measured = {(one.policy.key, *one.model_size.items()) for one in recommendation.ranking}
    # What was compared after it had been lost, and then not timed, may not lead.
    lost = {key for key, outcome in last.items() if outcome is Outcome.LOST}
    return not lost <= measured or any(outcome.is_by_chance for outcome in ends)


def _picks_alike(one: Goal, other: Goal) -> bool:
    """Whether two goals of one study pick the same of what was measured."""
    return (one.price, one.usd_per_kilowatt_hour, one.preference) == (
        other.price,
        other.usd_per_kilowatt_hour,
        other.preference,
    )
