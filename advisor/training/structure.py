"""What a model is made of: its repeated blocks, its attention, its normalization, its bytes."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import ActivationWrapper
from torch.nn.parameter import is_lazy

from advisor.errors import WorkloadError

__all__ = [
    "TransparentWrapper",
    "all_places",
    "buffer_bytes",
    "find_attention",
    "find_blocks",
    "has_batchnorm",
    "has_dropout",
    "hidden_matrices",
    "is_transposed",
    "matrix_layers",
    "matrix_shape",
    "matrix_shapes",
    "module_counts",
    "output_layer",
    "parameter_bytes",
    "parameter_count",
    "parameter_dtypes",
    "put_in_places",
    "qualified_class_name",
    "require_built",
    "stages_of",
    "trainable_parameter_count",
    "unwrapped",
]

_ATTENTION = re.compile(r"Attention|Attn|^MHA")
"""In the names of classes."""


def find_blocks(model: nn.Module, declared: tuple[type, ...] = ()) -> list[nn.Module]:
    """The repeated blocks of a model, in the order of its modules and without wrappers; empty if nothing repeats.

    If the workload declares classes (``BLOCKS``), only these count. Otherwise candidates are classes with at least two
    instances as direct children of an ``nn.ModuleList``, ``nn.Sequential`` or ``nn.ModuleDict``, each with at least two
    leaf modules, never nested in themselves, together covering half of the model's leaf modules. Of these the class is
    taken whose number of instances is nearest, in log scale, to the square root of the number of leaf modules: with
    that many equal segments, checkpointing a chain needs the least memory (Chen et al. 2016).

    Raises:
        WorkloadError: No module is of a declared class.
    """
    if declared:
        blocks = _outermost(model, lambda module: isinstance(module, declared))
        if not blocks:
            names = ", ".join(kind.__name__ for kind in declared)
            raise WorkloadError(f"BLOCKS must name classes of the model's modules, but no module is of {names}")
        return blocks
    leaves = _leaf_count(model)
    children: dict[type, dict[int, nn.Module]] = defaultdict(dict)
    for parent in model.modules():
        if isinstance(parent, nn.ModuleList | nn.Sequential | nn.ModuleDict):
            for child in map(unwrapped, parent.children()):
                children[type(child)][id(child)] = child
    target = math.log(leaves) / 2
    candidates = [
        (abs(math.log(len(blocks)) - target), -len(blocks), list(blocks.values()))
        for kind, blocks in children.items()
        if len(blocks) >= 2 and _is_block_class(kind, list(blocks.values()), leaves)
    ]
    return min(candidates, key=lambda candidate: candidate[:2])[2] if candidates else []


def stages_of(model: nn.Module, blocks: Sequence[nn.Module]) -> list[range]:
    """The numbers of the blocks in each stage: consecutive blocks held by one module.

    Between stages, a model may also use the last block's output elsewhere, as the skip connections of a U-Net do;
    within one it hardly can.
    """
    numbers = {id(block): number for number, block in enumerate(blocks)}
    holders: dict[int, int] = {}
    for parent in model.modules():
        for child in parent.children():
            number = numbers.get(id(unwrapped(child)))
            if number is not None and unwrapped(parent) is parent:  # A wrapper is not a stage.
                holders.setdefault(number, id(parent))
    starts = [number for number in range(len(blocks)) if number == 0 or holders[number] != holders[number - 1]]
    return [range(start, stop) for start, stop in itertools.pairwise([*starts, len(blocks)])]


def find_attention(model: nn.Module) -> list[nn.Module]:
    """The outermost attention modules: those whose class, or a base of it, is named so (``Attn``, ``MHA``)."""
    return _outermost(model, lambda module: module is not model and _is_attention(module))


def _is_attention(module: nn.Module) -> bool:
    return any(_ATTENTION.search(kind.__name__) for kind in type(module).__mro__)


def output_layer(model: nn.Module) -> nn.Module | None:
    """The output layer that a transformers model names, if it does."""
    get_output = getattr(model, "get_output_embeddings", None)
    output: nn.Module | None = get_output() if callable(get_output) else None
    return output


def matrix_layers(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Names and modules of the linear layers and convolutions that compute with a weight of their own, in order.

    Left out are the output layer that a transformers model names (``get_output_embeddings``), weights that are tied to
    another module's, convolutions in groups, and subclasses, which may compute something else or, as the projection of
    ``nn.MultiheadAttention``, are never called. transformers' ``Conv1D`` counts as a linear layer.
    """
    output = output_layer(model)
    owners = Counter(
        id(parameter)
        for module in model.modules()
        for parameter in module._parameters.values()
        if parameter is not None
    )
    return [
        (name, module)
        for name, module in model.named_modules()
        if (type(module) is nn.Linear or is_transposed(module) or (type(module) is nn.Conv2d and module.groups == 1))
        and module is not output
        and owners[id(module.weight)] == 1
    ]


