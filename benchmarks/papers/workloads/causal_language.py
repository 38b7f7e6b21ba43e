"""A decoder-only transformer of GPT-2's architecture, on text that every machine has: Python's standard library."""

import functools
import sysconfig
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

_HEAD_WIDTH = 64


class Block(nn.Module):
    """Causal attention, then an MLP of four times the width, each after LayerNorm and with a residual connection."""

    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // _HEAD_WIDTH)
        self.norm1 = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.inside = nn.Linear(width, 4 * width)
        self.outside = nn.Linear(4 * width, width)

    def forward(self, states):
        """One block; states of (samples, tokens, width)."""
        parts = self.mix(self.norm1(states)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        states = states + self.project(seen.transpose(1, 2).flatten(-2))
        return states + self.outside(functional.gelu(self.inside(self.norm2(states))))


class Decoder(nn.Module):
    """Token and position embeddings, the blocks, and logits from the tied token embeddings."""

    def __init__(self, layers, width, tokens, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(tokens, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for table in (self.tokens, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens):
        """Logits of the next token at every position."""
        states = self.tokens(tokens) + self.places.weight[: tokens.size(1)]
        for block in self.blocks:
            states = block(states)
        return functional.linear(self.norm(states), self.tokens.weight)


def build_model(layers=2, width=64, tokens=32, vocabulary=256):
    # Bytes need 256 tokens; a larger vocabulary is for its cost.
    return Decoder(layers, width, tokens, vocabulary)


def build_optimizer(parameters):
    # Betas, epsilon and decay of the survey's Table 5; its learning rate is for finetuning, this one for pretraining.
    return torch.optim.AdamW(parameters, lr=3e-4, betas=(0.9, 0.98), eps=1e-6, weight_decay=0.2)


def make_batch(batch_size, tokens=32):
    text = _standard_library()
    starts = torch.randint(len(text) - tokens - 1, (batch_size, 1))
    return text[starts + torch.arange(tokens + 1)].long()


def compute_loss(model, batch):
    return functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())


@functools.cache
def _standard_library():
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"".join(path.read_bytes() for path in files)), dtype=torch.uint8)
