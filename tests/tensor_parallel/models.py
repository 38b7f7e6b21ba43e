"""Tiny models of the kinds whose blocks tensor parallelism must find its way into, each with a batch of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from benchmarks.workloads.transformer_block import Block as CountedBlock
from benchmarks.workloads.transformer_block import Dropout

VOCABULARY, HIDDEN, HEADS = 96, 32, 4


class Block(CountedBlock):
    """A block as people write it, with its attention in a module and its MLP without one."""

    def __init__(self, hidden: int = HIDDEN, heads: int = HEADS, dropout: float = 0.0, inner: float = 0.0) -> None:
        super().__init__(hidden, heads, dropout, inner)


class InlineBlock(nn.Module):
    """Attention without a module of its own: it reads the number of tokens from what the block is given.

    Args:
        guess: Derive every other size from what is there, so that no shape tells when the number is wrong.
    """

    def __init__(self, guess: bool = False) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.guess = guess
        self.heads, self.size = HEADS, HIDDEN // HEADS
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        samples, tokens, _ = hidden.shape
        parts = self.qkv(self.norm(hidden)).chunk(3, -1)
        heads = -1 if self.guess else self.heads
        query, key, value = (each.reshape(samples, tokens, heads, self.size).transpose(1, 2) for each in parts)
        found = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        return hidden + self.out(found.reshape(parts[0].shape) if self.guess else found.flatten(2))


class WidthAttention(nn.Module):
    """Attention as in many small GPTs: the width of a head, and of what it returns, is read from its input.

    Args:
        peek: Let the values of its input scale what it returns as well.
    """

    def __init__(self, peek: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN, bias=False), nn.Linear(HIDDEN, HIDDEN)
        self.heads, self.width, self.peek = HEADS, HIDDEN, peek

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        samples, length, width = x.size()
        parts = self.qkv(x).split(self.width, dim=2)
        query, key, value = (each.view(samples, length, self.heads, width // self.heads) for each in parts)
        scores = torch.einsum("blhd,bmhd->bhlm", query, key) * (width // self.heads) ** -0.5
        found = torch.einsum("bhlm,bmhd->blhd", scores.softmax(-1), value).reshape(samples, length, width)
        return self.out(found * x.detach().mean() if self.peek else found)


class WidthBlock(nn.Module):
    """A block around it."""

    def __init__(self, peek: bool = False) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(HIDDEN), nn.LayerNorm(HIDDEN)
        self.attention = WidthAttention(peek)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 64), nn.GELU(), nn.Linear(64, HIDDEN))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.mlp(self.between(x))


class Model(nn.Module):
    """An embedding with a dropout, blocks, and a head; returns its loss."""

    def __init__(self, block: Callable[[], nn.Module], layers: int = 2, dropout: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.dropout = Dropout(dropout)
        self.blocks = nn.ModuleList(block() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(self.embedding(tokens))
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.cross_entropy(self.head(self.norm(hidden)).flatten(0, 1), tokens.flatten())


def by_hand(dropout: float = 0.0) -> nn.Module:
    return Model(lambda: Block(dropout=dropout, inner=dropout), dropout=dropout)


def _gpt2(dropout: float = 0.0) -> nn.Module:
    import transformers as t

    drop = {"attn_pdrop": dropout, "resid_pdrop": dropout, "embd_pdrop": dropout}
    return t.GPT2LMHeadModel(
        t.GPT2Config(
            vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=2, n_head=HEADS, n_positions=64, use_cache=False, **drop
        )
    )


def _decoder(name: str, **settings: Any) -> nn.Module:
    import transformers as t

    config = getattr(t, f"{name}Config")(
        **{
            "vocab_size": VOCABULARY,
            "hidden_size": HIDDEN,
            "num_hidden_layers": 2,
            "num_attention_heads": HEADS,
            "use_cache": False,
            **settings,
        }
    )
    return getattr(t, f"{name}ForCausalLM")(config)


def _opt(dropout: float = 0.0) -> nn.Module:
    return _decoder("OPT", ffn_dim=64, word_embed_proj_dim=HIDDEN, dropout=dropout, max_position_embeddings=64)


def _bert(dropout: float = 0.0) -> nn.Module:
    import transformers as t

    config = t.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    return t.BertForMaskedLM(config)


def _vit(image: int) -> nn.Module:
    import transformers as t

    config = t.ViTConfig(
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        image_size=image,
        patch_size=8,
        num_labels=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return t.ViTForImageClassification(config)


def _t5() -> nn.Module:
    import transformers as t

    config = t.T5Config(
        vocab_size=VOCABULARY, d_model=HIDDEN, d_ff=64, d_kv=8, num_layers=2, num_heads=HEADS, dropout_rate=0.0,
        use_cache=False, decoder_start_token_id=0,
    )  # fmt: skip
    return t.T5ForConditionalGeneration(config)


_GROUPED = {"num_key_value_heads": 2, "intermediate_size": 64}

BUILD: dict[str, Callable[[], nn.Module]] = {
    "by hand": by_hand,
    "inline": lambda: Model(InlineBlock),
    "inline, guessing": lambda: Model(lambda: InlineBlock(guess=True)),
    "by width": lambda: Model(WidthBlock),
    "gpt2": _gpt2,
    "llama": lambda: _decoder("Llama", **_GROUPED),
    "neox": lambda: _decoder("GPTNeoX", intermediate_size=64),
    "opt": _opt,
    "bert": _bert,
    "qwen3": lambda: _decoder("Qwen3", head_dim=8, **_GROUPED),
    "phi3": lambda: _decoder("Phi3", pad_token_id=0, **_GROUPED),
    "mixtral": lambda: _decoder("Mixtral", num_local_experts=4, **_GROUPED),
    "vit": lambda: _vit(24),
    "vit, 17 tokens": lambda: _vit(32),
    "t5": _t5,
}


DROPPING: dict[str, Callable[[float], nn.Module]] = {"by hand": by_hand, "gpt2": _gpt2, "opt": _opt, "bert": _bert}


def build(kind: str, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return DROPPING[kind](dropout) if dropout else BUILD[kind]()


def tokens(samples: int = 2, length: int = 16) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (samples, length), generator=torch.Generator().manual_seed(1))


def loss_of(kind: str) -> Callable[[nn.Module], torch.Tensor]:
    """A function from a model of a kind to its loss on the batch."""
    generator = torch.Generator().manual_seed(2)
    if kind.startswith("vit"):
        pixels = torch.randn(2, 3, 32 if "17" in kind else 24, 32 if "17" in kind else 24, generator=generator)
        return lambda model: model(pixel_values=pixels, labels=torch.tensor([1, 2])).loss
    if kind.startswith(("by hand", "inline", "by width")):
        return lambda model: model(tokens())
    return lambda model: model(input_ids=tokens(), labels=tokens()).loss
