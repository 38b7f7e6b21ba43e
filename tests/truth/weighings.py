"""What a loss may average over, how that is found, and what becomes of a micro-batch that has none of it."""

from __future__ import annotations

from advisor.workload.reduction import Reduction
from tests.truth.catalogue import TEXT_MODEL, Workload, with_loss

__all__ = ["WEIGHINGS"]

_CLASSES = (1.0, 5.0, 2.0, 9.0, 3.0, 7.0)

_LENGTHS = """
def make_batch(batch_size):
    lengths = (torch.randint(1, 7, (batch_size,)){kind})
    return {{"x": torch.randn(batch_size, 6, 8), "y": torch.randint(6, (batch_size, 6)), "lengths": lengths}}
"""

_BY_LENGTHS = """
steps, output = torch.arange(6)[None], model(batch["x"])
mask = steps < torch.as_tensor(batch["lengths"])[:, None]
return (F.cross_entropy(output.transpose(1, 2), batch["y"], reduction="none") * mask).sum() / mask.sum()
"""

_WITHOUT_TARGETS = """
def make_batch(batch_size):
    ids = torch.randint(1, 40, (batch_size, 12))
    labels = ids.clone()
    labels[1:][torch.rand(batch_size - 1) < 0.4] = -100
    return {"ids": ids, "labels": labels}
"""

_ALL_TARGETS = """
def make_batch(batch_size):
    ids = torch.randint(1, 40, (batch_size, 12))
    return {"ids": ids, "labels": ids}
"""

_WITH_AUXILIARY = """
hidden = torch.tanh(model.body(model.embedding(batch["ids"])))
loss = F.cross_entropy(model.head(hidden).flatten(0, 1), batch["labels"].flatten())
return loss + 5 * hidden.square().mean()
"""

_OF_TEXT = "logits, labels = model(batch['ids']).flatten(0, 1), batch['labels'].flatten()\n"

