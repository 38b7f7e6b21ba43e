"""The worker's loop: take a request, run it, write its result file, say whether memory is back where it was."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch

from advisor.errors import OutputFolderError
from advisor.trial.folder import TrialFolder, writing
from advisor.trial.protocol import Finished, LineReader, Progress, Ready, Request, Unwritten, encode_line
from advisor.trial.work import run_trial

__all__ = ["print_into", "serve", "settings_kept"]


def serve(requests: int, answers: int) -> None:
    """Run trials until the other end of ``requests`` is closed.

    Args:
        requests: Descriptor to read requests from.
        answers: Descriptor to write answers to.
    """

    def tell(text: str) -> None:
        os.write(answers, encode_line(Progress(text=text)))

    os.write(answers, encode_line(Ready()))
    reader = LineReader(requests)
    while (lines := reader.read()) is not None:
        for line in lines:
            request = msgspec.json.decode(line, type=Request)
            folder = TrialFolder(Path(request.folder))
            try:
                print_into(folder.log)
                with settings_kept():
                    result, leftover = run_trial(request.spec, tell)
                folder.write_result(result)
            except OutputFolderError as error:  # run_trial raises nothing: this is ours, and no fault of the trial
                os.write(answers, encode_line(Unwritten(reason=str(error))))
                continue
            os.write(answers, encode_line(Finished(key=result.key, clean=not leftover, why=leftover)))


def print_into(log: Path) -> None:
    """From here on, what anything prints (also from C, also in processes of its own) goes to this file.

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


@contextlib.contextmanager
def settings_kept() -> Iterator[None]:
    """Undo the process-wide settings that a user's code may leave changed, so that the next trial starts as this one.

    The folder is kept because result paths and the workload's may be relative to it.
    """
    folder = os.getcwd()
    dtype = torch.get_default_dtype()
    gradients = torch.is_grad_enabled()
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        os.chdir(folder)
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
