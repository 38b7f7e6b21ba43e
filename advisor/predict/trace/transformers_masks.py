"""Models of transformers make no attention masks in a trace where they make none in a real step.

They look at the values of a padding mask and of positions: where nothing is padded and no sequences are packed, they
make no mask and let the kernel be causal. A fake tensor has no values, and then they make one of the length squared for
each layer. The values are known from the batch, which was real before it was faked.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import keystr, tree_leaves_with_path

from advisor.replaced import replaced

__all__ = ["MaskFacts", "mask_facts", "masks_as_with_values"]

_DECIDE_ON_PADDING = ("_ignore_causal_mask_sdpa", "_ignore_bidirectional_mask_sdpa")
_DECIDE_ON_POSITIONS = "find_packed_sequence_indices"


class MaskFacts(NamedTuple):
    """What a batch's values say.

    Attributes:
        padded: Whether a mask leaves something out.
        packed: Whether positions are given, which may be those of several sequences in one.
    """

    padded: bool
    packed: bool


def mask_facts(batch: Any) -> MaskFacts:
    """Look at a real batch, outside of any mode."""
    return MaskFacts(padded=_is_padded(batch), packed=_has(batch, "position_ids"))


@contextlib.contextmanager
def masks_as_with_values(facts: MaskFacts) -> Generator[None, None, None]:
    """Let transformers decide as it does for a batch, in the whole process.

    Enter it after the model is built, whose file may load transformers as late as that.
    """
    module: Any = sys.modules.get("transformers.masking_utils")
    changes: dict[str, Any] = {} if facts.padded else dict.fromkeys(_DECIDE_ON_PADDING, _without_padding)
    if not facts.packed:
        changes[_DECIDE_ON_POSITIONS] = _not_packed
    known = {name: getattr(module, name) for name in changes if hasattr(module, name)}
    with replaced(module, **{name: functools.partial(changes[name], plain) for name, plain in known.items()}):
        yield


def _without_padding(plain: Callable[..., Any], padding_mask: Any, *args: Any, **kwargs: Any) -> Any:
    return plain(None if isinstance(padding_mask, FakeTensor) else padding_mask, *args, **kwargs)


def _not_packed(plain: Callable[..., Any], position_ids: Any, *args: Any, **kwargs: Any) -> Any:
    found = plain(position_ids, *args, **kwargs)  # what it allocates meanwhile is allocated in a real step, too
    return None if isinstance(position_ids, FakeTensor) else found


def _is_padded(batch: Any) -> bool:
    """Whether a mask of the batch leaves something out; where masks have no names, whether some tensor may be one."""
    named = _has(batch, "mask")
    for path, leaf in tree_leaves_with_path(batch):
        if named and "mask" not in keystr(path):
            continue
        if isinstance(leaf, torch.Tensor) and leaf.dim() == 2 and not leaf.is_floating_point():
            values = leaf.detach().cpu()
            if bool(((values == 0) | (values == 1)).all()) and not bool(values.all()):
                return True
    return False


def _has(batch: Any, name: str) -> bool:
    return any(name in keystr(path) for path, _ in tree_leaves_with_path(batch))
