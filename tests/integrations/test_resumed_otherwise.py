"""A checkpoint that is resumed under another policy goes on, or is refused in a sentence that says what to do."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from advisor.errors import PolicyError
from advisor.integrations import accelerate, hf
from advisor.integrations.lightning import PolicyStrategy
from advisor.methods.setting import MethodSetting, use
from tests.integrations.small import SAMPLES, adamw, batch, model, policy_of, rows, trainer
from tests.methods.tiny import import_bitsandbytes

Settings = tuple[MethodSetting, ...]

OTHERWISE: dict[str, tuple[Settings, Settings, str]] = {
    "lora": ((use("lora", rank=8),), (), r"has parameter groups of \[\d+\] tensors, .* has groups of \[\d+\]"),
    "muon": ((), (use("muon"),), r"parameter groups of \[\d+\] tensors, .* has groups of \[\d+, \d+\]"),
    "adafactor": ((), (use("adafactor"),), r"options amsgrad, betas, .*\(Adafactor\) has beta2_decay, d"),
    "adam_8bit": ((use("adam_8bit"),), (), r"options alpha, .*\(AdamW\) has amsgrad, "),
}
"""Case -> what was saved, what goes on, and what is said of it."""
FIX = r".*Apply the policy that the checkpoint was saved under, or load its model alone"


class Language(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def configure_optimizers(self) -> Any:
        return adamw(self.parameters())


def in_trainer(settings: Settings, folder: Path, saved: bool) -> None:
    own = trainer(folder, max_steps=2 if saved else 1, save_strategy="steps", save_steps=1)
    training = hf.attach(own, policy_of(*settings), build_optimizer=adamw)
    try:
        own.train(resume_from_checkpoint=str(folder / "checkpoint-1") if saved else None)
    finally:
        training.close()


def in_loop(settings: Settings, folder: Path, saved: bool) -> None:
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(model(), policy_of(*settings), accelerator=accelerator, build_optimizer=adamw)
    try:
        if saved:
            accelerator.load_state(str(folder))
        for part in (0, 2):
            accelerator.backward(prepared.forward({name: rows[part : part + 2] for name, rows in batch(0).items()}))
        prepared.optimizer.step()
        prepared.optimizer.zero_grad()
        accelerator.save_state(str(folder))
    finally:
        prepared.training.close()


def in_lightning(settings: Settings, folder: Path, saved: bool) -> None:
    path = folder / "last.ckpt"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
        own = Trainer(
            strategy=PolicyStrategy(policy_of(*settings)),
            accelerator="cpu",
            devices=1,
            max_steps=2 if saved else 1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        samples: Any = rows()[:SAMPLES]
        given = {"ckpt_path": path, "weights_only": False} if saved else {}
        own.fit(Language(), DataLoader(samples, batch_size=SAMPLES), **given)
        own.save_checkpoint(path)


LOOPS = [in_trainer, in_loop, in_lightning]


@pytest.mark.parametrize("case", OTHERWISE)
@pytest.mark.parametrize("run", LOOPS, ids=lambda run: run.__name__)
def test_an_optimizer_of_another_kind_or_other_parameters_is_refused(
    run: Callable[..., None], case: str, tmp_path: Path
) -> None:
    if case == "adam_8bit":
        import_bitsandbytes()
    before, now, words = OTHERWISE[case]
    run(before, tmp_path, saved=False)
    with pytest.raises(PolicyError, match=words + FIX):
        run(now, tmp_path, saved=True)


@pytest.mark.parametrize("run", LOOPS, ids=lambda run: run.__name__)
def test_methods_that_leave_the_optimizer_alone_may_change(run: Callable[..., None], tmp_path: Path) -> None:
    run((use("checkpoint", every=1),), tmp_path, saved=False)
    run((use("fused_optimizer"), use("precision", dtype="bf16")), tmp_path, saved=True)