WEIGHINGS: dict[str, Workload] = {
    "class weights, looked up by hand": Workload(
        with_loss(
            "each = F.cross_entropy(model(batch[0]), batch[1], reduction='none')\n"
            "weights = WEIGHTS.to(each.dtype)[batch[1]]\n"
            "return (weights * each).sum() / weights.sum()"
        )
        + "\nWEIGHTS = torch.tensor([1.0, 5.0, 2.0, 9.0, 3.0, 7.0])\n",
        reduction=Reduction(targets="1", class_weights=_CLASSES),
    ),
    "class weights, a void class and smoothing": Workload(
        with_loss(
            "output = model(batch[0])\n"
            "weights = torch.tensor([1.0, 5.0, 2.0, 9.0, 3.0, 7.0], dtype=output.dtype)\n"
            "return F.cross_entropy(output, batch[1], weights, ignore_index=255, label_smoothing=0.1)",
            batch="""
def make_batch(batch_size):
    classes = torch.randint(6, (batch_size,))
    classes[1:][torch.rand(batch_size - 1) < 0.3] = 255
    return torch.randn(batch_size, 8), classes
""",
        ),
        reduction=Reduction(targets="1", ignore_index=255, class_weights=_CLASSES),
    ),
    "a mean over lengths": Workload(
        with_loss(_BY_LENGTHS, batch=_LENGTHS.format(kind="")),
        reduction=Reduction(targets="lengths", counted="values"),
    ),
    "a mean over lengths in a list": Workload(
        with_loss(_BY_LENGTHS, batch=_LENGTHS.format(kind=".tolist()")),
        reduction=Reduction(targets="lengths", counted="values"),
    ),
    "a mean over lengths but for the first token": Workload(
        with_loss(_BY_LENGTHS.replace("steps <", "steps + 1 <"), batch=_LENGTHS.format(kind=" + 1")),
        reduction=Reduction(targets="lengths", counted="values", shifted=True),
    ),
    "a mean over boxes": Workload(
        with_loss(
            "output, targets = model(batch['x'])[:, :4], batch['targets']\n"
            "far = [(one - target['boxes']).abs().sum() for one, target in zip(output, targets)]\n"
            "return sum(far) / sum(len(target['boxes']) for target in targets)",
            batch="""
def make_batch(batch_size):
    counts = torch.randint(1, 5, (batch_size,)).tolist()
    targets = [{"boxes": torch.randn(count, 4), "image": torch.tensor([7])} for count in counts]
    return {"x": torch.randn(batch_size, 8), "targets": targets}
""",
        ),
        reduction=Reduction(targets="targets.*.boxes", counted="rows"),
    ),
    "positives, of which there may be none": Workload(
        with_loss(
            "each = F.binary_cross_entropy_with_logits(model(batch['x']), batch['y'], reduction='none')\n"
            "return each.sum() / batch['y'].sum().clamp(min=1)",
            batch="""
def make_batch(batch_size):
    return {"x": torch.randn(batch_size, 8), "y": (torch.rand(batch_size, 6) < 0.1).float()}
""",
        ),
        reduction=Reduction(targets="y", ignore_index=0, at_least=1.0),
    ),
    "positives, of which there are always some in what is looked at": Workload(
        with_loss(
            "each = F.binary_cross_entropy_with_logits(model(batch['x']), batch['y'], reduction='none')\n"
            "return each.sum() / batch['y'].sum().clamp(min=1)",
            batch="""
def make_batch(batch_size):
    y = (torch.rand(batch_size, 6) < 0.5).float()
    y[:, 0] = 1
    if batch_size == 7:
        y[3:] = 0
    return {"x": torch.randn(batch_size, 8), "y": y}
""",
        ),
        reduction=Reduction(targets="y", ignore_index=0, at_least=1.0),
    ),
    "measurements that are missing where they are zero": Workload(
        with_loss(
            "output, known = model(batch[0]), batch[1] > 0\nreturn (output[known] - batch[1][known]).abs().mean()",
            batch="""
def make_batch(batch_size):
    return torch.randn(batch_size, 8), torch.rand(batch_size, 6) * (torch.rand(batch_size, 6) < 0.6)
""",
        ),
        reduction=Reduction(targets="1", ignore_index=0),
    ),
    "samples without targets": Workload(
        with_loss(_OF_TEXT + "return F.cross_entropy(logits, labels)", TEXT_MODEL, _WITHOUT_TARGETS)
    ),
    "samples without targets, and a penalty": Workload(
        with_loss(
            _OF_TEXT + "each = F.cross_entropy(logits, labels, reduction='sum')\n"
            "penalty = 0.1 * model.head.weight.square().sum()\n"
            "return each / (labels != -100).sum().clamp(min=1) + penalty",
            TEXT_MODEL,
            _WITHOUT_TARGETS,
        )
    ),
    "samples without targets in a mean over all": Workload(
        with_loss(
            _OF_TEXT + "return F.cross_entropy(logits, labels, reduction='none').mean()", TEXT_MODEL, _WITHOUT_TARGETS
        ),
        reduction=Reduction(),
    ),
    "a sum over samples without targets, and an auxiliary one": Workload(
        with_loss(
            _WITH_AUXILIARY.replace(".flatten())", ".flatten(), reduction='sum')").replace(".mean()", ".sum()"),
            TEXT_MODEL,
            _WITHOUT_TARGETS,
        ),
        reduction=Reduction(kind="sum"),
    ),
    "samples without targets, and a mean over samples": Workload(
        with_loss(_WITH_AUXILIARY, TEXT_MODEL, _WITHOUT_TARGETS), changes="means over different things"
    ),
    "as many targets in every sample, and a mean over samples": Workload(
        with_loss(_WITH_AUXILIARY, TEXT_MODEL, _ALL_TARGETS),
        reduction=Reduction(targets="labels", needs="even targets"),
    ),
    # ---- what a look at few samples does not show
    "the hardest of the batch": Workload(
        with_loss(
            "features = F.normalize(model(batch[0]), dim=-1)\n"
            "far, same = torch.cdist(features, features), batch[1][:, None] == batch[1]\n"
            "hardest = far.masked_fill(~same, 0).amax(1) - far.masked_fill(same, 9).amin(1)\n"
            "return (hardest + 0.2).relu().mean()"
        ),
        changes="looks at samples together",
    ),
    "samples that are mixed with others": Workload(
        with_loss(
            "inputs, classes = batch\n"
            "others = torch.randperm(len(inputs))\n"
            "output = model(0.7 * inputs + 0.3 * inputs[others])\n"
            "return 0.7 * F.cross_entropy(output, classes) + 0.3 * F.cross_entropy(output, classes[others])"
        ),
        changes="its samples are shuffled",
    ),
    # ---- batches that are no tensors
    "a list of graphs": Workload(
        with_loss(
            "hidden = [model[0](graph['x']).tanh() for graph in batch]\n"
            "passed = [h.index_add(0, g['edges'][1], h[g['edges'][0]]) for h, g in zip(hidden, batch)]\n"
            "logits = torch.stack([model[2](h.mean(0)) for h in passed])\n"
            "return F.cross_entropy(logits, torch.cat([graph['y'] for graph in batch]))",
            batch="""
def make_batch(batch_size):
    graphs = []
    for nodes in torch.randint(2, 6, (batch_size,)).tolist():
        edges, y = torch.randint(nodes, (2, 2 * nodes)), torch.randint(6, (1,))
        graphs.append({"x": torch.randn(nodes, 8), "edges": edges, "y": y})
    return graphs
""",
        )
    ),
    "a sparse batch": Workload(
        with_loss(
            "return F.cross_entropy(torch.sparse.mm(batch[0], model.weight.T) + model.bias, batch[1])",
            "def build_model():\n    return nn.Linear(30, 6)\n",
            """
def make_batch(batch_size):
    inputs = torch.randn(batch_size, 30) * (torch.rand(batch_size, 30) < 0.2)
    return inputs.to_sparse(), torch.randint(6, (batch_size,))
""",
        )
    ),
}
"""Batches of seven samples; the names say what matters."""
