"""Models that do what makes a step hard to change: each is a small workload, written as its user would write it."""

from __future__ import annotations

from tests.truth.catalogue import Workload

__all__ = ["MODELS"]

_PAIR = """
def make_batch(batch_size):
    return torch.randn(batch_size, 16), torch.randint(6, (batch_size,))

def compute_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])
"""

_CHAIN = """
def build_model():
    return nn.Sequential(*(Block() for _ in range(4)), nn.Linear(16, 6))
"""


def _block(body: str, more: str = _CHAIN, batch: str = _PAIR, **truths: str) -> Workload:
    """A chain of four blocks; ``body`` is what is in the class."""
    lines = "\n".join(f"    {line}" if line else "" for line in body.strip().splitlines())
    return Workload(f"\nclass Block(nn.Module):\n{lines}\n{more}{batch}", **truths)  # type: ignore[arg-type]


def _init(*lines: str) -> str:
    return "\n".join(["def __init__(self):", "    super().__init__()", *(f"    {line}" for line in lines), ""])


def _forward(*lines: str) -> str:
    return "\n".join(["def forward(self, x):", *(f"    {line}" for line in lines)])


_MLP = "self.a, self.b = nn.Linear(16, 32), nn.Linear(32, 16)"
_BRANCH = "self.b(self.a(x).tanh())"
_RESIDUAL = f"return x + {_BRANCH}"

MODELS: dict[str, Workload] = {
    "a residual block": _block(_init(_MLP) + _forward(_RESIDUAL)),
    # ---- parameters
    "tied weights": Workload(
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.blocks = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids):
        x = self.embedding(ids)
        for block in self.blocks:
            x = x + block(x).tanh()
        return self.head(x)

def build_model():
    return Net()

def make_batch(batch_size):
    return torch.randint(40, (batch_size, 5)), torch.randint(40, (batch_size, 5))

def compute_loss(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())
"""
    ),
    "frozen parameters": _block(_init(_MLP, "self.a.requires_grad_(False)") + _forward(_RESIDUAL)),
    "parameters that nothing uses": _block(_init(_MLP, "self.unused = nn.Linear(16, 16)") + _forward(_RESIDUAL)),
    "a block called twice": _block(
        _init(_MLP) + _forward(_RESIDUAL),
        """
class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared, self.blocks, self.head = Block(), nn.ModuleList(Block() for _ in range(3)), nn.Linear(16, 6)

    def forward(self, x):
        for block in self.blocks:
            x = self.shared(block(self.shared(x)))
        return self.head(x)

def build_model():
    return Twice()
""",
    ),
    "weight norm": _block(
        _init("self.a = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))")
        + _forward("return x + self.a(x).tanh()")
    ),
    "spectral norm": _block(
        _init("self.a = nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))")
        + _forward("return x + self.a(x).tanh()"),
        changes="once for each micro-batch",
    ),
    "double precision": _block(
        _init("self.a = nn.Linear(16, 16).double()") + _forward("return x + self.a(x.double()).tanh().float()")
    ),
    "complex parameters": _block(
        _init("self.a = nn.Parameter(torch.randn(16, 16, dtype=torch.complex64) / 8)")
        + _forward("return x + (x.to(torch.complex64) @ self.a).abs()")
    ),
    "scalar parameters": _block(
        _init(_MLP, "self.scale = nn.Parameter(torch.tensor(0.5))") + _forward(f"return x + self.scale * {_BRANCH}")
    ),
    "two groups of parameters": _block(
        _init(_MLP) + _forward(_RESIDUAL),
        _CHAIN
        + """
def build_optimizer(parameters):
    parameters = list(parameters)
    biases = [one for one in parameters if one.dim() < 2]
    matrices = [one for one in parameters if one.dim() >= 2]
    return torch.optim.SGD([{"params": matrices, "weight_decay": 0.1}, {"params": biases, "lr": 0.5}], lr=0.1)
""",
    ),
    "a scheduler made with the optimizer": _block(
        _init(_MLP) + _forward(_RESIDUAL),
        _CHAIN
        + """
def build_optimizer(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 ** step)
    optimizer.register_step_post_hook(lambda *_: scheduler.step())
    return optimizer
""",
    ),
    "an average of the parameters": _block(
        _init(_MLP) + _forward(_RESIDUAL),
        """
class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(16, 6))
        self.register_buffer("average", torch.zeros(6, 16))

    def forward(self, x):
        return self.net(x)

MODELS = []

def build_model():
    MODELS.append(Averaged())
    return MODELS[-1]

def build_optimizer(parameters):
    optimizer, model = torch.optim.SGD(parameters, lr=0.1), MODELS[-1]
    def average(*_):
        model.average.mul_(0.9).add_(model.net[-1].weight.detach(), alpha=0.1)
    optimizer.register_step_post_hook(average)
    return optimizer
""",
    ),
    "sparse gradients of an embedding": Workload(
        """
def build_model():
    return nn.Sequential(nn.Embedding(40, 16, sparse=True), *(nn.Linear(16, 16) for _ in range(4)), nn.Linear(16, 40))

