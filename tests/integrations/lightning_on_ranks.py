"""What two ranks do with Lightning's Trainer; the tests judge what they bring back."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from advisor.errors import PolicyError
from advisor.integrations.lightning import ParallelPolicyStrategy
from tests.docs.loops import ROOT, python_blocks
from tests.integrations.on_ranks import DISTRIBUTING, STEPS, policy_of, shared_folder
from tests.integrations.small import SAMPLES, adamw, model, rows

Rows = list[dict[str, torch.Tensor]]


class Language(LightningModule):
    """The model of the other trainers."""

    def __init__(self) -> None:
        super().__init__()
        self.model = model()

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss: torch.Tensor = self.model(**batch).loss
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.model(**batch).loss, sync_dist=True)

    def linear_head(self, batch: Any) -> Any:
        hidden = self.model.model(input_ids=batch["input_ids"]).last_hidden_state
        targets = torch.nn.functional.pad(batch["labels"], (0, 1), value=-100)[..., 1:]
        return hidden, self.model.lm_head.weight, None, targets

    def configure_optimizers(self) -> Any:
        return adamw(self.parameters())


def one_step_of_rows() -> Rows:
    """An epoch is one step: which batch comes next after the middle of an epoch is Lightning's affair."""
    return rows()[:SAMPLES]


def whole_rows() -> Rows:
    """The same with equally many targets: Lightning averages the batches that it accumulates."""
    return [{**row, "labels": row["input_ids"]} for row in one_step_of_rows()]


def in_lightning() -> dict[str, Any]:
    """Method -> what some steps on two ranks lead to; and what another number of devices does."""
    # As torchrun sets them.
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    os.environ |= {"TORCHELASTIC_RUN_ID": "here"}
    with _quietly():
        found: dict[str, Any] = {name: _trained(name, Path(shared_folder())) for name in DISTRIBUTING}
        return found | {"refused": _refused(), "documented": _documented(Path(shared_folder()))}


@contextmanager
def _quietly() -> Iterator[None]:
    """It warns of few workers, and of loggers that are not there."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")
        yield


_KNOWN: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 2,
    "max_steps": STEPS,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "gradient_clip_val": 1.0,
}


def _trainer(name: str, **options: Any) -> Trainer:
    return Trainer(strategy=ParallelPolicyStrategy(policy_of(name)), **_KNOWN | options)


def _trained(name: str, folder: Path) -> dict[str, Any]:
    first = _trainer(name)
    first.fit(Language(), _loader(one_step_of_rows(), 2), _loader(rows(), 4))
    found = {"state": _state(first), "loss": float(first.callback_metrics["val_loss"])}

    half = _trainer(name, max_steps=STEPS - 1)
    half.fit(Language(), _loader(one_step_of_rows(), 2))
    half.save_checkpoint(folder / "half.ckpt")
    resumed = _trainer(name)
    resumed.fit(Language(), _loader(one_step_of_rows(), 2), ckpt_path=folder / "half.ckpt", weights_only=False)
    found |= {"resumed": _state(resumed), "steps": resumed.global_step, "saved": folder / "half.ckpt"}

    accumulated = _trainer(name, accumulate_grad_batches=2)
    accumulated.fit(Language(), _loader(whole_rows(), 1))
    return found | {"accumulated": _state(accumulated)}


def _loader(samples: Rows, size: int) -> DataLoader[Any]:
    return DataLoader(samples, batch_size=size)  # type: ignore[arg-type]


def _state(trainer: Trainer) -> dict[str, torch.Tensor]:
    """What rank 0 has, under the names of the model in the module."""
    state = trainer.strategy.lightning_module_state_dict()
    return {key.removeprefix("model."): value.detach().clone() for key, value in state.items()}


def _documented(folder: Path) -> dict[str, torch.Tensor]:
    """What the block of the page leads to, in fewer steps."""
    (block,) = (
        code for code in python_blocks((ROOT / "docs/how-to.md").read_text()) if "ParallelPolicyStrategy" in code
    )
    os.chdir(folder)
    Path("policy.yaml").write_text(
        "schema: 1\npolicy: {micro_batch: 1, accumulation_steps: 2, gpu_count: 2, methods: {ddp: {bucket_views: true, "
        "static_graph: false}}}\n"
    )
    names: dict[str, Any] = {"Trainer": lambda **given: Trainer(**_KNOWN | given | {"max_steps": STEPS})}
    exec(compile(block, "docs/how-to.md", "exec"), names)
    names["trainer"].fit(Language(), _loader(one_step_of_rows(), 2))
    return _state(names["trainer"])


def _refused() -> dict[str, str]:
    assert dist.get_world_size() == 2
    found = {}
    for case, options in {"devices": {"num_nodes": 2}, "sync_batchnorm": {"sync_batchnorm": True}}.items():
        try:
            _trainer("ddp", **options).fit(Language(), _loader(one_step_of_rows(), 2))
        except PolicyError as error:
            found[case] = str(error)
    return found


__all__ = ["Language", "in_lightning", "one_step_of_rows", "whole_rows"]
