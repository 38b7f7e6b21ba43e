"""Tune what a trainer holds: the model, data, optimizer and loss of a Hugging Face Trainer, or of a LightningModule."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advisor.api import Answer, tune
from advisor.errors import OptionError
from advisor.files import write_whole
from advisor.methods.setting import use
from advisor.policy.file import PolicyFile, policy_source
from advisor.policy.policy import Policy
from advisor.report.progress import LoggingProgress
from advisor.surroundings import refused
from advisor.text.units import format_count
from advisor.trainers.handover import Handover, write_handover
from advisor.trainers.longest_samples import Longest, longest_samples
from advisor.trainers.taken import Taken
from advisor.workload.importing import refuse_while_importing
from advisor.workload.workload import FUNCTIONS

if TYPE_CHECKING:
    import torch

__all__ = ["tune_lightning", "tune_trainer"]

_KEPT = 64
"""Longest samples that are handed over, unless a batch of the trainer is larger."""


def tune_trainer(trainer: Any, *, goal: str = "faster", **options: Any) -> Answer:
    """Measure which policy to train with, for a ``transformers.Trainer`` or a subclass, before ``train()``.

    Taken from the Trainer: the model with its weights, collator, optimizer (class, settings and groups), loss
    (``compute_loss`` of a subclass, ``compute_loss_func``, label smoothing) and ``max_grad_norm``. The baseline is what
    it does today: the batch per device, accumulation (whose samples per optimizer step are kept), ``bf16``, ``fp16``,
    ``tf32``, checkpointing and ``torch_compile`` of its arguments; what else of them changes a step is named. Batches
    are made of the longest samples of ``train_dataset``, so that what fits here fits whatever comes: of a data set with
    more than 20,000, among as many drawn at random.

    The Trainer stays as it is; a model on a GPU is on the host while trials run.

    Args:
        trainer: The Trainer.
        goal: As for :func:`advisor.tune`.
        options: Its other keywords, but for the model and the functions.

    Raises:
        OptionError: A keyword does not belong here.
        WorkloadError: The Trainer has no training data, data without a length, a model without weights, or something
            that cannot be handed to other processes.
        TrialError: Nothing could be measured, or nothing fits.
    """
    refuse_while_importing("advisor.tune_trainer")
    from advisor.trainers._from_transformers import taken_from_transformers

    return _tuned(taken_from_transformers(trainer), "advisor.tune_trainer", {"goal": goal, **options})


def tune_lightning(
    module: Any, data: Any = None, *, trainer: Any = None, goal: str = "faster", **options: Any
) -> Answer:
    """Measure which policy to train with, for a LightningModule, before ``fit()``.

    Taken from the module: its weights, ``training_step`` as the loss, and the optimizer of ``configure_optimizers``.
    Batches are made of the longest samples of the training data, as for :func:`tune_trainer`, and the batch size is
    that of its ``DataLoader``.

    Args:
        module: The module; it is optimized automatically, with one optimizer.
        data: A data module, or the ``DataLoader`` of the training data; default: the module's ``train_dataloader``.
        trainer: The Trainer, for its precision, ``accumulate_grad_batches``, ``gradient_clip_val`` and device.
        goal: As for :func:`advisor.tune`.
        options: Its other keywords, but for the model and the functions.

    Raises:
        OptionError: A keyword does not belong here.
        WorkloadError: There is no training data, data without a length, a module without weights, or something that
            cannot be handed to other processes.
        TrialError: Nothing could be measured, or nothing fits.
    """
    refuse_while_importing("advisor.tune_lightning")
    from advisor.trainers._from_lightning import taken_from_lightning

    return _tuned(taken_from_lightning(module, data, trainer), "advisor.tune_lightning", {"goal": goal, **options})


def _tuned(taken: Taken, call: str, options: dict[str, Any]) -> Answer:
    wrong = [name for name in ("model", *FUNCTIONS) if options.get(name) is not None]
    if wrong:
        raise OptionError(f"{call} takes {' and '.join(wrong)} from what it is given. Leave out {', '.join(wrong)}.")
    progress = options.get("progress") or LoggingProgress()
    longest = longest_samples(taken.dataset, max(_KEPT, 2 * taken.batch_size))
    progress.note(_words(longest))
    for setting in taken.unsaid:
        progress.note(f"{setting} is not measured")
    given = Handover(
        model=taken.model,
        samples=longest.samples,
        collate=taken.collate,
        build_optimizer=taken.build_optimizer,
        compute_loss=taken.compute_loss,
    )
    constants = {"BATCH_SIZE": taken.batch_size, "MAX_GRAD_NORM": taken.max_grad_norm}
    path = write_handover(_folder(options.get("output")), given, call=call, constants=constants)
    if taken.device is not None:
        options.setdefault("device", taken.device)
    devices = _one_number(options.get("gpus"))
    if taken.own or taken.accumulation_steps > 1:
        options.setdefault("baseline", str(_written_baseline(taken, path.parent, call, devices)))
    with _on_host(taken.model):
        return tune(path, **{**options, "progress": progress})


def _words(longest: Longest) -> str:
    among = f"{longest.looked_at:,} of {longest.total:,}" if longest.looked_at < longest.total else "all"
    return (
        f"batches are made of the longest samples (the longest has {format_count(longest.size, 'number')}), found "
        f"among {among} samples of the training data"
    )


def _one_number(gpus: Any) -> int:
    """The number of devices that is asked for, if it is a single one above 1; else 1."""
    return int(gpus) if isinstance(gpus, int | str) and str(gpus).isdecimal() and int(gpus) > 1 else 1


def _written_baseline(taken: Taken, folder: Path, call: str, devices: int) -> Path:
    """A policy file of what the trainer does today, which is what is compared with."""
    ways = (use("ddp", bucket_views=False, static_graph=False),) if devices > 1 else ()
    policy = Policy(
        methods=tuple(sorted((*taken.own, *ways), key=lambda one: one.name)),
        micro_batch=taken.batch_size,
        accumulation_steps=taken.accumulation_steps,
        gpu_count=devices,
    )
    path = folder / "own-settings.yaml"
    try:
        write_whole(path, policy_source(PolicyFile(policy=policy), header=f"What was set where {call} was called."))
    except OSError as error:
        raise refused(error, folder) from error
    return path


def _folder(output: Any) -> Path:
    """Where a model is handed over: beside the output, which holds nothing else."""
    if output is None:
        return Path("momadvise-runs") / "models"
    path = Path(output)
    return path.with_name(f"{path.name}-model")


@contextlib.contextmanager
def _on_host(model: torch.nn.Module) -> Generator[None, None, None]:
    """Move a model off its GPU, whose memory the trials need."""
    import torch

    device = next((one.device for one in model.parameters() if one.is_cuda), None)
    if device is None:
        yield
        return
    model.to("cpu")
    torch.cuda.empty_cache()
    try:
        yield
    finally:
        model.to(device)
