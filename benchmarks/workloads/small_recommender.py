"""A recommender that predicts whether a user likes an item; nearly all of its two million parameters are embeddings.

A step multiplies little and updates every embedding row: most of its time is the optimizer's.
"""

import torch
from torch import nn
from torch.nn import functional

BATCH_SIZE = 64

_USERS = 20_000
_ITEMS = 40_000
_SEEN = 10
_WIDTH = 32


class Recommender(nn.Module):
    """Embeddings of users and items, and a perceptron on top of them."""

    def __init__(self):
        super().__init__()
        self.users = nn.Embedding(_USERS, _WIDTH)
        self.items = nn.Embedding(_ITEMS, _WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(3 * _WIDTH, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, user, seen, item):
        """The logit of liking the item, given the items seen before."""
        known = torch.cat([self.users(user), self.items(seen).mean(dim=1), self.items(item)], dim=1)
        return self.layers(known).squeeze(1)


def build_model():
    return Recommender()


def build_optimizer(parameters):
    return torch.optim.Adam(parameters, lr=1e-3)


def make_batch(batch_size):
    return {
        "user": torch.randint(_USERS, (batch_size,)),
        "seen": torch.randint(_ITEMS, (batch_size, _SEEN)),
        "item": torch.randint(_ITEMS, (batch_size,)),
        "liked": torch.randint(2, (batch_size,)).float(),
    }


def compute_loss(model, batch):
    logits = model(batch["user"], batch["seen"], batch["item"])
    return functional.binary_cross_entropy_with_logits(logits, batch["liked"])
