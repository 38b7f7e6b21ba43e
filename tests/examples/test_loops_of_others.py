"""A loop as nanoGPT writes it keeps its schedule, its clipping and its own optimizer groups under a policy."""

from __future__ import annotations

import copy
from collections.abc import Iterable

import pytest
import torch
from torch import nn

import advisor
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy

Batch = tuple[torch.Tensor, torch.Tensor]


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, tokens, width = x.shape
        q, k, v = (
            one.view(samples, tokens, 2, width // 2).transpose(1, 2)
            for one in self.c_attn(self.ln_1(x)).chunk(3, dim=2)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(seen.transpose(1, 2).reshape(samples, tokens, width))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Returns logits and loss, and ties its embedding to its head."""

    def __init__(self, width: int = 16, words: int = 64, tokens: int = 8) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(tokens, width)
        self.h = nn.ModuleList(Block(width) for _ in range(2))
        self.lm_head = nn.Linear(width, words, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(x)
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def compute_loss(model: nn.Module, batch: Batch) -> torch.Tensor:
    loss: torch.Tensor = model(*batch)[1]
    return loss


def configure_optimizers(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    trained = list(parameters)
    groups = [
        {"params": [one for one in trained if one.dim() >= 2], "weight_decay": 0.1},
        {"params": [one for one in trained if one.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))


@pytest.fixture(scope="module")
def beginning() -> tuple[GPT, list[Batch]]:
    torch.manual_seed(1337)
    data = torch.randint(64, (3, 4, 9))
    return GPT(), [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in data]


@pytest.fixture(scope="module")
def plain(beginning: tuple[GPT, list[Batch]]) -> tuple[list[float], GPT]:
    """Losses and model of the loop as it was."""
    model, batches = copy.deepcopy(beginning[0]), beginning[1]
    optimizer, losses = configure_optimizers(model.parameters()), []
    for iteration, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 / (1 + iteration)
        _, loss = model(*batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses, model


@pytest.mark.parametrize(
    ("methods", "micro_batch", "steps"),
    [
        ((), 4, 1),
        ((use("checkpoint", every=1),), 2, 2),
        ((use("fused_optimizer"), use("selective_checkpoint", recompute="elementwise")), 4, 1),
        ((use("host_optimizer"), use("residual_checkpoint", blocks=2, inside="everything")), 1, 4),
    ],
    ids=["plain", "accumulated", "fused", "on the host"],
)
def test_the_loop_with_a_policy_trains_as_it_did(
    methods: tuple[MethodSetting, ...],
    micro_batch: int,
    steps: int,
    beginning: tuple[GPT, list[Batch]],
    plain: tuple[list[float], GPT],
) -> None:
    model, batches = copy.deepcopy(beginning[0]), beginning[1]
    training = advisor.apply_policy(
        Policy(methods=methods, micro_batch=micro_batch, accumulation_steps=steps),
        model,
        device="cpu",
        compute_loss=compute_loss,
        build_optimizer=configure_optimizers,
        max_grad_norm=0.1,
    )
    losses = []
    for iteration, batch in enumerate(batches):
        for group in training.optimizer.param_groups:
            group["lr"] = 1e-2 / (1 + iteration)
        losses.append(float(training.step(batch)))
    assert losses == pytest.approx(plain[0], rel=1e-5)
    for name, trained in plain[1].state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], trained, rtol=1e-3, atol=1e-5)
