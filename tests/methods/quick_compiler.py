"""A compiler that makes no kernels: the same graphs as torch's default, run as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch._dynamo.config
import torch._inductor.config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import compile_fx
from torch._inductor.decomposition import select_decomp_table

from advisor.methods.kernels import _compile as compiled
from advisor.methods.kernels._compile import KeepRandom

keep_random = KeepRandom()


@contextmanager
def quick_compiler() -> Iterator[None]:
    """Compile with :func:`without_kernels`, and keep what is compiled from one training to the next."""
    with pytest.MonkeyPatch.context() as patch, torch._dynamo.config.patch(automatic_dynamic_shapes=False):
        patch.setattr(compiled, "BACKEND", without_kernels)
        patch.setattr(torch._dynamo, "reset", lambda: None)
        yield
    torch._dynamo.reset()


@contextmanager
def quick_inductor() -> Iterator[None]:
    """The same for whoever else asks torch.compile for its default."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            compile_fx, "compile_fx", lambda graph, inputs, **_: without_kernels(graph, inputs, budgeted=False)
        )
        yield
    torch._dynamo.reset()


def without_kernels(
    graph: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], *, budgeted: bool
) -> Callable[..., Any]:
    """Compile to a forward and a backward graph of the same operators as for kernels, and run them as they are."""

    def split(joint: torch.fx.GraphModule, *args: Any, **kwargs: Any) -> tuple[torch.fx.GraphModule, ...]:
        if budgeted:
            keep_random(joint.graph)
        return min_cut_rematerialization_partition(joint, *args, compiler="inductor", **kwargs)

    with torch._inductor.config.patch(fallback_random=True):
        decompositions = select_decomp_table()
    backend = aot_autograd(
        fw_compiler=_as_it_is, bw_compiler=_as_it_is, partition_fn=split, decompositions=decompositions
    )
    compiled_graph: Callable[..., Any] = backend(graph, inputs)
    return compiled_graph


def _as_it_is(graph: torch.fx.GraphModule, _inputs: Any) -> Callable[..., Any]:
    boxed: Callable[..., Any] = make_boxed_func(graph.forward)
    return boxed
