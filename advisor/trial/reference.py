"""Another training in a process of its own, which takes turns with the one that a trial measures.

The process is forked from the worker before anything ran there, and waits. It builds its training when it is first
asked for a turn, keeps it from trial to trial, and gives it back when a trial needs the room.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import time
from typing import NoReturn

import msgspec
import torch

from advisor.measure.typical import typical_seconds
from advisor.methods.training import Training
from advisor.problem.records import DamagedError, decode_record
from advisor.trial.bench import Bench
from advisor.trial.failure import AllocatorRefusals, failed_result
from advisor.trial.guardian import end_with_parent
from advisor.trial.prepared import Prepared, cuda_is_open
from advisor.trial.protocol import LineReader, encode_line
from advisor.trial.spec import TrialSpec

__all__ = ["NoReferenceError", "Reference"]

_MOST_STEPS = 200
"""In one turn."""

_LONGEST_ANSWER_SECONDS = 300.0
"""Beyond it the reference is given up; the limits of the trial itself are shorter as a rule."""


class NoReferenceError(Exception):
    """There is nothing to take turns with; its text says why."""


class _Load(msgspec.Struct, frozen=True, tag="load"):
    """Build the training, make no step."""

    number: int
    spec: TrialSpec


class _Turn(msgspec.Struct, frozen=True, tag="turn"):
    """Make steps for so many seconds, one at least."""

    number: int
    spec: TrialSpec
    seconds: float


class _Rest(msgspec.Struct, frozen=True, tag="rest"):
    """Give back what the training takes."""

    number: int


_Message = _Load | _Turn | _Rest


class _Answer(msgspec.Struct, frozen=True):
    """What the steps that were made take in the long run, 0 if none was; or why there is none.

    The number is that of the message: an answer that a trial did not wait for is not one to the next trial's question.
    """

    number: int
    step_seconds: float = 0.0
    failure: str = ""


class Reference:
    """The process, as the worker and the trials forked from it hold it.

    Args:
        prepared: What the worker has loaded and built, if it did.

    Raises:
        OSError: No process can be forked.
    """

    def __init__(self, prepared: Prepared | None = None) -> None:
        self._channel, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        worker = os.getpid()
        self.process = os.fork()
        if self.process == 0:
            self._channel.close()
            _serve(worker, theirs, prepared)
        theirs.close()
        self._reader = LineReader(self._channel.fileno())

    def load(self, spec: TrialSpec) -> None:
        """Have the training built meanwhile; whoever asks for a turn waits for it."""
        self._send(_Load(time.monotonic_ns(), spec))

    def turn(self, spec: TrialSpec, seconds: float) -> float:
        """Let it step for so many seconds.

        Args:
            spec: A trial of the reference's policy, at the batch to step with.
            seconds: How long; one step is made however long it takes.

        Returns:
            Seconds per step in the long run.

        Raises:
            NoReferenceError: It cannot.
        """
        return self._asked(_Turn(time.monotonic_ns(), spec, seconds)).step_seconds

    def rest(self) -> None:
        """Have it give back its memory."""
        with contextlib.suppress(NoReferenceError):
            self._asked(_Rest(time.monotonic_ns()))

    def end(self) -> None:
        """End the process; only the worker that forked it does."""
        self._channel.close()
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)

    def _send(self, message: _Message) -> None:
        try:
            self._channel.sendall(encode_line(message))
        except OSError as error:
            raise NoReferenceError(f"the process beside it is gone: {error.strerror}") from error

    def _asked(self, message: _Message) -> _Answer:
        self._send(message)
        deadline = time.monotonic() + _LONGEST_ANSWER_SECONDS
        while True:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._channel], [], [], left)[0]:
                raise NoReferenceError(f"no answer came within {_LONGEST_ANSWER_SECONDS:g} s")
            lines = None
            with contextlib.suppress(OSError):
                lines = self._reader.read()
            if lines is None:
                raise NoReferenceError("the process beside it has ended")
            try:
                answers: list[_Answer] = [decode_record(line, _Answer) for line in lines]
            except DamagedError as error:
                raise NoReferenceError(f"the process beside it says what nobody understands: {error}") from error
            for answer in answers:
                if answer.number == message.number and answer.failure:
                    raise NoReferenceError(answer.failure)
                if answer.number == message.number:
                    return answer


def _serve(worker: int, channel: socket.socket, prepared: Prepared | None) -> NoReturn:
    """In the forked process: answer until the worker goes away."""
    with contextlib.suppress(BaseException):
        end_with_parent(worker)
        if prepared is not None:
            torch.set_num_threads(prepared.threads)
        served = _Served(prepared)
        reader = LineReader(channel.fileno())
        while (lines := reader.read()) is not None:
            for line in lines:
                channel.sendall(encode_line(served.answer(decode_record(line, _Message))))
    os._exit(0)


class _Served:
    """What lives in the forked process."""

    def __init__(self, prepared: Prepared | None) -> None:
        self._prepared = prepared
        self._holding = contextlib.ExitStack()
        self._identity: object = None
        self._bench: Bench | None = None
        self._training: Training | None = None
        self._warm_at = 0

    def answer(self, message: _Message) -> _Answer:
        """Do what is asked."""
        if isinstance(message, _Rest):
            self._drop()
            return _Answer(message.number)
        spec = message.spec
        device = torch.device(spec.device)
        refusals = AllocatorRefusals(device)
        try:
            training, bench = self._loaded(spec)
            seconds = self._stepped(training, bench, message) if isinstance(message, _Turn) else 0.0
            return _Answer(message.number, seconds)
        except BaseException as error:  # SystemExit too, of the user's code
            self._drop()
            limit = spec.memory_limit_bytes
            failed = failed_result("", error, device=device, limit_bytes=limit, refusals=refusals)
            reason = f"the training beside it ended as {failed.outcome.value}: {failed.reason}"
            return _Answer(message.number, failure=reason)

    def _loaded(self, spec: TrialSpec) -> tuple[Training, Bench]:
        identity = (spec.workload.fingerprint, spec.policy.methods, spec.model_size, spec.seed, spec.device)
        if self._training is None or self._bench is None or identity != self._identity:
            self._drop()
            self._bench = Bench(spec, lambda text: None, AllocatorRefusals(torch.device(spec.device)), self._prepared)
            self._training = self._holding.enter_context(self._bench.training(spec.policy))
            self._identity = identity
        return self._training, self._bench

    def _stepped(self, training: Training, bench: Bench, turn: _Turn) -> float:
        policy = turn.spec.policy
        batches = bench.batches(policy.global_batch)
        training.micro_batch = policy.micro_batch
        if self._warm_at != policy.global_batch:
            bench.empty_cache()
            training.step(batches[0])
            bench.synchronize()
            self._warm_at = policy.global_batch
        seconds: list[float] = []
        while not seconds or (sum(seconds) < turn.seconds and len(seconds) < _MOST_STEPS):
            begin = time.perf_counter()
            training.step(batches[len(seconds) % len(batches)])
            bench.synchronize()
            seconds.append(time.perf_counter() - begin)
        return typical_seconds(seconds)

    def _drop(self) -> None:
        self._training = self._bench = self._identity = None
        self._warm_at = 0
        with contextlib.suppress(Exception):
            self._holding.close()
        self._holding = contextlib.ExitStack()
        gc.collect()
        if cuda_is_open():
            torch.cuda.empty_cache()
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl has not
        if trim is not None:
            trim(0)
