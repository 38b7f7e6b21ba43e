"""Whether a study's measurements still hold: nothing that the model reads, and nothing that it is, has changed."""

from __future__ import annotations

import os
from collections.abc import Callable

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
from advisor.trial.result import LookResult, ProbeResult
from advisor.trial.spec import LookTrial
from advisor.workload.code.fingerprint import digest_of
from advisor.workload.difference import Difference, Weight
from advisor.workload.identity import Identity, ModelIdentity
from advisor.workload.workload import WorkloadSource

__all__ = ["OF_ANOTHER_STUDY", "identity_in", "keep_identity", "look_at_model", "model_of", "what_has_changed"]

OF_ANOTHER_STUDY = (Weight.STALE, Weight.READ)
"""What begins another study: a value that is read may decide what a step does, where nothing of the model shows it."""

_SECONDS = 300.0
"""For a start that imports and builds; one that takes longer says nothing."""


def keep_identity(folder: StudyFolder, probed: ProbeResult, source: WorkloadSource) -> None:
    """Write down what the measurements hold for, once."""
    if probed.reads is not None and not folder.identity.exists():
        identity = Identity.of(probed.reads, probed.identity, source)
        write_atomically(folder.identity, msgspec.json.format(encode_record(identity)))


def identity_in(folder: StudyFolder) -> Identity | None:
    """What the measurements of a study hold for; ``None`` where nobody has looked."""
    return read_record(folder.identity, Identity)


def what_has_changed(folder: StudyFolder, request: TuneRequest, progress: Progress) -> list[Difference]:
    """What differs from the time at which a study began.

    Variables, files and versions are looked at here; if nothing there makes it another study, a short start builds the
    model.

    Raises:
        WorkloadError: The model can no longer be imported or built.
    """
    known = identity_in(folder)
    if known is None:
        # Measurements without the identity they belong to: a damaged file.
        return [Difference(subject="identity.json", now="cannot be read")] if folder.ledger.exists() else []
    changes = known.changes(request.source.root)
    if any(one.weight in OF_ANOTHER_STUDY for one in changes) or known.model is None or _looked_at(folder):
        return changes
    progress.note("checking whether the model is still the same")
    result = look_at_model(request.source, request.seed, known.model)
    if result.identity is not None:
        found = known.model.differences(result.identity)
        if not found and launch_identity() is not None:
            os.utime(folder.identity)  # for the other ranks of this launch
        return changes + found
    if result.outcome is Outcome.FAILED:
        raise WorkloadError(f"the model was built before, and no longer can be: {result.reason}", result.traceback_text)
    return changes


def look_at_model(
    source: WorkloadSource, seed: int, known: ModelIdentity, tell: Callable[[str], None] = lambda words: None
) -> LookResult:
    """Build a model in a worker, and say what it is.

    It is built without memory first. Where that cannot be done, or shows a difference from what is ``known``, it is
    built for real, in another process.
    """
    for on_meta in (True, False):
        look = LookTrial(
            workload=source,
            policy=Policy(micro_batch=2),
            device="cpu",  # a model is built there, wherever it is trained
            memory_limit_bytes=2**62,
            seed=seed,
            on_meta=on_meta,
            measure_seconds=_SECONDS,
            time_limit_seconds=_SECONDS,
        )
        with PrivateFolder("look") as apart, Runner(apart, tell=tell) as runner:
            result = runner.run(look)  # nothing of it is the study's
        if result.outcome is not Outcome.OK or (result.identity and not known.differences(result.identity)):
            break
    return result


def model_of(folder: StudyFolder) -> str:
    """Digest of what a study's model is; empty where nobody has looked."""
    known = identity_in(folder)
    if known is None or known.model is None:
        return ""
    return digest_of(known.model.structure, *(f"{name} {one}" for name, one in known.model.batch.items()))


def _looked_at(folder: StudyFolder) -> bool:
    """Whether another rank of this launch has looked, or measured, since they were all started."""
    return launch_identity() is not None and folder.identity.stat().st_mtime > psutil.Process().create_time()