def make_batch(batch_size):
    return torch.randint(40, (batch_size, 5)), torch.randint(40, (batch_size, 5))

def compute_loss(model, batch):
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())

def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""
    ),
    # ---- what a forward pass does to the model
    "batch norm": _block(
        _init("self.a, self.n = nn.Linear(16, 16), nn.BatchNorm1d(16)")
        + _forward("return x + self.n(self.a(x)).relu()"),
        changes="looks at samples together",
    ),
    "batch norm without running statistics": _block(
        _init("self.a, self.n = nn.Linear(16, 16), nn.BatchNorm1d(16, track_running_stats=False)")
        + _forward("return x + self.n(self.a(x)).relu()"),
        changes="looks at samples together",
    ),
    "a counter of calls in Python": _block(
        _init(_MLP, "self.calls = 0") + _forward("self.calls += 1", _RESIDUAL), changes="changes 0.calls"
    ),
    "a buffer that is written": _block(
        _init(_MLP, "self.register_buffer('passes', torch.zeros(()))") + _forward("self.passes += 1", _RESIDUAL),
        changes="changes 0.passes",
    ),
    "a buffer of the last output": _block(
        _init(_MLP, "self.register_buffer('last', torch.zeros(()))")
        + _forward("y = self.b(torch.tanh(self.a(x)))", "self.last.copy_(y.detach().sum())", "return x + y")
    ),
    "counters in a mapping, a helper and an array": _block(
        _init(_MLP, "self.stats, self.clock, self.seen = {'calls': 0}, Clock(), numpy.zeros(1)")
        + _forward(
            "self.stats['calls'] += 1",
            "self.clock.tick()",
            "self.seen[0] += 1",
            "scale = 0.1 * self.stats['calls'] + 0.01 * self.clock.ticks + 0.2 * float(self.seen[0])",
            f"return x + min(1.0, scale) * {_BRANCH}",
        ),
        _CHAIN
        + """
import numpy

class Clock:
    def __init__(self):
        self.ticks = 0

    def tick(self):
        self.ticks += 1
""",
        changes="depends on what every pass changes",
    ),
    "a codebook that is a frozen parameter": _block(
        _init(_MLP, "self.codes = nn.Parameter(torch.randn(5, 16), requires_grad=False)")
        + _forward(
            "with torch.no_grad():",
            "    near = torch.cdist(x.float(), self.codes.float()).argmin(1)",
            "    self.codes.data[near] += 0.1 * (x - self.codes[near])",
            f"return x + {_BRANCH} + 0.1 * self.codes[near].detach()",
        ),
        changes="depends on what every pass changes",
    ),
    "a buffer that is written after a warm-up": _block(
        _init(_MLP, "self.steps = 0", "self.register_buffer('mean', torch.zeros(16))")
        + _forward(
            "self.steps += 1",
            "if self.steps > 1:",
            "    self.mean += 0.1 * x.detach().mean(0)",
            f"return x + {_BRANCH} + self.mean.to(x)",
        ),
        changes="depends on what every pass changes",
    ),
    "a plain tensor made on first use": _block(
        _init(_MLP, "self.scale = None")
        + _forward(
            "if self.scale is None:",
            "    self.scale = torch.linspace(0.5, 1.5, 16)",
            f"return x + self.scale * {_BRANCH}",
        )
    ),
    "layers built on first use": _block(
        _init("self.a = nn.LazyLinear(16)") + _forward("return x + self.a(x).tanh()"),
        """
def build_model():
    model = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(16, 6))
    model(torch.zeros(1, 16))
    return model
""",
    ),
    "activations in place": _block(_init(_MLP) + _forward("return x + self.b(F.relu(self.a(x), inplace=True))")),
    "outputs that are added to in place": _block(
        _init(_MLP) + _forward("y = self.b(self.a(x).tanh())", "y += x", "return y")
    ),
    # ---- chance
    "dropout": _block(_init(_MLP, "self.d = nn.Dropout(0.3)") + _forward(f"return x + self.d({_BRANCH})")),
    "a function that drops out": _block(
        _init(_MLP) + _forward("return x + F.dropout(self.b(self.a(x).tanh()), 0.3, self.training)")
    ),
    "blocks that are skipped at random": _block(
        _init(_MLP) + _forward("if torch.rand(()) < 0.4:", "    return x", _RESIDUAL)
    ),
    "blocks skipped by Python's own chance": _block(
        _init(_MLP) + _forward("import random", "if random.random() < 0.4:", "    return x", _RESIDUAL)
    ),
    "paths that are dropped for some samples": _block(
        _init(_MLP)
        + _forward("keep = (torch.rand(len(x), 1) < 0.7).float() / 0.7", "return x + keep * self.b(self.a(x).tanh())")
    ),
    "a generator of its own in a helper and in a closure": _block(
        _init(
            _MLP,
            "self.noise, own = Noise(), torch.Generator().manual_seed(4)",
            "self.more = lambda x: torch.rand(x.shape, generator=own)",
        )
        + _forward(f"return x + (self.noise(x) + self.more(x)).to(x) * {_BRANCH}"),
        _CHAIN
        + """
class Noise:
    def __init__(self):
        self.generator = torch.Generator().manual_seed(3)

    def __call__(self, x):
        return torch.rand(x.shape, generator=self.generator)
""",
    ),
    "a generator of its own": _block(
        _init(_MLP, "self.generator = torch.Generator().manual_seed(3)")
        + _forward("noise = torch.rand(x.shape, generator=self.generator)", f"return x + noise * {_BRANCH}")
    ),
    # ---- how a model computes
    "checkpointed by the user": _block(
        _init(_MLP) + _forward(_RESIDUAL),
        """
class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(4)), nn.Linear(16, 6)

    def forward(self, x):
        for block in self.blocks:
            x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return self.head(x)

def build_model():
    return Checkpointed()
""",
    ),
    "a function with a backward of its own": Workload(
        """
class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * (x.abs() < 2)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(16, 16)

    def forward(self, x):
        return x + Straight.apply(2 * self.a(x))
"""
        + _CHAIN
        + _PAIR
    ),
    "a branch without gradients": _block(
        _init(_MLP)
        + _forward(
            "with torch.no_grad():",
            "    gate = self.a(x).mean(1, keepdim=True).sigmoid()",
            f"return x + gate * {_BRANCH}",
        )
    ),
    "a detached part": _block(_init(_MLP) + _forward("return x + self.b(self.a(x.detach()).tanh())")),
    "several outputs in mappings": _block(
        _init(_MLP) + _forward("y = x['state']['x']", "return {'state': {'x': y + self.b(self.a(y).tanh())}, 'y': y}"),
        """
class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(4)), nn.Linear(16, 6)

    def forward(self, x):
        state = {"state": {"x": x}}
        for block in self.blocks:
            state = block(state)
        return self.head(state["state"]["x"])

def build_model():
    return Nested()
""",
    ),
    "a list of tensors through the blocks": _block(
        _init(_MLP) + _forward("return [x[0] + self.b(self.a(x[1]).tanh()), x[0]]"),
        """
class Lists(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks, self.head = nn.ModuleList(Block() for _ in range(4)), nn.Linear(16, 6)

    def forward(self, x):
        state = [x, x]
        for block in self.blocks:
            state = block(state)
        return self.head(state[0] + state[1])

def build_model():
    return Lists()
""",
    ),
    "a recurrent net": Workload(
        """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(16, 16, 2, batch_first=True), nn.Linear(16, 6)

    def forward(self, x):
        output, (hidden, cell) = self.rnn(x)
        return self.head(output[:, -1] + hidden[-1])

def build_model():
    return Net()

def make_batch(batch_size):
    return torch.randn(batch_size, 5, 16), torch.randint(6, (batch_size,))

def compute_loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])
"""
    ),
    "experts with an auxiliary loss": _block(
        _init(
            "self.experts, self.gate = nn.ModuleList(nn.Linear(16, 16) for _ in range(3)), nn.Linear(16, 3)",
            "self.balance = 0.0",
        )
        + _forward(
            "weights = self.gate(x).softmax(-1)",
            "self.balance = (weights * weights.log()).sum(-1).mean()",
            "outputs = torch.stack([expert(x) for expert in self.experts], -1)",
            "return x + (outputs * weights[:, None]).sum(-1).tanh()",
        ),
        batch=_PAIR.replace(
            "batch[1])\n", "batch[1]) + 0.1 * sum(block.balance for block in model if hasattr(block, 'balance'))\n"
        ),
    ),
    "a model that returns its loss": _block(
        _init(_MLP) + _forward(_RESIDUAL),
        """
class Losing(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(*(Block() for _ in range(4)), nn.Linear(16, 6))

    def forward(self, x, y):
        return {"loss": F.cross_entropy(self.net(x), y)}

def build_model():
    return Losing()
""",
        _PAIR.split("def compute_loss")[0],
    ),
    # ---- hooks
    "a forward hook that changes the output": _block(
        _init(_MLP, "self.register_forward_hook(lambda module, inputs, output: 0.9 * output)") + _forward(_RESIDUAL)
    ),
    "a forward hook that counts": _block(
        _init(_MLP, "self.seen = 0", "self.register_forward_hook(self.count)")
        + "@staticmethod\ndef count(module, inputs, output):\n    module.seen += len(output)\n\n"
        + _forward(_RESIDUAL)
    ),
    "a backward hook that scales": _block(
        _init(_MLP, "self.register_full_backward_hook(lambda module, before, after: (0.5 * before[0],))")
        + _forward(_RESIDUAL),
        _CHAIN.replace("nn.Sequential(", "nn.Sequential(nn.Linear(16, 16), "),
    ),
    "gradient hooks that scale": _block(
        _init(_MLP, "self.a.weight.register_hook(lambda gradient: 0.5 * gradient)") + _forward(_RESIDUAL)
    ),
    "hooks on activations": _block(
        _init(_MLP)
        + _forward(
            "y = self.a(x).tanh()",
            "if y.requires_grad:",
            "    y.register_hook(lambda gradient: 0.5 * gradient)",
            "return x + self.b(y)",
        )
    ),
}
