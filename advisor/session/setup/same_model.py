"""Whether a study's measurements still hold: nothing that the model reads, and nothing that it is, has changed."""

from __future__ import annotations

import os

import msgspec
import psutil

from advisor.errors import WorkloadError
from advisor.files import PrivateFolder
from advisor.policy.policy import Policy
from advisor.report.progress import Progress
from advisor.session.request import TuneRequest
from advisor.session.setup.ranks import launch_identity
from advisor.text.records import encode_record, read_record
from advisor.trial.folder import StudyFolder, write_atomically
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.result import ProbeResult
from advisor.trial.spec import LookTrial
from advisor.workload.fingerprint import digest_of
from advisor.workload.identity import Identity

__all__ = ["keep_identity", "model_of", "what_has_changed"]

_SECONDS = 300.0
"""For a start that imports and builds; one that takes longer says nothing."""


def keep_identity(folder: StudyFolder, probed: ProbeResult) -> None:
    """Write down what the measurements hold for, once."""
    if probed.reads is not None and not folder.identity.exists():
        identity = Identity.of(probed.reads, probed.identity)
        write_atomically(folder.identity, msgspec.json.format(encode_record(identity)))


def what_has_changed(folder: StudyFolder, request: TuneRequest, progress: Progress) -> list[str]:
    """What differs from the time at which a study began, in words.

    Variables, files and versions are looked at here; where they are the same, a short start builds the model.

    Raises:
        WorkloadError: The model can no longer be imported or built.
    """
    known = _known(folder)
    if known is None:
        # Measurements without the identity they belong to: a damaged file.
        return ["nobody can tell, since identity.json cannot be read"] if folder.ledger.exists() else []
    changes = known.changes()
    if changes or known.model is None:
        return changes
    if _looked_at(folder):
        return []
    progress.note("looking whether the model is what it was")
    look = LookTrial(
        workload=request.source,
        policy=Policy(micro_batch=2),
        device="cpu",  # a model is built there, wherever it is trained
        memory_limit_bytes=2**62,
        seed=request.seed,
        measure_seconds=_SECONDS,
        time_limit_seconds=_SECONDS,
    )
    with PrivateFolder("look") as apart, Runner(apart) as runner:
        result = runner.run(look)  # nothing of it is the study's
    if result.identity is not None:
        changes = known.changes_of_model(result.identity)
        if not changes and launch_identity() is not None:
            os.utime(folder.identity)  # for the other ranks of this launch
        return changes
    if result.outcome is Outcome.FAILED:
        raise WorkloadError(f"the model was built before, and no longer can be: {result.reason}", result.traceback_text)
    return []


def model_of(folder: StudyFolder) -> str:
    """Digest of what a study's model is; empty where nobody has looked."""
    known = _known(folder)
    if known is None or known.model is None:
        return ""
    return digest_of(
        known.model.model, known.model.batches, *(f"{name} {one}" for name, one in known.model.libraries.items())
    )


def _known(folder: StudyFolder) -> Identity | None:
    return read_record(folder.identity, Identity)


def _looked_at(folder: StudyFolder) -> bool:
    """Whether another rank of this launch has looked, or measured, since they were all started."""
    return launch_identity() is not None and folder.identity.stat().st_mtime > psutil.Process().create_time()