def all_places(model: nn.Module, names: Iterable[str]) -> dict[str, str]:
    """Every name under which a model holds some of its modules -> the one of ``names`` for the same module."""
    first = {id(model.get_submodule(name)): name for name in names}
    every = model.named_modules(remove_duplicate=False)
    return {name: first[id(module)] for name, module in every if id(module) in first}


def put_in_places(model: nn.Module, modules: Mapping[str, nn.Module], places: Mapping[str, str]) -> None:
    """Put modules, by the names that :func:`all_places` was asked for, into all of their places."""
    for place, name in places.items():
        parent, _, own = place.rpartition(".")
        setattr(model.get_submodule(parent), own, modules[name])


def matrix_shapes(model: nn.Module) -> dict[str, tuple[tuple[int, int], ...]]:
    """Kind of layer (as :func:`module_counts` names it) -> distinct shapes of the :func:`matrix_layers` of that kind.

    A shape is (outputs, inputs); the inputs of a convolution are its channels times the size of its kernel.
    """
    found: dict[str, dict[tuple[int, int], None]] = defaultdict(dict)
    for _, module in matrix_layers(model):
        found[qualified_class_name(module)][matrix_shape(module)] = None
    return {kind: tuple(shapes) for kind, shapes in found.items()}


def matrix_shape(layer: nn.Module) -> tuple[int, int]:
    """(outputs, inputs) of one of the :func:`matrix_layers`."""
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    first, rest = weight.size(0), weight.numel() // weight.size(0)
    return (rest, first) if is_transposed(layer) else (first, rest)


def hidden_matrices(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Parameter]:
    """The trained matrices inside blocks, except those shared with an embedding."""
    embedded = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for parameter in module.parameters()
    }
    inside = {id(parameter): parameter for block in blocks for parameter in block.parameters()}
    return [
        parameter
        for known, parameter in inside.items()
        if known not in embedded and parameter.requires_grad and parameter.dim() == 2 and not parameter.is_complex()
    ]


def module_counts(model: nn.Module) -> dict[str, int]:
    """Qualified class name -> number of modules."""
    return dict(Counter(map(qualified_class_name, model.modules())))


def qualified_class_name(module: nn.Module) -> str:
    """The class name of a module; torch's own by their public names."""
    kind = type(module)
    public = getattr(nn, kind.__qualname__, None) is kind
    return f"torch.nn.{kind.__qualname__}" if public else f"{kind.__module__}.{kind.__qualname__}"


def parameter_dtypes(model: nn.Module) -> tuple[str, ...]:
    """The float formats of the parameters, by torch's names without ``torch.``, sorted."""
    names = {str(p.dtype).removeprefix("torch.") for p in model.parameters() if p.is_floating_point()}
    return tuple(sorted(names))


def has_batchnorm(model: nn.Module) -> bool:
    """Whether a forward pass in training mode updates running statistics."""
    return any(
        isinstance(module, nn.modules.batchnorm._NormBase) and module.training and module.running_mean is not None
        for module in model.modules()
    )


