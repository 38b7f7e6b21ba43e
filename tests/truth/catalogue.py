"""What people do to a batch and to a loss: one small workload for each, and what is true of it.

Each is written as a user would write it. What stands beside it is what the program must find out by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from advisor.workload.reduction import THE_BATCH, Reduction

__all__ = ["PADDED", "REFUSED", "TEXT_MODEL", "WORKLOADS", "Workload", "with_loss"]

_HEAD = """
import dataclasses
import typing
import torch
from torch import nn
from torch.nn import functional as F
"""

_MLP = """
def build_model():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 6))
"""

_PAIR = """
def make_batch(batch_size):
    return torch.randn(batch_size, 8), torch.randint(6, (batch_size,))
"""

TEXT_MODEL = """
class Text(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(40, 16), nn.Linear(16, 16), nn.Linear(16, 40)

    def forward(self, ids):
        return self.head(torch.tanh(self.body(self.embedding(ids))))

def build_model():
    return Text()
"""


@dataclass(frozen=True)
class Workload:
    """A workload, and what is true of it.

    Attributes:
        text: Its file, without the imports.
        samples: Of a batch that is cut into three.
        micro_batch: Of the pieces at most.
        dims: Where its batches have their samples, if not in dimension 0 of all that is a tensor.
        reduction: How its loss follows from those of micro-batches, if not as a training takes it to.
        changes: Part of why training on micro-batches is another training; empty if it is the same.
    """

    text: str
    samples: int = 7
    micro_batch: int = 3
    dims: dict[str, Any] | None = None
    reduction: Reduction | None = None
    changes: str = ""
    options: tuple[str, ...] = field(default=("compute_loss", "count_targets"))

    @property
    def source(self) -> str:
        """The whole file."""
        return _HEAD + self.text


def with_loss(line: str, model: str = _MLP, batch: str = _PAIR) -> str:
    """A file whose loss is these lines."""
    body = "\n".join(f"    {one}" for one in line.strip().splitlines())
    return f"{model}{batch}\ndef compute_loss(model, batch):\n{body}\n"


PADDED = """
def make_batch(batch_size):
    ids = torch.randint(1, 40, (batch_size, 12))
    for number, row in enumerate(ids):
        row[3 + (5 * number + int(torch.randint(9, ()))) % 9:] = {padding}
    return {{"ids": ids.clamp(min=0), "labels": ids}}
"""

WORKLOADS: dict[str, Workload] = {
    # ---- how a loss is reduced
    "mean": Workload(with_loss("return F.cross_entropy(model(batch[0]), batch[1])")),
    "sum": Workload(
        with_loss('return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")'), reduction=Reduction(kind="sum")
    ),
    "sum over a constant": Workload(
        with_loss('return F.cross_entropy(model(batch[0]), batch[1], reduction="sum") / 32'),
        reduction=Reduction(kind="sum"),
    ),
    "sum of squares": Workload(
        with_loss("return ((model(batch[0]).mean(1) - batch[1]) ** 2).sum()"), reduction=Reduction(kind="sum")
    ),
    "mean squared error": Workload(with_loss("return F.mse_loss(model(batch[0]).mean(1), batch[1].float())")),
    "sum over the batch size": Workload(
        with_loss('return F.cross_entropy(model(batch[0]), batch[1], reduction="sum") / len(batch[1])')
    ),
    "label smoothing": Workload(with_loss("return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.1)")),
    "per sample, stacked": Workload(
        with_loss("return torch.stack([F.cross_entropy(o, y) for o, y in zip(model(batch[0]), batch[1])]).mean()")
    ),
    # ---- targets that do not count
    "labels of text": Workload(
        with_loss(
            'return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())',
            TEXT_MODEL,
            PADDED.format(padding=-100),
        )
    ),
    "padding of 0": Workload(
        with_loss(
            'return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=0)',
            TEXT_MODEL,
            PADDED.format(padding=0),
        ),
        reduction=Reduction(targets="labels", ignore_index=0),
    ),
    "padding of -1": Workload(
        with_loss(
            'return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=-1)',
            TEXT_MODEL,
            PADDED.format(padding=-1),
        ),
        reduction=Reduction(targets="labels", ignore_index=-1),
    ),
    "the next token, padding of -1": Workload(
        with_loss(
            "logits = model(batch['ids'])[:, :-1]\n"
            "return F.cross_entropy(logits.flatten(0, 1), batch['labels'][:, 1:].flatten(), ignore_index=-1)",
            TEXT_MODEL,
            PADDED.format(padding=-1),
        ),
        reduction=Reduction(targets="labels", ignore_index=-1, shifted=True),
    ),
    "padded tokens and nothing else": Workload(
        with_loss(
            "return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten(), ignore_index=0)",
            TEXT_MODEL,
            PADDED.format(padding=0).replace('{"ids": ids.clamp(min=0), "labels": ids}', "ids"),
        ),
        reduction=Reduction(targets=THE_BATCH, ignore_index=0, shifted=True),
    ),
    "padded tokens, time first": Workload(
        with_loss(
            "return F.cross_entropy(model(batch[:-1]).flatten(0, 1), batch[1:].flatten(), ignore_index=0)",
            TEXT_MODEL,
            PADDED.format(padding=0).replace('{"ids": ids.clamp(min=0), "labels": ids}', "ids.T.contiguous()"),
        ),
        dims={"": 1},
        reduction=Reduction(targets=THE_BATCH, ignore_index=0, shifted=True),
    ),
    "a mask of what counts": Workload(
        with_loss(
            "each = F.cross_entropy(model(batch['ids']).flatten(0, 1), batch['ids'].flatten(), reduction='none')\n"
            "mask = batch['mask'].flatten()\n"
            "return (each * mask).sum() / mask.sum()",
            TEXT_MODEL,
            """
def make_batch(batch_size):
    mask = torch.arange(12)[None] < torch.randint(3, 12, (batch_size, 1))
    return {"ids": torch.randint(40, (batch_size, 12)), "mask": mask.long()}
""",
        ),
        reduction=Reduction(targets="mask", ignore_index=0),
    ),
    "a void class in a segmentation": Workload(
        with_loss(
            "return F.cross_entropy(model(batch[0]), batch[1], ignore_index=255)",
            "def build_model():\n    return nn.Conv2d(3, 5, 3, padding=1)\n",
            """
def make_batch(batch_size):
    masks = torch.randint(5, (batch_size, 6, 6))
    masks[torch.rand(masks.shape) < torch.rand(batch_size, 1, 1)] = 255
    return torch.randn(batch_size, 3, 6, 6), masks
""",
        ),
        reduction=Reduction(targets="1", ignore_index=255),
    ),
    "one class for each sample, of which many are void": Workload(
        with_loss(
            "return F.cross_entropy(model(batch[0]), batch[1], ignore_index=255)",
            batch="""
def make_batch(batch_size):
    classes = torch.randint(6, (batch_size,))
    classes[torch.rand(batch_size) < 0.4] = 255
    classes[0] = 1
    return torch.randn(batch_size, 8), classes
""",
        ),
        reduction=Reduction(targets="1", ignore_index=255),
    ),
    "a mask of floats": Workload(
        with_loss(
            "each = F.cross_entropy(model(batch['ids']).flatten(0, 1), batch['ids'].flatten(), reduction='none')\n"
            "mask = batch['mask'].flatten()\n"
            "return (each * mask).sum() / mask.sum()",
            TEXT_MODEL,
            """
def make_batch(batch_size):
    mask = torch.arange(12)[None] < torch.randint(3, 12, (batch_size, 1))
    return {"ids": torch.randint(40, (batch_size, 12)), "mask": mask.float()}
""",
        ),
        reduction=Reduction(targets="mask", ignore_index=0),
    ),
    "weights of classes in the mean": Workload(
        with_loss(
            "return F.cross_entropy(model(batch[0]), batch[1], weight=torch.tensor([1.0, 5.0, 2.0, 9.0, 3.0, 7.0]))"
        ),
        reduction=Reduction(targets="1", class_weights=(1.0, 5.0, 2.0, 9.0, 3.0, 7.0)),
    ),
    "counted by the user": Workload(
        with_loss(
            'return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=0)',
            TEXT_MODEL,
            PADDED.format(padding=0),
        )
        + "\ndef count_targets(batch):\n    return (batch['labels'] != 0).sum()\n"
    ),
    "counted wrongly by the user": Workload(
        with_loss(
            "each = F.cross_entropy(model(batch['ids']).flatten(0, 1), batch['labels'].flatten(), reduction='none')\n"
            "return (each / (1 + torch.arange(len(each)))).sum() / len(each) ** 0.5",
            TEXT_MODEL,
            PADDED.format(padding=0),
        )
        + "\ndef count_targets(batch):\n    return (batch['labels'] != 0).sum()\n",
        changes="count_targets does not count what the loss averages over",
    ),
    # ---- other losses that people write
    "a focal loss": Workload(
        with_loss(
            "each = F.cross_entropy(model(batch[0]), batch[1], reduction='none')\n"
            "return ((1 - (-each).exp()) ** 2 * each).mean()"
        )
    ),
    "logits of several labels": Workload(
        with_loss(
            "return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])",
            batch="""
def make_batch(batch_size):
    return torch.randn(batch_size, 8), (torch.rand(batch_size, 6) < 0.3).float()
""",
        )
    ),
    "a teacher": Workload(
        with_loss(
            "output, taught = model(batch[0]), TEACHER(batch[0]).softmax(-1)\n"
            "distilled = F.kl_div(output.log_softmax(-1), taught, reduction='batchmean')\n"
            "return 0.5 * distilled + 0.5 * F.cross_entropy(output, batch[1])"
        )
        + "\nTEACHER = nn.Linear(8, 6).requires_grad_(False)\n"
    ),
    "a triplet in every sample": Workload(
        with_loss(
            "anchor, near, far = (model(one) for one in (batch['anchor'], batch['near'], batch['far']))\n"
            "return F.triplet_margin_loss(anchor, near, far)",
            batch="""
def make_batch(batch_size):
    return {name: torch.randn(batch_size, 8) for name in ("anchor", "near", "far")}
""",
        )
    ),
    "pairs that are ranked": Workload(
        with_loss(
            "better, worse = model(batch[0]).mean(1), model(batch[1]).mean(1)\n"
            "return -F.logsigmoid(better - worse).mean()",
            batch="""
def make_batch(batch_size):
    return torch.randn(batch_size, 8), torch.randn(batch_size, 8)
""",
        )
    ),
    "all pairs within the batch": Workload(
        with_loss("score = model(batch[0]).mean(1)\nreturn F.softplus(score[:, None] - score[None, :]).mean()"),
        changes="looks at samples together",
    ),
    "two views with a temperature": Workload(
        with_loss(
            "one, other = (F.normalize(model(view), dim=-1) for view in batch)\n"
            "return F.cross_entropy(one @ other.T / 0.2, torch.arange(len(one)))",
            batch="""
def make_batch(batch_size):
    view = torch.randn(batch_size, 8)
    return view, view + 0.1 * torch.randn(batch_size, 8)
""",
        ),
        changes="looks at samples together",
    ),
    "sequences of several lengths, aligned": Workload(
        with_loss(
            "scores = model(batch['x']).log_softmax(-1).transpose(0, 1)\n"
            "return F.ctc_loss(scores, batch['y'], batch['x_lengths'], batch['y_lengths'])",
            batch="""
def make_batch(batch_size):
    lengths = torch.randint(1, 4, (batch_size,))
    return {"x": torch.randn(batch_size, 12, 8), "y": torch.randint(1, 6, (batch_size, 3)),
            "x_lengths": torch.full((batch_size,), 12), "y_lengths": lengths}
""",
        )
    ),
    "tokens that were masked": Workload(
        with_loss(
            "logits = model(batch['ids'])\n"
            "where = batch['labels'] != -100\n"
            "return F.cross_entropy(logits[where], batch['labels'][where])",
            TEXT_MODEL,
            """
def make_batch(batch_size):
    ids = torch.randint(1, 40, (batch_size, 12))
    masked = torch.rand(ids.shape) < torch.rand(batch_size, 1)
    masked[:, 0] = True
    return {"ids": ids.masked_fill(masked, 0), "labels": ids.masked_fill(~masked, -100)}
""",
        )
    ),
    "a weight for every sample": Workload(
        with_loss(
            "each = F.cross_entropy(model(batch['x']), batch['y'], reduction='none')\n"
            "return (batch['weight'] * each).mean()",
            batch="""
def make_batch(batch_size):
    return {"x": torch.randn(batch_size, 8), "y": torch.randint(6, (batch_size,)), "weight": torch.rand(batch_size)}
""",
        )
    ),
    "weights of samples that add up to one": Workload(
        with_loss(
            "each = F.cross_entropy(model(batch['x']), batch['y'], reduction='none')\n"
            "return (batch['weight'] * each).sum() / batch['weight'].sum()",
            batch="""
def make_batch(batch_size):
    return {"x": torch.randn(batch_size, 8), "y": torch.randint(6, (batch_size,)), "weight": torch.rand(batch_size)}
""",
        ),
        reduction=Reduction(targets="weight", counted="values"),
    ),
    "an auxiliary loss and a penalty": Workload(
        with_loss(
            "hidden = model[0](batch[0])\n"
            "penalty = sum(parameter.square().sum() for parameter in model.parameters())\n"
            "loss = F.cross_entropy(model[2](model[1](hidden)), batch[1])\n"
            "return loss + 0.1 * hidden.square().mean() + 1e-2 * penalty"
        )
    ),
    "a sum, and a penalty beside it": Workload(
        with_loss(
            "penalty = sum(parameter.square().sum() for parameter in model.parameters())\n"
            "return F.cross_entropy(model(batch[0]), batch[1], reduction='sum') + penalty"
        ),
        changes="looks at samples together",
    ),
    "a reconstruction summed within samples": Workload(
        with_loss(
            "output = model(batch)\nreturn ((output - batch[:, :6]) ** 2).flatten(1).sum(1).mean()",
            batch="""
def make_batch(batch_size):
    return torch.randn(batch_size, 8)
""",
        )
    ),
    # ---- other batches
    "mappings in mappings": Workload(
        with_loss(
            "return F.cross_entropy(model(batch['inputs']['x']), batch['targets']['classes']['y'])",
            batch="""
def make_batch(batch_size):
    return {"inputs": {"x": torch.randn(batch_size, 8), "mask": None},
            "targets": {"classes": {"y": torch.randint(6, (batch_size,))}}, "split": "train"}
""",
        )
    ),
    "a named tuple": Workload(
        with_loss(
            "return F.cross_entropy(model(batch.x), batch.y)",
            batch="""
class Batch(typing.NamedTuple):
    x: torch.Tensor
    y: torch.Tensor

def make_batch(batch_size):
    return Batch(torch.randn(batch_size, 8), torch.randint(6, (batch_size,)))
""",
        )
    ),
    "a number for the whole batch": Workload(
        with_loss(
            "return batch['scale'] * batch['factor'] * F.cross_entropy(model(batch['x']), batch['y'])",
            batch="""
def make_batch(batch_size):
    return {"x": torch.randn(batch_size, 8), "y": torch.randint(6, (batch_size,)),
            "scale": torch.tensor(0.5), "factor": 2.0}
""",
        )
    ),
    "names of files": Workload(
        with_loss(
            "assert len(batch['names']) == len(batch['x'])\nreturn F.cross_entropy(model(batch['x']), batch['y'])",
            batch="""
def make_batch(batch_size):
    names = [f"{number}.png" for number in range(batch_size)]
    return {"x": torch.randn(batch_size, 8), "y": torch.randint(6, (batch_size,)), "names": names}
""",
        )
    ),
    "images, channels last": Workload(
        with_loss(
            "return F.cross_entropy(model(batch[0]).mean((2, 3)), batch[1])",
            "def build_model():\n    return nn.Conv2d(3, 6, 3, padding=1).to(memory_format=torch.channels_last)\n",
            """
def make_batch(batch_size):
    images = torch.randn(batch_size, 3, 6, 6).to(memory_format=torch.channels_last)
    return images, torch.randint(6, (batch_size,))
""",
        )
    ),
    "a sum over what the batch says that it has": Workload(
        with_loss(
            "return F.cross_entropy(model(batch['x']), batch['y'], reduction='sum') / batch['count']",
            batch="""
def make_batch(batch_size):
    return {"x": torch.randn(batch_size, 8), "y": torch.randint(6, (batch_size,)), "count": batch_size}
""",
        ),
        reduction=Reduction(kind="sum", needs="one process"),
    ),
    "a sum over a number that is always the same": Workload(
        with_loss(
            "return F.cross_entropy(model(batch['x']), batch['y'], reduction='sum') / batch['usual']",
            batch="""
def make_batch(batch_size):
    return {"x": torch.randn(batch_size, 8), "y": torch.randint(6, (batch_size,)), "usual": 32}
""",
        ),
        reduction=Reduction(kind="sum"),
    ),
    "a square mask that all share": Workload(
        with_loss(
            "hidden = model[0](batch['x'])\n"
            "mixed = batch['mask'].softmax(-1) @ hidden\n"
            "return F.cross_entropy(model[2](model[1](mixed)).mean(1), batch['y'])",
            batch="""
def make_batch(batch_size):
    mask = torch.full((5, 5), float("-inf")).triu(1)
    return {"x": torch.randn(batch_size, 5, 8), "y": torch.randint(6, (batch_size,)), "mask": mask}
""",
        ),
        dims={"x": 0, "y": 0, "mask": None},
    ),
    "overlap within every sample": Workload(
        with_loss(
            "given, wanted = model(batch[0]).softmax(-1), F.one_hot(batch[1], 6)\n"
            "return (1 - (2 * (given * wanted).sum(1) + 1) / (given.sum(1) + wanted.sum(1) + 1)).mean()"
        )
    ),
    "overlap over the batch": Workload(
        with_loss(
            "given, wanted = model(batch[0]).softmax(-1), F.one_hot(batch[1], 6)\n"
            "return 1 - (2 * (given * wanted).sum() + 1) / (given.square().sum() + wanted.sum() + 1)"
        ),
        changes="looks at samples together",
    ),
    "a list of sequences": Workload(
        with_loss(
            "means = torch.stack([one.mean(0) for one in batch['x']])\n"
            "return F.cross_entropy(model(means), batch['y'])",
            batch="""
def make_batch(batch_size):
    return {"x": [torch.randn(2 + number % 3, 8) for number in range(batch_size)],
            "y": torch.randint(6, (batch_size,))}
""",
        ),
        dims={"x": 0, "y": 0},
    ),
    # ---- losses that look at samples together
    "negatives within the batch": Workload(
        with_loss(
            "features = F.normalize(model(batch[0]), dim=-1)\n"
            "return F.cross_entropy(features @ features.T.roll(1, 0) / 0.1, torch.arange(len(features)))"
        ),
        changes="looks at samples together",
    ),
    "normalized without running statistics": Workload(
        with_loss(
            "return F.cross_entropy(model(batch[0]), batch[1])",
            "def build_model():\n"
            "    normalization = nn.BatchNorm1d(16, track_running_stats=False)\n"
            "    return nn.Sequential(nn.Linear(8, 16), normalization, nn.Linear(16, 6))\n",
        ),
        changes="looks at samples together",
    ),
    "normalized by hand": Workload(
        with_loss("x = batch[0]\nreturn F.cross_entropy(model((x - x.mean(0)) / (x.std(0) + 1)), batch[1])"),
        changes="looks at samples together",
    ),
    "the largest loss of a batch": Workload(
        with_loss("return F.cross_entropy(model(batch[0]), batch[1], reduction='none').max()"),
        changes="looks at samples together",
    ),
    "the root of a mean": Workload(
        with_loss("return F.mse_loss(model(batch[0]).mean(1), batch[1].float()).sqrt()"),
        changes="looks at samples together",
    ),
    "two means, one of which has fewer targets": Workload(
        with_loss(
            "output = model(batch[0])\n"
            "few = batch[1] < 3\n"
            "return F.cross_entropy(output, batch[1]) + output[few].square().sum() / few.sum().clamp(min=1)"
        ),
        changes="looks at samples together",
    ),
    # ---- states that a forward pass changes
    "a counter of passes": Workload(
        """
class Counting(nn.Linear):
    def __init__(self):
        super().__init__(8, 6)
        self.register_buffer("passes", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.passes += 1
        return super().forward(x)

def build_model():
    return Counting()
"""
        + with_loss("return F.cross_entropy(model(batch[0]), batch[1])", ""),
        changes="changes passes",
    ),
    "a counter in Python": Workload(
        """
class Counting(nn.Linear):
    calls = 0

    def forward(self, x):
        self.calls = self.calls + 1
        return super().forward(x)

def build_model():
    return nn.Sequential(Counting(8, 6))
"""
        + with_loss("return F.cross_entropy(model(batch[0]), batch[1])", ""),
        changes="changes 0.calls",
    ),
    "an output that is kept": Workload(
        """
class Keeping(nn.Linear):
    def __init__(self):
        super().__init__(8, 6)
        self.kept, self.last = None, 0.0

    def forward(self, x):
        output = super().forward(x)
        self.kept, self.mean, self.last = output.softmax(-1), output.detach().mean(0), float(output.detach().sum())
        return output

def build_model():
    return Keeping()
"""
        + with_loss("return F.cross_entropy(model(batch[0]), batch[1])", ""),
    ),
    "an autocast of the user's own": Workload(
        with_loss(
            "with torch.autocast('cpu', torch.bfloat16):\n"
            "    output = model(batch[0])\n"
            "return F.cross_entropy(output.float(), batch[1])",
            "def build_model():\n"
            "    return nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(8)])\n",
        )
    ),
    "a counter of samples": Workload(
        """
class Counting(nn.Linear):
    def __init__(self):
        super().__init__(8, 6)
        self.register_buffer("samples", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        self.samples += len(x)
        return super().forward(x)

def build_model():
    return Counting()
"""
        + with_loss("return F.cross_entropy(model(batch[0]), batch[1])", ""),
    ),
    # ---- chance
    "dropout": Workload(
        with_loss(
            "return F.cross_entropy(model(batch[0]), batch[1])",
            "def build_model():\n    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 6))\n",
        )
    ),
    "dropout, and a sum": Workload(
        with_loss(
            "return F.cross_entropy(model(batch[0]), batch[1], reduction='sum')",
            "def build_model():\n    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 6))\n",
        ),
        reduction=Reduction(kind="sum"),
    ),
    "a function that drops out, and a sum": Workload(
        with_loss(
            "hidden = F.dropout(model[0](batch[0]), 0.5)\n"
            "return F.cross_entropy(model[2](model[1](hidden)), batch[1], reduction='sum')"
        ),
        reduction=Reduction(kind="sum"),
    ),
    "attention with dropout": Workload(
        with_loss(
            "return F.cross_entropy(model(batch[0]).mean(1), batch[1])",
            "def build_model():\n    return nn.TransformerEncoderLayer(8, 2, 16, 0.3, batch_first=True)\n",
            """
def make_batch(batch_size):
    return torch.randn(batch_size, 5, 8), torch.randint(8, (batch_size,))
""",
        )
    ),
    "strong noise, and a sum": Workload(
        with_loss(
            "noise = 2 * torch.randn_like(batch[0])\n"
            "return F.cross_entropy(model(batch[0] + noise), batch[1], reduction='sum')"
        ),
        reduction=Reduction(kind="sum"),
    ),
    "a variational autoencoder with noise, and a sum": Workload(
        with_loss(
            "mean, variance = model(batch).chunk(2, -1)\n"
            "latent = mean + torch.randn(mean.shape) * (0.5 * variance).exp()\n"
            "divergence = 0.5 * (mean ** 2 + variance.exp() - 1 - variance).sum()\n"
            "return F.mse_loss(F.pad(latent, (0, 5)), batch, reduction='sum') + divergence",
            batch="""
def make_batch(batch_size):
    return torch.randn(batch_size, 8)
""",
        )
        + "\ndef build_optimizer(parameters):\n    return torch.optim.SGD(parameters, lr=1e-3)\n",
        reduction=Reduction(kind="sum"),
    ),
    "noise that is added": Workload(
        with_loss("return F.cross_entropy(model(batch[0] + 0.3 * torch.randn_like(batch[0])), batch[1])")
    ),
    # ---- how a batch is made
    "time first": Workload(
        with_loss(
            "return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())",
            TEXT_MODEL,
            """
def make_batch(batch_size):
    ids = torch.randint(40, (10, batch_size))
    return ids[:-1], ids[1:]
""",
        ),
        dims={"0": 1, "1": 1},
    ),
    "lengths in a list": Workload(
        with_loss(
            "output = model(batch['x'])\n"
            "each = [F.cross_entropy(o[:n], y[:n]) for o, y, n in zip(output, batch['y'], batch['lengths'])]\n"
            "return torch.stack(each).mean()",
            batch="""
def make_batch(batch_size):
    lengths = torch.randint(1, 7, (batch_size,)).tolist()
    return {"x": torch.randn(batch_size, 6, 8), "y": torch.randint(6, (batch_size, 6)), "lengths": lengths}
""",
        )
    ),
    "weights of classes": Workload(
        with_loss(
            "each = F.cross_entropy(model(batch['x']), batch['y'], reduction='none')\n"
            "return (batch['weights'][batch['y']] * each).mean()",
            batch="""
def make_batch(batch_size):
    weights = torch.linspace(1, 2, 6)
    return {"x": torch.randn(batch_size, 8), "y": torch.randint(6, (batch_size,)), "weights": weights}
""",
        ),
        dims={"x": 0, "y": 0, "weights": None},
    ),
    "a dataclass": Workload(
        with_loss(
            "return F.cross_entropy(model(batch.x), batch.y)",
            batch="""
@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    y: torch.Tensor

def make_batch(batch_size):
    return Batch(torch.randn(batch_size, 8), torch.randint(6, (batch_size,)))
""",
        )
    ),
    "a list of images of several sizes": Workload(
        with_loss(
            "features = torch.stack([image.flatten(1).mean(1) for image in batch[0]])\n"
            "return F.cross_entropy(model(features), batch[1])",
            batch="""
def make_batch(batch_size):
    return [torch.randn(8, 3 + number % 4, 5) for number in range(batch_size)], torch.randint(6, (batch_size,))
""",
        ),
        dims={"0": 0, "1": 0},
    ),
    "samples last": Workload(
        with_loss(
            "return F.cross_entropy(model(batch['x'].T), batch['y'])",
            batch="""
def make_batch(batch_size):
    return {"x": torch.randn(8, batch_size), "y": torch.randint(6, (batch_size,))}
""",
        ),
        dims={"x": 1, "y": 0},
    ),
    "arrays of numpy": Workload(
        with_loss(
            "return F.cross_entropy(model(torch.from_numpy(batch['x'])), torch.from_numpy(batch['y']))",
            batch="""
def make_batch(batch_size):
    return {"x": torch.randn(batch_size, 8).numpy(), "y": torch.randint(6, (batch_size,)).numpy()}
""",
        ),
        dims={"x": 0, "y": 0},
    ),
    "batches of even sizes": Workload(
        with_loss(
            "assert len(batch[0]) % 2 == 0, len(batch[0])\nreturn F.cross_entropy(model(batch[0]), batch[1])",
            batch="""
def make_batch(batch_size):
    if batch_size % 2:
        raise ValueError("batches come in pairs")
    return torch.randn(batch_size, 8), torch.randint(6, (batch_size,))
""",
        ),
        samples=12,
        micro_batch=4,
    ),
    "a model that takes no single sample": Workload(
        with_loss("return F.cross_entropy(model(batch[0]).squeeze(), batch[1])"),
        micro_batch=3,
    ),
}

REFUSED: dict[str, str] = {
    "a loader of a fixed batch": with_loss(
        "return F.cross_entropy(model(batch[0]), batch[1])",
        batch="""
def make_batch(batch_size):
    return torch.randn(32, 8), torch.randint(6, (32,))
""",
    ),
    "a loader of its own": with_loss(
        "return F.cross_entropy(model(batch[0]), batch[1])",
        batch="""
LOADER = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(torch.randn(640, 8), torch.randint(6, (640,))), batch_size=16)

def make_batch(batch_size):
    return next(iter(LOADER))
""",
    ),
    "samples that are filtered": with_loss(
        "return F.cross_entropy(model(batch[0]), batch[1])",
        batch="""
def make_batch(batch_size):
    x = torch.randn(batch_size, 8)
    x = x[x[:, 0] > 0]
    return x, torch.randint(6, (len(x),))
""",
    ),
}
"""Of whose batches nobody can say how many samples they have; the files without the imports."""
