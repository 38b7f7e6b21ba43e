"""The code of the partner process, which alternates with trials: it builds its training at the first turn."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import itertools
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from advisor.measure.page_faults import page_faults
from advisor.measure.typical import typical_seconds
from advisor.policy.policy import Policy
from advisor.text.records import decode_record
from advisor.training.batch.tree import leaves_of
from advisor.training.training import Training
from advisor.trial.guardian import end_with_parent
from advisor.trial.protocol import LineReader, encode_line
from advisor.trial.spec import ComparedSpec
from advisor.trial.worker.alternate import turn
from advisor.trial.worker.bench import Bench, until_updated
from advisor.trial.worker.failure import AllocatorRefusals, failed_result
from advisor.trial.worker.model_copy import ModelCopy
from advisor.trial.worker.partner import Answer, Message, Partner
from advisor.trial.worker.prepared import Prepared, cuda_is_open

__all__ = ["fork_partner"]


def fork_partner(prepared: Prepared | None, join: Callable[[], None] | None = None) -> Partner:
    """Fork the partner process from this worker, in which nothing has run.

    Args:
        prepared: What was loaded and built before.
        join: Makes the process a rank of a group, once it is to train on several devices.

    Raises:
        OSError: No process can be forked.
    """
    return Partner(functools.partial(_serve, prepared, join))


def _serve(prepared: Prepared | None, join: Callable[[], None] | None, worker: int, channel: socket.socket) -> NoReturn:
    """In the forked process: answer until the worker goes away."""
    with contextlib.suppress(BaseException):
        end_with_parent(worker)
        if prepared is not None:
            torch.set_num_threads(prepared.threads)
        served = _Served(prepared, join)
        reader = LineReader(channel.fileno())
        while not served.is_lost and (lines := reader.read()) is not None:
            for line in lines:
                channel.sendall(encode_line(served.answer(decode_record(line, Message))))
    os._exit(0)


class _Served:
    """What lives in the forked process."""

    def __init__(self, prepared: Prepared | None, join: Callable[[], None] | None) -> None:
        self._prepared = prepared
        self._model_copy = ModelCopy()
        self._join = join
        self._joined = False
        self.is_lost = False
        """Whether other ranks wait for a step that never comes; they notice the end of this process."""
        self._holding = contextlib.ExitStack()
        self._identity: object = None
        self._bench: Bench[Any] | None = None
        self._training: Training | None = None
        self._warm_at = 0

    def answer(self, message: Message) -> Answer:
        spec = message.spec
        if spec is None:
            self._drop()
            return Answer(message.number)
        refusals = AllocatorRefusals(torch.device(spec.device))
        try:
            training, bench = self._loaded(spec)
            if message.seconds is None:
                return Answer(message.number)
            return Answer(message.number, *self._stepped(training, bench, spec.policy, message.seconds))
        except BaseException as error:  # SystemExit too, of the user's code
            self._drop()
            self.is_lost = self._joined
            failed = failed_result(spec, error, refusals=refusals)
            reason = f"the training beside it ended as {failed.outcome.value}: {failed.reason}"
            return Answer(message.number, failure=reason)

    def _loaded(self, spec: ComparedSpec) -> tuple[Training, Bench[Any]]:
        identity = (spec.workload.fingerprint, spec.policy.methods, spec.model_size, spec.seed, spec.device)
        if self._training is None or self._bench is None or identity != self._identity:
            self._drop()
            if spec.policy.gpu_count > 1 and not self._joined:
                assert self._join is not None, "a rank's partner can join the others"
                self._joined = True
                self._join()
            refusals = AllocatorRefusals(torch.device(spec.device))
            self._bench = Bench(spec, lambda text: None, refusals, prepared=self._prepared, model_copy=self._model_copy)
            self._training = self._holding.enter_context(self._bench.training(spec.policy))
            self._identity = identity
        return self._training, self._bench

    def _stepped(
        self, training: Training, bench: Bench[Any], policy: Policy, seconds: float
    ) -> tuple[float, float | None]:
        """Seconds and page faults per step."""
        batches = bench.data.batches(policy.global_batch)
        following = itertools.cycle(batches)

        def step() -> None:
            training.step(next(following))
            bench.synchronize()

        training.micro_batch = policy.micro_batch
        if self._warm_at != policy.global_batch:
            bench.empty_cache()
            # What sets itself up, or is compiled for other shapes, is no part of a turn. All ranks step equally often.
            shapes = bench.world.agreed(_different(batches))
            for batch in (*[batches[0]] * (0 if self._warm_at else training.settling_steps), *batches[:shapes]):
                until_updated(training, functools.partial(training.step, batch), bench.world.agreed)
                bench.synchronize()
            self._warm_at = policy.global_batch
        before = page_faults()
        taken = turn(step, seconds, agree=bench.world.agreed)
        after = page_faults()
        faults = None if before is None or after is None else (after - before) / len(taken)
        return typical_seconds(taken), faults

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


def _different(batches: Sequence[Any]) -> int:
    """How many layouts there are: tensors may differ in length, as where samples are padded to the longest."""
    return len({tuple((leaf.path, leaf.shape) for leaf in leaves_of(batch)) for batch in batches})