def has_dropout(model: nn.Module) -> bool:
    """Whether a dropout with a probability above zero exists, as a module or inside attention or a recurrent layer."""
    return any(
        (isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0)
        or (isinstance(module, nn.MultiheadAttention | nn.RNNBase) and module.dropout > 0)
        for module in model.modules()
    )


def require_built(model: nn.Module) -> None:
    """Require that all parameters are initialized.

    Raises:
        WorkloadError: Some are created when the model is first called.
    """
    unbuilt = [name for name, tensor in (*model.named_parameters(), *model.named_buffers()) if is_lazy(tensor)]
    if unbuilt:
        raise WorkloadError(
            f"every layer must be built before training, but {len(unbuilt)} parameters ({', '.join(unbuilt[:3])}) are "
            "made when the model is first called; call it once where it is built: model(inputs)"
        )


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of the distinct parameters (tied weights counted once)."""
    return sum(parameter.nbytes for parameter in model.parameters())


def parameter_count(model: nn.Module) -> int:
    """Number of distinct parameters (tied weights counted once)."""
    return sum(parameter.numel() for parameter in model.parameters())


def trainable_parameter_count(model: nn.Module) -> int:
    """Number of distinct parameters that require a gradient."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def buffer_bytes(model: nn.Module) -> int:
    """Bytes of the distinct buffers."""
    return sum(part.nbytes for buffer in model.buffers() for part in _parts(buffer))


def _parts(buffer: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The tensors that a buffer consists of: of a sparse one, its indices and values."""
    return (buffer._indices(), buffer._values()) if buffer.layout == torch.sparse_coo else (buffer,)


def is_transposed(module: nn.Module) -> bool:
    """Whether it is transformers' ``Conv1D``, a linear layer with weight (inputs, outputs), without importing it."""
    return f"{type(module).__module__}.{type(module).__qualname__}" == "transformers.pytorch_utils.Conv1D"


class TransparentWrapper(ActivationWrapper):
    """A wrapper through which attributes of its module are set and deleted as they are read.

    torch's own takes what is set for itself: a schedule that sets a block's temperature would change nothing, and read
    its value back all the same. Call :meth:`be_transparent` when all of its own attributes are set.
    """

    def be_transparent(self) -> None:
        """From now on, hand on what is not its own."""
        self.__dict__["_is_transparent"] = True

    def _is_own(self, name: str) -> bool:
        """Whether an attribute is of the wrapper: what it has, and what torch keeps for any module or class."""
        if "_is_transparent" not in self.__dict__:
            return True
        held = (self.__dict__, self._modules, self._parameters, self._buffers)
        return any(name in one for one in held) or hasattr(type(self), name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the module, unless it is the wrapper's own."""
        if self._is_own(name):
            super().__setattr__(name, value)
        else:
            setattr(self._modules["_checkpoint_wrapped_module"], name, value)

    def __delattr__(self, name: str) -> None:
        """Delete it likewise."""
        if self._is_own(name):
            super().__delattr__(name)
        else:
            delattr(self._modules["_checkpoint_wrapped_module"], name)


def unwrapped(module: nn.Module) -> nn.Module:
    """The module inside all its checkpoint wrappers."""
    while isinstance(inner := getattr(module, "_checkpoint_wrapped_module", None), nn.Module):
        module = inner  # Wrappers may hold wrappers.
    return module


def _leaf_count(module: nn.Module) -> int:
    return sum(1 for inner in module.modules() if not any(True for _ in inner.children()))


def _is_block_class(kind: type, blocks: list[nn.Module], model_leaves: int) -> bool:
    counts = [_leaf_count(block) for block in blocks]
    if min(counts) < 2 or 2 * sum(counts) < model_leaves:
        return False
    return not any(type(inner) is kind for block in blocks for inner in block.modules() if inner is not block)


def _outermost(model: nn.Module, wanted: Callable[[nn.Module], bool]) -> list[nn.Module]:
    found: list[nn.Module] = []
    inside: set[int] = set()
    for module in model.modules():  # Parents come before their children.
        if id(module) not in inside and wanted(module):
            found.append(module)
            inside.update(id(inner) for inner in module.modules())
    return found
