"""What two ranks do with a trainer each; the tests judge what they bring back."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch.utils.data import DataLoader

from advisor.integrations import accelerate, hf
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.training.training import Training
from tests.integrations.small import SAMPLES, adamw, model, rows, trainer

DISTRIBUTING: dict[str, tuple[MethodSetting, ...]] = {
    "ddp": (use("ddp", bucket_views=True, static_graph=False),),
    "compressed": (use("ddp", bucket_views=True, static_graph=False), use("gradient_compression", hook="fp16")),
    "zero_1": (use("chunked_cross_entropy", chunks=8), use("zero_1")),
    "fsdp": (use("checkpoint", every=1), use("fsdp", mixed_precision="none", offload=False, reshard=True)),
}
RESUMED = ("zero_1", "fsdp")
"""Whose states are put together from those of the ranks."""
STEPS = 3


def policy_of(name: str) -> Policy:
    return Policy(methods=DISTRIBUTING[name], micro_batch=SAMPLES // 4, accumulation_steps=2, gpu_count=2)


def in_both_loops() -> dict[str, dict[str, Any]]:
    """Method -> what three steps on two ranks lead to, in a Trainer and in a loop with an accelerator."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_WORLD_SIZE": "2"}  # as torchrun does
    return {name: {**_in_trainer(name, Path(shared_folder())), "loop": _in_loop(name)} for name in DISTRIBUTING}


def shared_folder() -> str:
    made = [tempfile.mkdtemp() if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(made)
    return str(made[0])


def _in_trainer(name: str, folder: Path) -> dict[str, Any]:
    own, training = _attached(name, folder)
    own.train()
    state = training.state_dict()["model"]
    loss = own.evaluate()["eval_loss"]
    training.close()
    found = {"state": state, "loss": loss, "folder": str(folder)}
    if name in RESUMED:
        again, resumed = _attached(name, folder)
        again.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
        found["resumed"] = resumed.state_dict()["model"]
        resumed.close()
    return found


def _attached(name: str, folder: Path) -> tuple[Any, Training]:
    own = trainer(
        folder,
        max_steps=STEPS,
        save_strategy="steps",
        save_steps=2,
        eval_dataset=rows(),
        per_device_eval_batch_size=4,
        average_tokens_across_devices=True,
    )
    return own, hf.attach(own, policy_of(name), build_optimizer=adamw)


def _in_loop(name: str) -> dict[str, torch.Tensor]:
    accelerator = Accelerator(cpu=True)
    prepared = accelerate.prepare(
        model(), policy_of(name), accelerator=accelerator, build_optimizer=adamw, max_grad_norm=1.0
    )
    loader = accelerator.prepare(DataLoader(rows(), batch_size=prepared.training.micro_batch))
    steps = 0
    while steps < STEPS:
        for micro_batch in prepared.micro_batches(loader):
            accelerator.backward(prepared.forward(micro_batch))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prepared.model.parameters(), 1.0)
            prepared.optimizer.step()
            prepared.optimizer.zero_grad()
            steps += accelerator.sync_gradients
            if steps == STEPS:
                break
    state: dict[str, torch.Tensor] = prepared.training.state_dict()["model"]
    prepared.training.close()
    return state
