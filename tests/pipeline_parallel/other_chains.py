"""Chains of blocks that return, take or do more than hidden states; those that can be cut, and those that cannot.

Importing this adds them to the models that :func:`~tests.pipeline_parallel.staged_models.build` knows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.pipeline_parallel.staged_models import BUILD, HEADS, HIDDEN, LENGTH, VOCABULARY

__all__ = ["CUT", "IN_EVERY_SCHEDULE", "REFUSED", "SHARED"]

LAYERS = 4
SIZE = HIDDEN // HEADS


class Attention(nn.Module):
    """Attention by hand, which also returns its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, hidden: torch.Tensor, bias: torch.Tensor | float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
        query, key, value = (each.unflatten(-1, (-1, SIZE)).transpose(1, 2) for each in self.qkv(hidden).chunk(3, -1))
        weights = (query @ key.transpose(-1, -2) + bias).softmax(-1)
        return self.out((weights @ value).transpose(1, 2).flatten(2)), weights


class Block(nn.Module):
    """A block in one of several shapes.

    Args:
        how: What it does besides.
    """

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.how = how
        self.attention, self.norm = Attention(), nn.LayerNorm(HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.GELU(), nn.Linear(2 * HIDDEN, HIDDEN))
        self.kept: torch.Tensor | float = 0.0

    def forward(self, hidden: torch.Tensor, bias: torch.Tensor | float = 0.0, velocity: Any = None) -> Any:
        if self.how == "writes":
            hidden += 0.1
        found, weights = self.attention(self.norm(hidden), bias)
        hidden = hidden + found
        hidden = hidden + self.mlp(hidden)
        self.kept = hidden.square().mean() if self.how == "keeps" else 0.0
        if self.how in ("returns weights", "uses weights", "collects weights", "takes weights"):
            return hidden, weights if velocity is None else weights + velocity
        return {"hidden": hidden} if self.how == "returns a dict" else hidden


