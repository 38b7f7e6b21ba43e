"""The parent's side: run trials in a worker and always return an outcome, whatever the worker does."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar, cast

import msgspec

from advisor.errors import OutputFolderError
from advisor.text.records import encode_record
from advisor.trial.folder import StudyFolder, TrialFolder, write_atomically, writing
from advisor.trial.host_memory import OutOfMemoryEvidence
from advisor.trial.nodes import Nodes
from advisor.trial.outcome import Outcome, how_it_ended, outcome_without_result
from advisor.trial.process.connection import WORKER_COMMAND, Connection, SilenceError
from advisor.trial.process.starting import WorkerStarter
from advisor.trial.protocol import Exited, Finished, Progress, Ready, Request, Unwritten
from advisor.trial.result import Result
from advisor.trial.spec import ConfirmTrial, ProbeTrial, Trial, TrialSpec

__all__ = ["CutShortError", "Runner"]

_R = TypeVar("_R", bound=Result)

_LOOK_SECONDS = 1.0
_LOG_TAIL_BYTES = 8192


class CutShortError(Exception):
    """The caller's deadline passed before the trial had a result."""


class Runner:
    """Runs trials one at a time in a warm worker (or group of ranks) as long as it stays healthy.

    Use as a context manager: no process is left running at its end.

    Args:
        folder: The study folder.
        tell: Called with a few words about what happens, for a live display.
        worker_command: Program that speaks the worker's protocol.
        nodes: The machines for trials on several ranks; this is the first.
        start_limit_seconds: How long a worker may take to load its libraries.
        shortest_start_limit_seconds: Minimum time for ranks to connect, however short their trial: unlike forked
            processes they have to load the libraries, perhaps on a busy machine.
    """

    def __init__(
        self,
        folder: Path,
        *,
        tell: Callable[[str], None] = lambda words: None,
        worker_command: Sequence[str] = WORKER_COMMAND,
        nodes: Nodes = Nodes(),  # noqa: B008  (frozen)
        start_limit_seconds: float = 120.0,
        shortest_start_limit_seconds: float = 20.0,
    ) -> None:
        self._folder = StudyFolder(folder.absolute())
        self._tell = tell
        self._starter = WorkerStarter(worker_command)
        self._start_limit_seconds = start_limit_seconds
        self._shortest_start_limit_seconds = shortest_start_limit_seconds
        self._connection: Connection | None = None
        self._nodes = nodes
        self._ranks = 1
        self._ended: set[str] = set()
        self.spent: dict[type[Trial[Any]], list[float]] = {}
        """Kind of trial -> seconds of each trial that was run, not read back."""

    def __enter__(self) -> Runner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the worker, if there is one."""
        self._end_worker()
        self._starter.close()

    def run(self, spec: Trial[_R], *, until: float = math.inf) -> _R:
        """Run a trial, or return its stored result if it has already finished.

        A trial that ended by chance is rerun once per runner.

        Args:
            spec: The trial.
            until: Deadline on the clock of ``time.monotonic``. It does not change the trial's own time limit.

        Returns:
            The result; failures inside the trial are outcomes, never exceptions.

        Raises:
            KeyboardInterrupt: The user interrupted; the worker is ended, and no incomplete result is stored.
            CutShortError: The deadline passed first; the worker is ended, and nothing is stored.
            OutputFolderError: The study folder cannot be written.
        """
        assert not isinstance(spec, ProbeTrial) or spec.policy.gpu_count == 1, "one process alone learns the facts"
        folder = self._folder.trial(spec.key)
        with writing(folder.path):
            stored = folder.finished(spec)
        if stored is not None and (spec.key in self._ended or not stored.outcome.is_by_chance):
            return stored
        _clear(folder, spec)
        fresh = isinstance(spec, ConfirmTrial)
        if fresh or self._ranks != spec.ranks:
            self._end_worker()
        begin = time.monotonic()
        warm = self._connection is not None

        def completed(result: _R) -> _R:
            return msgspec.structs.replace(
                result, wall_seconds=time.monotonic() - begin, ended_at=time.time(), warm=warm
            )

        try:
            failure = self._request(spec, folder, until)
            result, reusable = self._wait(spec, folder, until) if failure is None else (failure, False)
        except BaseException as error:
            # Mostly Ctrl-C. The worker may just have finished, and finished results are kept: the old result was
            # removed before this request was written, so a complete one belongs to it.
            self._end_worker()
            complete = folder.read_result(spec)
            if complete is None or complete.key != spec.key:
                folder.result.unlink(missing_ok=True)
            else:
                with contextlib.suppress(OutputFolderError):  # the worker's version is good enough
                    folder.write_result(completed(complete))
                if isinstance(error, CutShortError):
                    return completed(complete)
            raise
        result = completed(result)
        self.spent.setdefault(type(spec), []).append(result.wall_seconds)
        if not reusable or fresh:
            self._end_worker()
        if failure is None:  # a worker that does not start is not the trial's fault
            folder.write_result(result)
            self._ended.add(spec.key)
        return result

    def gradient_file(self, key: str) -> Path:
        """The file of a reference run's first gradient."""
        return self._folder.trial(key).gradient

    def tail_of_log(self, key: str, lines: int = 20) -> str:
        """The last lines printed by a trial; empty if it printed nothing."""
        try:
            with self._folder.trial(key).log.open("rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def _request(self, spec: Trial[_R], folder: TrialFolder, until: float) -> _R | None:
        """Send the trial to a worker, started if necessary; return a result only if none starts."""
        request = Request(spec=cast("TrialSpec", spec), folder=str(folder.path))
        if self._connection is not None:
            with contextlib.suppress(BrokenPipeError):
                self._connection.send(request)
                return None
            self._end_worker()  # it ended between trials, and this one has not started
        failure = self._start(spec, folder, until)
        if self._connection is not None and failure is None:
            with contextlib.suppress(BrokenPipeError):  # how it ended is received next
                self._connection.send(request)
        return failure

    def _start(self, spec: Trial[_R], folder: TrialFolder, until: float) -> _R | None:
        """Start a worker; return a result only if that failed."""
        self._tell("starting")
        self._ranks = spec.ranks
        ranks = (f"--ranks={self._ranks}", *self._nodes.flags()) if self._ranks > 1 else ()
        limit = self._start_limit_seconds
        if self._ranks > 1:  # ranks that cannot connect use no more time than their trial may
            limit = min(limit, max(self._shortest_start_limit_seconds, spec.time_limit_seconds))
        deadline = time.monotonic() + limit
        try:
            start = self._starter.starting(ranks, min(limit, until - time.monotonic()))
            self._connection = connection = Connection(start, folder.log)
            answer = connection.receive(min(deadline, until))
        except (SilenceError, TimeoutError):
            if time.monotonic() >= until:
                raise CutShortError from None
            reason = f"the worker did not start within {limit:g} s"
            if self._ranks > 1 and self._nodes.count > 1:
                reason += (
                    f"; do all of the other {self._nodes.count - 1} machines run the same command with a --node-rank "
                    f"of their own, and do they reach {self._nodes.endpoint}?"
                )
            return spec.ended(Outcome.TIMEOUT, reason)
        if isinstance(answer, Ready):
            return None
        assert isinstance(answer, Exited), f"a worker that starts says so first, but it said {answer}"
        reason = f"the worker did not start: it {how_it_ended(answer.status)}; see {folder.log}"
        return spec.ended(Outcome.LOST, reason)

    def _wait(self, spec: Trial[_R], folder: TrialFolder, until: float) -> tuple[_R, bool]:
        """The result, and whether the worker can be used again."""
        assert self._connection is not None, "a worker that has started is connected"
        evidence = OutOfMemoryEvidence()
        deadline = time.monotonic() + spec.time_limit_seconds
        while True:
            now = time.monotonic()
            if now >= until:
                raise CutShortError
            if now >= deadline:
                reason = f"it took longer than its limit of {round(spec.time_limit_seconds, 1):g} s"
                return spec.ended(Outcome.TIMEOUT, reason), False
            evidence.look()
            try:
                answer = self._connection.receive(min(deadline, until, now + _LOOK_SECONDS))
            except SilenceError:
                continue
            match answer:
                case Progress(text=text):
                    self._tell(text)
                case Finished(key=key, clean=clean) if key == spec.key:
                    result = folder.read_result(spec)
                    return (result, clean) if result is not None else (self._crashed(spec, 0, evidence), False)
                case Unwritten(reason=reason):
                    raise OutputFolderError(reason)
                case Exited(status=status):
                    # Its result counts if it was complete before the worker ended.
                    return folder.read_result(spec) or self._crashed(spec, status, evidence), False
                case _:
                    raise AssertionError(f"a worker at work on {spec.key} must not say {answer}")

    def _crashed(self, spec: Trial[_R], status: int, evidence: OutOfMemoryEvidence) -> _R:
        if status == -signal.SIGKILL and evidence.found():
            reason = "the kernel ended the worker because host memory ran out"
            return spec.ended(Outcome.HOST_OUT_OF_MEMORY, reason)
        return spec.ended(outcome_without_result(status), f"the worker {how_it_ended(status)} without a result")

    def _end_worker(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end()


def _clear(folder: TrialFolder, spec: Trial[Any]) -> None:
    """Prepare the folder for a new attempt.

    The old result is removed first: it must never be read together with the new request.
    """
    with writing(folder.path):
        folder.path.mkdir(parents=True, exist_ok=True)
        folder.result.unlink(missing_ok=True)
        folder.log.unlink(missing_ok=True)
    write_atomically(folder.spec, msgspec.json.format(encode_record(spec)))
