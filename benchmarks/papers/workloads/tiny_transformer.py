"""A transformer so small that a step is mostly Python, so that a wrapper's overhead shows. It needs only torch."""

import torch
from torch import nn
from torch.nn import functional

BATCH_SIZE = 4
SIZES = {"layers": [4, 8, 16]}

_VOCABULARY = 256
_TOKENS = 16
_WIDTH = 32
_HEADS = 2


class Block(nn.Module):
    """Attention and a perceptron, each after a normalization and with a residual connection."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, hidden):
        """One block."""
        batch, tokens, _ = hidden.shape
        split = self.qkv(self.norm1(hidden)).view(batch, tokens, 3, _HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*split.unbind(0), is_causal=True)
        hidden = hidden + self.out(seen.transpose(1, 2).reshape(batch, tokens, _WIDTH))
        inside = functional.dropout(functional.gelu(self.up(self.norm2(hidden))), 0.1, self.training)
        return hidden + self.down(inside)


def build_model(layers=4):
    blocks = [Block() for _ in range(layers)]
    return nn.Sequential(nn.Embedding(_VOCABULARY, _WIDTH), *blocks, nn.Linear(_WIDTH, _VOCABULARY))


def make_batch(batch_size):
    return {"tokens": torch.randint(_VOCABULARY, (batch_size, _TOKENS + 1))}


def compute_loss(model, batch):
    tokens = batch["tokens"]
    return functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
