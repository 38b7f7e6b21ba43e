"""What a model returns, sent to the other ranks of a pipeline as data: no code is run to read it."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from advisor.errors import MethodRefusedError
from advisor.methods.pipeline._stage_ranks import PipelineRanks

__all__ = ["Elsewhere", "told_output"]

_DATA = (torch.Tensor, bool, int, float, complex, str, bytes, type(None))


def told_output(output: Any, ranks: PipelineRanks) -> Any:
    """What the model returned in the last stage, on all ranks.

    Containers are lists, tuples, dicts, and classes that are registered with pytree by a name, as those of transformers
    are. Of anything else the other ranks get an :class:`Elsewhere`.

    Args:
        output: What it returned; only that of the last stage counts.
        ranks: The ranks of the pipeline.
    """
    by = ranks.owners[-1]
    sent: tuple[str, list[Any], list[str]] = ("", [], [])
    if ranks.rank == by:
        leaves, structure = pytree.tree_flatten(output, is_leaf=_has_no_name)
        kinds = ["" if isinstance(leaf, _DATA) else type(leaf).__name__ for leaf in leaves]
        known = [leaf if not kind else None for leaf, kind in zip(leaves, kinds, strict=True)]
        sent = (pytree.treespec_dumps(structure), known, kinds)
    written, found, kinds = ranks.told(sent, by=by)
    if ranks.rank == by:
        return output
    parts = [Elsewhere(kind) if kind else leaf for leaf, kind in zip(found, kinds, strict=True)]
    return pytree.tree_unflatten(parts, pytree.treespec_loads(written))


def _has_no_name(value: Any) -> bool:
    """Whether a container could not be read by another process."""
    kind = pytree._get_node_type(value)
    if kind not in pytree.SUPPORTED_NODES:
        return False
    known = pytree.SUPPORTED_SERIALIZED_TYPES.get(type(value))
    return known is None or known.serialized_type_name == pytree.NO_SERIALIZED_TYPE_NAME_FOUND


class Elsewhere:
    """In the place of what only the last stage has.

    Args:
        kind: Name of its class.
    """

    def __init__(self, kind: str) -> None:
        self.__dict__["_kind"] = kind

    def _refuse(self, *_: Any) -> NoReturn:
        raise MethodRefusedError(
            f"in a pipeline the other ranks get what a model returns as tensors, numbers and text in lists, tuples and "
            f"dicts, but here is a {self.__dict__['_kind']}, which only the last stage has; return it in a dict, or "
            "give its class a name: torch.export.register_dataclass(cls, serialized_type_name=...)"
        )

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._refuse()

    __getitem__ = __iter__ = __len__ = __call__ = _refuse
