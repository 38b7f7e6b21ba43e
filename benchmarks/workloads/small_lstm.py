"""A two-layer LSTM that predicts the next token: its steps are many small matrix products, one after another."""

import torch
from torch import nn
from torch.nn import functional

BATCH_SIZE = 8
MAX_GRAD_NORM = 1.0

_VOCABULARY = 2048
_TOKENS = 24
_WIDTH = 128


class Language(nn.Module):
    """Embedding, LSTM and a head; returns its loss."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        self.lstm = nn.LSTM(_WIDTH, _WIDTH, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(_WIDTH, _VOCABULARY)

    def forward(self, tokens):
        """The mean cross entropy of every token but the first."""
        hidden, _ = self.lstm(self.embedding(tokens[:, :-1]))
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), tokens[:, 1:].flatten())


def build_model():
    return Language()


def make_batch(batch_size):
    return {"tokens": torch.randint(_VOCABULARY, (batch_size, _TOKENS + 1))}