class After(Block):
    """Normalizes after each sum."""

    def forward(self, hidden: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        hidden = self.norm(hidden + self.attention(hidden)[0])
        return self.norm(hidden + self.mlp(hidden))


class Parallel(Block):
    """Attention and MLP read the same."""

    def forward(self, hidden: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        normalized = self.norm(hidden)
        return hidden + self.attention(normalized)[0] + self.mlp(normalized)


class Gated(nn.Module):
    """One linear layer makes values and their gates, and the normalization is its own."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(HIDDEN))
        self.up, self.down = nn.Linear(HIDDEN, 4 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)

    def forward(self, hidden: torch.Tensor, *rest: Any) -> torch.Tensor:
        normalized = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        values, gates = self.up(normalized).chunk(2, -1)
        return hidden + self.down(values * nn.functional.silu(gates))


class Routing(Block):
    """Each token goes to the expert that its router prefers."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(HIDDEN, 2)
        self.other = nn.Sequential(nn.Linear(HIDDEN, 2 * HIDDEN), nn.GELU(), nn.Linear(2 * HIDDEN, HIDDEN))

    def forward(self, hidden: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        hidden = hidden + self.attention(self.norm(hidden))[0]
        shares = self.router(hidden).softmax(-1)
        first = shares[..., 0] > shares[..., 1]
        found = torch.zeros_like(hidden)
        for number, (chosen, expert) in enumerate(((first, self.mlp), (~first, self.other))):
            found[chosen] = expert(hidden[chosen]) * shares[chosen][:, number : number + 1]
        return hidden + found


class Remembering(Block):
    """Subtracts a mean of what it was given so far."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(HIDDEN))

    def forward(self, hidden: torch.Tensor, *rest: Any, **named: Any) -> torch.Tensor:
        with torch.no_grad():
            self.mean.lerp_(hidden.mean((0, 1)), 0.1)
        hidden = hidden + self.attention(self.norm(hidden - self.mean.clone()))[0]
        return hidden + self.mlp(hidden)


BLOCKS: dict[str, Callable[[], nn.Module]] = {
    "turned": lambda: Turned(),
    "normalizes after": After,
    "in parallel": Parallel,
    "gated": Gated,
    "routes": Routing,
    "remembers": Remembering,
}


class Turned(nn.Module):
    """A convolution over tokens: hidden states, and their gradient, are no rows of memory."""

    def __init__(self) -> None:
        super().__init__()
        self.spread, self.norm = nn.Conv1d(HIDDEN, HIDDEN, 3, padding=1), nn.GroupNorm(2, HIDDEN)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + torch.relu(self.norm(self.spread(hidden)))


class Chain(nn.Module):
    """A model around such blocks.

    Args:
        how: What it does with them.
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        blocks = [BLOCKS[how]() if how in BLOCKS else Block(how) for _ in range(LAYERS)]
        self.blocks: nn.Module = nn.ModuleList(blocks)
        if how == "in a dict":
            self.blocks = nn.ModuleDict({f"block {number}": block for number, block in enumerate(blocks)})
        if how in ("in a sequence", "turned"):
            self.blocks = nn.Sequential(*blocks)
        self.between = nn.LayerNorm(HIDDEN)
        self.bias = nn.Parameter(torch.randn(LAYERS, LENGTH, LENGTH))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        if how == "tied":
            self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden, also = self.embedding(tokens), torch.zeros(())
        if self.how == "looks at values" and not bool(hidden.any()):
            raise LookupError("an embedding is never zero")
        if self.how == "tied":
            hidden = hidden * HIDDEN**0.5
        if self.how == "turned":
            return {"scores": self.head(self.blocks(hidden.transpose(1, 2)).transpose(1, 2))}
        if self.how == "in a sequence":
            return {"scores": self.head(self.blocks(hidden))}
        before, weights = hidden, None
        collected = []
        blocks = self.blocks.values() if isinstance(self.blocks, nn.ModuleDict) else self.blocks
        for number, block in enumerate(blocks):
            before = hidden if number == 1 else before
            if self.how == "between blocks":
                hidden = 0.5 * self.between(hidden).transpose(0, 1).contiguous().transpose(0, 1)
            if self.how == "skips" and number == 3:
                hidden = hidden + before
            if self.how == "starts anew" and number == 2:
                hidden = self.embedding(tokens)
            if self.how in ("takes weights", "uses weights", "collects weights", "returns weights"):
                hidden, weights = block(hidden, velocity=weights if self.how == "takes weights" else None)
                collected.append(weights)
                also = also + weights.square().mean() if self.how == "uses weights" else also
            else:
                hidden = block(hidden, self.bias[number] if self.how == "layer by layer" else 0.0)
                hidden = hidden["hidden"] if self.how == "returns a dict" else hidden
            also = also + hidden.detach().mean() if self.how == "notes and uses" else also
            if self.how == "notes":
                self.seen = float(hidden.detach().norm())
        if self.how == "keeps":
            also = sum((block.kept for block in blocks), also)
        return {"scores": self.head(hidden) * (1 + also)}


def _of_transformers(name: str, **settings: Any) -> Callable[[], nn.Module]:
    def built() -> nn.Module:
        import transformers as t

        wanted = {"vocab_size": VOCABULARY, "use_cache": False, "pad_token_id": 0, **settings}
        kind = "T5ForConditionalGeneration" if name == "T5" else f"{name}ForCausalLM"
        model: nn.Module = getattr(t, kind)(getattr(t, f"{name.replace('Gemma3', 'Gemma3Text')}Config")(**wanted))
        return model

    return built


_NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}
_GPTJ = {
    "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS, "n_positions": LENGTH, "rotary_dim": 4,
    "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
}  # fmt: skip
_GPT_NEO = {
    "hidden_size": HIDDEN, "num_layers": LAYERS, "num_heads": HEADS, "attention_types": [[["global", "local"], 2]],
    "window_size": 4, "max_position_embeddings": LENGTH, "resid_dropout": 0.0, "embed_dropout": 0.0,
    "attention_dropout": 0.0,
}  # fmt: skip
_T5 = {
    "d_model": HIDDEN, "d_kv": 8, "d_ff": 64, "num_layers": LAYERS, "num_heads": HEADS, "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}  # fmt: skip
_GEMMA = {
    "hidden_size": HIDDEN, "intermediate_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}  # fmt: skip

_TRANSFORMERS: dict[str, Callable[[], nn.Module]] = {
    "transformers GPT-J": _of_transformers("GPTJ", **_GPTJ),
    "transformers GPT-J, eager": _of_transformers("GPTJ", **_GPTJ, attn_implementation="eager"),
    "transformers GPT-Neo": _of_transformers("GPTNeo", **_GPT_NEO),
    "transformers Bloom": _of_transformers("Bloom", hidden_size=HIDDEN, n_layer=LAYERS, n_head=HEADS, **_NO_DROPOUT),
    "transformers Falcon, alibi": _of_transformers(
        "Falcon", hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=HEADS, alibi=True, **_NO_DROPOUT
    ),
    "transformers Gemma 3": _of_transformers("Gemma3", **_GEMMA),
}
_HANDWRITTEN = (
    "returns weights", "collects weights", "layer by layer", "between blocks", "writes", "notes", "turned",
    "in a dict", "in a sequence", "tied", "normalizes after", "in parallel", "gated", "routes", "looks at values",
)  # fmt: skip
CUT: tuple[str, ...] = (*_HANDWRITTEN, *_TRANSFORMERS)
"""Models that can be cut into stages."""

IN_EVERY_SCHEDULE = ("returns weights", "writes", "turned")
SHARED = ("layer by layer", "between blocks")
"""Their weights outside of blocks meet the hidden states in several blocks."""

REFUSED = {
    "uses weights": "also uses another value that block 0 returns",
    "takes weights": "also uses another value that block",
    "keeps": "a loss that blocks compute themselves",
    "notes and uses": "is also read by something else, without a gradient",
    "skips": "is also used by something else",
    "starts anew": "what block 2 is called on does not depend on what block 1 returned",
    "returns a dict": "but Block returns a dict",
    "transformers T5": "what block 4 is called on does not depend on what block 3 returned",
}
"""Those that cannot, and what is said of them before anything is trained."""

BUILD |= {how: (lambda how=how: Chain(how)) for how in (*_HANDWRITTEN, *REFUSED, "remembers")} | _TRANSFORMERS
BUILD["transformers T5"] = _of_transformers("T5", **_T5)
