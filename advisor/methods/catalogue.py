"""The methods that exist: one line each, in the order in which people read about them."""

from __future__ import annotations

import difflib

from advisor.errors import MethodRefusedError
from advisor.methods.adam_8bit import Adam8bit
from advisor.methods.base import Method
from advisor.methods.checkpoint import Checkpoint
from advisor.methods.chunked_cross_entropy import ChunkedCrossEntropy
from advisor.methods.ddp import Ddp
from advisor.methods.fsdp import Fsdp
from advisor.methods.gradient_compression import GradientCompression
from advisor.methods.optimal_checkpoint import OptimalCheckpoint
from advisor.methods.optimizer_in_backward import OptimizerInBackward
from advisor.methods.precision import Precision
from advisor.methods.recursive_checkpoint import RecursiveCheckpoint
from advisor.methods.residual_checkpoint import ResidualCheckpoint
from advisor.methods.selective_checkpoint import SelectiveCheckpoint
from advisor.methods.sqrt_checkpoint import SqrtCheckpoint
from advisor.methods.swap import Swap
from advisor.methods.zero_1 import Zero1

__all__ = ["CATALOGUE", "get_method"]

CATALOGUE: tuple[Method, ...] = (
    Precision(),
    Checkpoint(),
    ResidualCheckpoint(),
    SqrtCheckpoint(),
    RecursiveCheckpoint(),
    OptimalCheckpoint(),
    SelectiveCheckpoint(),
    Swap(),
    Adam8bit(),
    OptimizerInBackward(),
    ChunkedCrossEntropy(),
    Ddp(),
    Zero1(),
    Fsdp(),
    GradientCompression(),
)


def get_method(name: str) -> Method:
    """The method of that name.

    Raises:
        MethodRefusedError: There is none; the message lists the names that exist.
    """
    for method in CATALOGUE:
        if method.name == name:
            return method
    names = [method.name for method in CATALOGUE]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise MethodRefusedError(f"a method must be one of {', '.join(names)}, but got {name!r}{hint}")
