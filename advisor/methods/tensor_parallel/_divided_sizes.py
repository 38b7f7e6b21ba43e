"""Which numbers in the code of a region must be divided: found among those that it reads, by trying.

Sizes are read from attributes of modules (``num_heads``) or of an object that these hold (``config``), of which each
module gets a copy of its own.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import nn

from advisor.methods.tensor_parallel._block_calls import Call
from advisor.methods.tensor_parallel._block_plan import Region, Size, common_module
from advisor.methods.tensor_parallel._linear import is_linear
from advisor.methods.tensor_parallel._replica import replica

__all__ = ["candidate_sizes", "sizes_read"]

_MOST_AT_ONCE = 5
_MOST_TRIES = 200


def sizes_read(block: nn.Module, call: Call, degree: int) -> list[Size]:
    """Whole numbers that the block's code reads and that the degree divides, in the order of their reading."""
    copied = replica(block)
    read: dict[Size, None] = {}
    for name, module in list(copied.named_modules()):
        if is_linear(module):
            continue
        for attribute, value in list(vars(module).items()):
            if _is_settings(value):
                vars(module)[attribute] = _recording(value, Size(name, attribute, ""), read, degree)
        module.__class__ = _recording_class(type(module), Size(name, "", ""), read, degree)
    call.run(copied, call.hidden)
    return list(read)


def candidate_sizes(region: Region, sizes: list[Size]) -> Iterator[tuple[Size, ...]]:
    """What to try to divide, fewest first: sizes of modules around the region's linear layers, or beside these."""
    owner = common_module((*region.entries, region.exit))
    near = [size for size in sizes if not owner or size.module == owner or size.module.startswith(f"{owner}.")]
    outer = [size for size in sizes if size not in near and f"{owner}.".startswith(f"{size.module}.")]
    combinations = (
        chosen
        for among in ([near] if not outer else [near, [*near, *outer]])
        for count in range(min(len(among), _MOST_AT_ONCE) + 1)
        for chosen in itertools.combinations(among, count)
    )
    yield from itertools.islice(dict.fromkeys(itertools.islice(combinations, 2 * _MOST_TRIES)), _MOST_TRIES)


def _is_settings(value: Any) -> bool:
    """An object that holds settings: neither a module nor one of Python's or torch's own kinds."""
    home = type(value).__module__.split(".")[0]
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, nn.Module | type)
        and not callable(value)
        and home not in ("builtins", "torch", "collections")
    )


def _recording(value: Any, where: Size, read: dict[Size, None], degree: int) -> Any:
    """A copy of an object that notes which numbers are read from it; the object itself where it cannot be copied."""
    try:
        copied = object.__new__(type(value))
        vars(copied).update(vars(value))
        copied.__class__ = _recording_class(type(value), where, read, degree)
    except TypeError:
        return value
    return copied


def _recording_class(kind: type, where: Size, read: dict[Size, None], degree: int) -> type:
    def __getattribute__(self: Any, name: str) -> Any:  # noqa: N807
        value = kind.__getattribute__(self, name)  # type: ignore[call-arg]
        if type(value) is int and value > 1 and value % degree == 0 and not name.startswith("_"):
            read[Size(where.module, where.holder, name)] = None
        return value

    return type(kind.__name__, (kind,), {"__getattribute__": __getattribute__, "__module__": kind.__module__})
