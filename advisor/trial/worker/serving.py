"""The worker's loop: take a request, run it, write its result file, report whether its memory was freed."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from pathlib import Path

import msgspec
import torch

from advisor.errors import OutputFolderError
from advisor.text.records import decode_record
from advisor.trial.folder import TrialFolder, writing
from advisor.trial.guardian import adopt_orphans
from advisor.trial.protocol import Answer, Finished, LineReader, Progress, Ready, Request, Unwritten, encode_line
from advisor.trial.spec import ComparedTrial, FidelityTrial, PairTrial, ProbeTrial, TimeTrial, TrialSpec
from advisor.trial.worker.forked_trial import end_children, end_like, run_forked
from advisor.trial.worker.imported_code import ImportedCode
from advisor.trial.worker.model_copy import ModelCopy
from advisor.trial.worker.partner import Partner
from advisor.trial.worker.partner_process import fork_partner
from advisor.trial.worker.prepared import Prepared, cuda_is_open, prepare, wants_process_of_its_own
from advisor.trial.worker.run_trial import run_trial

__all__ = ["print_into", "serve"]

_IN_ONE_PROCESS = (
    "the model's code starts threads or processes when it is loaded or built, so that trials share a process and take "
    "no turns: what one leaves behind may change the next one's time. If it started them in make_batch, each trial "
    "would have a process of its own"
)


def serve(requests: int, answers: int) -> None:
    """Run trials until the other end of ``requests`` is closed."""
    os.write(answers, encode_line(Ready()))
    worker = _Worker(answers)
    reader = LineReader(requests)
    while (lines := reader.read()) is not None:
        for line in lines:
            worker.serve(decode_record(line, Request))


class _Worker:
    """Runs trials, each in its own process where possible."""

    def __init__(self, answers: int) -> None:
        self._answers = answers
        self._prepared: Prepared | None = None
        self._partners: dict[str, Partner] = {}
        self._model_copy = ModelCopy()
        self._imported = ImportedCode()
        self._forks = self._is_new = True

    def serve(self, request: Request) -> None:
        try:
            print_into(TrialFolder(Path(request.folder)).log)
        except OutputFolderError as error:
            self._tell(Unwritten(reason=str(error)))
            return
        if self._forks and wants_process_of_its_own(request.spec):
            if self._prepared is None:
                self._tell(Progress(text="loading the model's code"))
                adopt_orphans()
                self._prepared = prepare(request.spec)
                self._forks = self._prepared is not None
            self._is_new = False
            if self._prepared is not None and self._run_forked(request, self._prepared):
                return
        elif self._is_new and _may_take_turns(request.spec):
            adopt_orphans()
            self._fork_partner("")
        self._is_new = False
        with self._imported.held(request.spec):
            self._run(request, None, self._partner_for(request.spec))

    def _fork_partner(self, methods: str) -> None:
        """Fork a process to alternate with trials, provided nothing has run in this one."""
        may = sys.platform == "linux" and not cuda_is_open() and threading.active_count() == 1
        if may and self._forks:
            with contextlib.suppress(OSError):
                self._partners[methods] = fork_partner(self._prepared)

    def _partner_for(self, spec: TrialSpec) -> Partner | None:
        """The process that alternates with a trial.

        Forked trials have one for each training that they are compared with, as methods may change process-wide
        settings. Elsewhere there is a single one, which makes its training anew.
        """
        alone = isinstance(spec, FidelityTrial | PairTrial) and self._prepared is None  # on a GPU
        if alone or (isinstance(spec, ComparedTrial) and spec.needs_all_memory):
            for partner in self._partners.values():
                partner.rest()
        if not isinstance(spec, ComparedTrial) or spec.beside is None:
            return None
        methods = spec.beside.combination_key
        if self._prepared is None:
            return next(iter(self._partners.values()), None)
        is_new = methods not in self._partners
        if is_new or isinstance(spec, TimeTrial):
            # Large batches need the memory of other partners. On a virtual machine, a new one builds its training in
            # memory that has just been freed several times as fast as in other memory.
            for other, partner in self._partners.items():
                if other != methods:
                    partner.rest()
        if is_new:
            self._fork_partner(methods)
        return self._partners.get(methods)

    def _run_forked(self, request: Request, prepared: Prepared) -> bool:
        """Run it in a forked process; return whether one could be forked."""
        partner = self._partner_for(request.spec)

        def work() -> None:
            torch.set_num_threads(prepared.threads)
            self._run(request, prepared, partner)

        try:
            status = run_forked(work)
        except OSError:
            # A trial in this process leaves threads behind, after which nothing can be forked.
            torch.set_num_threads(prepared.threads)
            self._forks = False
            return False
        end_children(but=[one.process for one in self._partners.values()])
        if status is not None:
            end_like(status)
        # Reported only now: how the process ends after its result must not affect the next trial.
        if TrialFolder(Path(request.folder)).result.exists():
            self._tell(Finished(key=request.spec.key, clean=True))
        return True

    def _run(self, request: Request, prepared: Prepared | None, partner: Partner | None) -> None:
        def tell(text: str) -> None:
            self._tell(Progress(text=text))

        try:
            result, leftover = run_trial(
                request.spec,
                tell,
                prepared=prepared,
                partner=partner,
                model_copy=self._model_copy if prepared is None else None,
            )
            if prepared is None and isinstance(request.spec, ProbeTrial) and wants_process_of_its_own(request.spec):
                result = msgspec.structs.replace(result, notes=(*result.notes, _IN_ONE_PROCESS))
            TrialFolder(Path(request.folder)).write_result(result)
        except OutputFolderError as error:
            self._tell(Unwritten(reason=str(error)))
            return
        if prepared is None:
            self._tell(Finished(key=result.key, clean=not leftover))

    def _tell(self, answer: Answer) -> None:
        os.write(self._answers, encode_line(answer))


def _may_take_turns(spec: TrialSpec) -> bool:
    """Whether this worker may need a partner process; once a GPU is open, none can be forked."""
    return (isinstance(spec, ComparedTrial) and spec.beside is not None) or torch.device(spec.device).type == "cuda"


def print_into(log: Path) -> None:
    """Redirect all output to this file, including that of C code and child processes.

    Raises:
        OutputFolderError: It cannot be opened.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with writing(log):
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
