"""A tiny causal language model, its data, and two steps of it in each kind of loop."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from torch.utils.data import DataLoader

from advisor.integrations import accelerate, hf
from advisor.methods.setting import MethodSetting
from advisor.policy.apply import apply_policy
from advisor.policy.policy import Policy
from advisor.training.training import Training

VOCABULARY, TOKENS, SAMPLES, STEPS = 64, 12, 4, 2


def model(layers: int = 3) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=TOKENS,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    return transformers.LlamaForCausalLM(config)


def rows() -> list[dict[str, torch.Tensor]]:
    """Samples with ever more targets, so that micro-batches of a step weigh differently."""
    drawn = torch.Generator().manual_seed(1)
    made = []
    for number in range(SAMPLES * STEPS):
        tokens = torch.randint(3, VOCABULARY, (TOKENS,), generator=drawn)
        labels = tokens.clone()
        labels[4 + number :] = -100
        made.append({"input_ids": tokens, "labels": labels})
    return made


def batch(step: int) -> dict[str, torch.Tensor]:
    own = rows()[step * SAMPLES : (step + 1) * SAMPLES]
    return {name: torch.stack([row[name] for row in own]) for name in own[0]}


def adamw(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.0)


def policy_of(*settings: MethodSetting, accumulation_steps: int = 2) -> Policy:
    ordered = tuple(sorted(settings, key=lambda setting: setting.name))
    return Policy(methods=ordered, micro_batch=SAMPLES // accumulation_steps, accumulation_steps=accumulation_steps)


def arguments(folder: Path | str, **changed: Any) -> transformers.TrainingArguments:
    usual: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "max_steps": STEPS,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "train_sampling_strategy": "sequential",
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return transformers.TrainingArguments(**(usual | changed))


class Seeds(transformers.TrainerCallback):
    """Each step draws the same numbers in every loop."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **rest: Any) -> None:
        torch.manual_seed(7 + state.global_step)


def trainer(folder: Path | str, *, kind: Any = transformers.Trainer, layers: int = 3, **changed: Any) -> Any:
    given = {name: changed.pop(name) for name in ("compute_loss_func", "optimizers", "eval_dataset") if name in changed}
    made = kind(
        model=model(layers),
        args=arguments(folder, **changed),
        train_dataset=rows(),
        callbacks=[Seeds()],
        **given,
    )
    made.remove_callback(transformers.PrinterCallback)
    return made


@functools.cache
def plain_state() -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model().state_dict().items()}


def state_of(training: Training) -> dict[str, torch.Tensor]:
    """The trained weights under their plain names; the training is closed."""
    state = {name: tensor.detach().clone() for name, tensor in training.state_dict()["model"].items()}
    training.close()
    return state


def by_wrapper(policy: Policy, max_grad_norm: float) -> dict[str, torch.Tensor]:
    """Two steps as emitted wrappers make them."""
    own = model()
    torch.manual_seed(5)
    training = apply_policy(policy, own, build_optimizer=adamw, max_grad_norm=max_grad_norm or None)
    for step in range(STEPS):
        torch.manual_seed(7 + step)
        training.step(batch(step))
    return state_of(training)


def by_trainer(policy: Policy, max_grad_norm: float, folder: Path) -> dict[str, torch.Tensor]:
    """Two steps of a transformers Trainer."""
    own = trainer(folder, max_grad_norm=max_grad_norm)
    torch.manual_seed(5)
    training = hf.attach(own, policy, build_optimizer=adamw)
    own.train()
    assert own.state.global_step == STEPS
    return state_of(training)


def by_loop(policy: Policy, max_grad_norm: float, folder: Path) -> dict[str, torch.Tensor]:
    """Two steps of a loop with an accelerator."""
    accelerator, own = Accelerator(cpu=True), model()
    torch.manual_seed(5)
    prepared = accelerate.prepare(own, policy, accelerator=accelerator, build_optimizer=adamw)
    loader = accelerator.prepare(DataLoader(rows(), batch_size=policy.micro_batch))
    for number, micro_batch in enumerate(prepared.micro_batches(loader)):
        if number % policy.accumulation_steps == 0:
            torch.manual_seed(7 + number // policy.accumulation_steps)
        accelerator.backward(prepared.forward(micro_batch))
        if accelerator.sync_gradients and max_grad_norm:
            accelerator.clip_grad_norm_(prepared.model.parameters(), max_grad_norm)
        prepared.optimizer.step()
        prepared.optimizer.zero_grad()
    return state_of(prepared.training)


def error(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """The distance of two trained models, relative to how far training moved one."""
    assert found.keys() == expected.keys() == plain_state().keys()

    def norm(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
        return float(sum((one[name].double() - other[name].double()).square().sum() for name in one)) ** 0.5

    moved = norm(expected, plain_state())
    assert moved > 0
    return norm(found, expected) / moved
