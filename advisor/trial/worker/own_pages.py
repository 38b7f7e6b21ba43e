"""Copy the pages that a forked process shares with the one that built its model, before its first step writes to them.

The optimizer writes to every trained parameter. Where a page is still shared, the kernel copies it in the middle of the
step, and makes the processor of every other thread forget the old one: on a virtual machine ten times the cost of the
copy itself. All at once, before other threads have worked, it takes a tenth of a second for every 200 MB.
"""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch.nn.parameter import is_lazy

__all__ = ["own_pages"]

_MADV_POPULATE_WRITE = 23
"""Linux 5.14 and newer; others refuse it, and the first step copies the pages."""


def own_pages(model: torch.nn.Module) -> None:
    """Give this process its own pages of all parameters on the CPU that a training updates.

    Pages that cannot be written to, such as those of a file mapped for reading, are left as they are.
    """
    madvise = getattr(ctypes.CDLL(None), "madvise", None)
    if madvise is None:
        return
    trained = [one for one in model.parameters() if one.requires_grad and not is_lazy(one) and one.device.type == "cpu"]
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in trained}
    for address, size in storages.items():
        begin = address - address % mmap.PAGESIZE
        madvise(ctypes.c_void_p(begin), ctypes.c_size_t(address + size - begin), _MADV_POPULATE_WRITE)
