"""Two optimizer steps of a tiny language model, by the wrapper, and what another trainer's are compared with."""

from __future__ import annotations

import torch
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

from advisor import apply_policy
from advisor.methods.setting import MethodSetting
from advisor.training.training import Training
from tests.exports.policies import file_of

__all__ = ["EPSILON", "RATE", "STEPS", "assert_alike", "by_the_wrapper", "samples", "tiny"]

STEPS = 2
RATE, EPSILON = 1e-2, 1e-2
"""With such an epsilon, Adam's steps are nearly proportional to the gradients, and do not enlarge their rounding."""


def tiny() -> LlamaForCausalLM:
    set_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=320,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=4,
            num_attention_heads=2,
            max_position_embeddings=16,
        )
    )


def samples(*, padded: bool = True) -> list[dict[str, torch.Tensor]]:
    """The samples of all steps; with padding, micro-batches have unequally many targets."""
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(320, (12,), generator=draw) for _ in range(4 * STEPS)]
    labels = [row.clone() for row in rows]
    for number, row in enumerate(labels):
        row[: number % 5 if padded else 0] = -100
    return [{"input_ids": row, "labels": label} for row, label in zip(rows, labels, strict=True)]


def by_the_wrapper(*settings: MethodSetting, norm: float | None = None, padded: bool = True) -> Training:
    """The wrapper's training after as many steps on the same samples."""
    training = apply_policy(
        file_of(*settings, micro_batch=2),
        tiny(),
        device="cpu",
        max_grad_norm=norm,
        build_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=RATE, eps=EPSILON, weight_decay=0.0),
    )
    rows = samples(padded=padded)
    for step in range(STEPS):
        own = rows[4 * step : 4 * step + 4]
        training.step({name: torch.stack([row[name] for row in own]) for name in own[0]})
    return training


def assert_alike(theirs: torch.nn.Module, training: Training, tolerance: float) -> None:
    """The parameters of both have moved, and to the same place; the training is closed."""
    ours = training.state_dict()["model"]
    training.close()
    reached = dict(theirs.named_parameters())
    for name, before in tiny().named_parameters():
        moved = (ours[name] - before).norm()
        assert moved > 0
        assert (reached[name] - ours[name]).norm() <= tolerance * moved, name
