"""Tiny models with a chain of blocks, each with batches of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

VOCABULARY, HIDDEN, HEADS, LAYERS, SAMPLES, LENGTH = 64, 32, 4, 8, 8, 12


class Block(nn.Module):
    """Takes its hidden states by keyword, and something else that all blocks share."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(HIDDEN)
        self.up, self.down = nn.Linear(HIDDEN, 2 * HIDDEN), nn.Linear(2 * HIDDEN, HIDDEN)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor, *, shift: torch.Tensor) -> torch.Tensor:
        return hidden + self.dropout(self.down(nn.functional.gelu(self.up(self.norm(hidden + shift)))))


class ByHand(nn.Module):
    """Returns a dictionary. Blocks are shifted by a condition, computed before them, with weights of its own or not."""

    def __init__(self, dropout: float = 0.0, layers: int = LAYERS, conditioned: bool = False) -> None:
        super().__init__()
        self.conditioned = conditioned
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.position = nn.Parameter(torch.randn(LENGTH, HIDDEN))
        if conditioned:
            self.condition = nn.Sequential(nn.Linear(1, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN))
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.unused = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.embedding(tokens) + self.position[: tokens.size(1)]
        mean = tokens.float().mean(1, keepdim=True) / VOCABULARY
        shift = (self.condition(mean) if self.conditioned else mean)[:, None]
        for block in self.blocks:
            hidden = block(hidden=hidden, shift=shift)
        return {"scores": self.head(self.norm(hidden))}


class TupleBlock(nn.Module):
    """Takes its hidden states by position, and returns them in a tuple, with attention weights that there are not."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Block()

    def forward(self, hidden: torch.Tensor, shift: torch.Tensor) -> tuple[torch.Tensor, None]:
        return self.inner(hidden, shift=shift), None


class InTuples(nn.Module):
    """Its blocks return tuples, and their hidden states are a view of something larger."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        self.blocks = nn.ModuleList(TupleBlock() for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden, shift = self.embedding(tokens), tokens[..., None] / VOCABULARY
        for block in self.blocks:
            hidden = block(hidden, shift)[0]
        return {"scores": self.head(hidden)}


class TorchEncoder(nn.Module):
    """PyTorch's own encoder, which reads attributes inside of its first layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN)
        layer = nn.TransformerEncoderLayer(HIDDEN, HEADS, 2 * HIDDEN, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.size(1))
        return {"scores": self.head(self.encoder(self.embedding(tokens), mask=mask, is_causal=True))}


def _gpt2(dropout: float = 0.0) -> nn.Module:
    import transformers as t

    return t.GPT2LMHeadModel(
        t.GPT2Config(
            vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, n_positions=LENGTH, use_cache=False,
            attn_pdrop=dropout, resid_pdrop=dropout, embd_pdrop=dropout, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def _llama() -> nn.Module:
    import transformers as t

    return t.LlamaForCausalLM(
        t.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_key_value_heads=2, use_cache=False,
        )
    )  # fmt: skip


def _bert() -> nn.Module:
    import transformers as t

    return t.BertForSequenceClassification(
        t.BertConfig(
            vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=LAYERS,
            num_attention_heads=HEADS, num_labels=3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


def _vit() -> nn.Module:
    import transformers as t

    return t.ViTForImageClassification(
        t.ViTConfig(
            hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
            image_size=16, patch_size=8, num_labels=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        )
    )  # fmt: skip


BUILD: dict[str, Callable[[], nn.Module]] = {
    "by hand": ByHand,
    "conditioned": lambda: ByHand(conditioned=True),
    "tuples": InTuples,
    "torch's encoder": TorchEncoder,
    "gpt2": _gpt2,
    "llama": _llama,
    "bert": _bert,
    "vit": _vit,
}


def build(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return BUILD[kind]().train()


def batch_of(kind: str, seed: int = 1) -> dict[str, torch.Tensor]:
    """A batch of samples; those of text have unequal numbers of targets."""
    generator = torch.Generator().manual_seed(seed)
    if kind == "vit":
        pixels = torch.randn(SAMPLES, 3, 16, 16, generator=generator)
        return {"pixel_values": pixels, "labels": torch.arange(SAMPLES)}
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, LENGTH), generator=generator)
    if kind == "bert":
        return {"input_ids": tokens, "attention_mask": (tokens > 5).long(), "labels": torch.arange(SAMPLES) % 3}
    labels = tokens.clone()
    for sample, length in enumerate((12, 3, 9, 12, 2, 11, 5, 3)):
        labels[sample, length:] = -100
    return {"input_ids": tokens, "labels": labels}


def loss_of(kind: str) -> Callable[[nn.Module, Any], torch.Tensor]:
    """``(model, batch) -> loss``, the mean over the targets of the batch."""
    if kind in ("gpt2", "llama", "bert", "vit") or kind.startswith("transformers"):
        return lambda model, batch: model(**batch).loss

    def loss(model: nn.Module, batch: Any) -> torch.Tensor:
        scores = model(batch["input_ids"])["scores"]
        return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())

    return loss


def targets(kind: str, batch: Any) -> int:
    """How many targets the loss of a batch averages over."""
    return len(batch["labels"]) if kind in ("bert", "vit") else int((batch["labels"][:, 1:] != -100).sum())
