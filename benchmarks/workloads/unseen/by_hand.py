"""A hand-written encoder that uses PyTorch's own attention."""

import torch

BATCH_SIZE = 4


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention = torch.nn.LayerNorm(384)
        self.attention = torch.nn.MultiheadAttention(384, 6, dropout=0.1, batch_first=True)
        self.before_layers = torch.nn.LayerNorm(384)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(384, 1536), torch.nn.GELU(), torch.nn.Linear(1536, 384), torch.nn.Dropout(0.1)
        )

    def forward(self, hidden):
        normal = self.before_attention(hidden)
        hidden = hidden + self.attention(normal, normal, normal, need_weights=False)[0]
        return hidden + self.layers(self.before_layers(hidden))


class Model(torch.nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.embedding = torch.nn.Embedding(8192, 384)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(blocks))
        self.head = torch.nn.Linear(384, 8192)

    def forward(self, tokens, targets):
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return torch.nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def build_model(blocks=6):
    return Model(blocks)


def make_batch(batch_size):
    return {"tokens": torch.randint(8192, (batch_size, 256)), "targets": torch.randint(8192, (batch_size, 256))}
