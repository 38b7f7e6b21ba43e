"""A transformer block as the paper counts it: attention of heads without a fused kernel, and dropout in four places."""

from __future__ import annotations

import torch
from torch import nn

__all__ = ["Attention", "Block", "Core", "Dropout"]

_LONGEST = 512


class Dropout(nn.Module):
    """Keeps a mask of one byte an element, as on a GPU; ``nn.Dropout`` on a CPU keeps one in the number format."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Some of the values, scaled."""
        return torch.native_dropout(values, self.share, True)[0] if self.training and self.share else values


class Core(nn.Module):
    """Causal attention of heads, with a dropout on its probabilities."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        self.register_buffer("future", torch.ones(_LONGEST, _LONGEST, dtype=torch.bool).triu(1), persistent=False)

    def forward(self, packed: torch.Tensor) -> torch.Tensor:
        """Each token's mixture of values; ``packed`` is (samples, tokens, 3, heads, size of a head)."""
        query, key, value = packed.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / packed.size(-1) ** 0.5
        future = self.future[: packed.size(1), : packed.size(1)]
        shares = self.dropout(scores.masked_fill(future, -torch.inf).softmax(-1))
        return (shares @ value).transpose(1, 2).flatten(2)


class Attention(nn.Module):
    """Attention with a packed projection."""

    def __init__(self, hidden: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.size = heads, hidden // heads
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.core = Core(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """What is added to the hidden states."""
        samples, tokens, _ = hidden.shape
        return self.out(self.core(self.qkv(hidden).view(samples, tokens, 3, self.heads, self.size)))


class Block(nn.Module):
    """A block with its attention in a module and its MLP without one.

    Args:
        hidden: Its width.
        heads: Heads of its attention.
        dropout: Share that is dropped of attention's probabilities and of what is added to the hidden states.
        inner: Share that is dropped inside of the MLP; the paper's block drops nothing there.
    """

    def __init__(self, hidden: int, heads: int, dropout: float = 0.0, inner: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads, dropout)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.inner, self.after = Dropout(inner), Dropout(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The next hidden states."""
        hidden = hidden + self.after(self.attention(self.norm1(hidden)))
        return hidden + self.after(self.down(self.inner(nn.functional.gelu(self.up(self.norm2(hidden))))))
