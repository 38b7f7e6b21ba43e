"""Count the pages that this process takes from the system.

Unlike seconds, the count does not depend on what else runs on the machine.
"""

from __future__ import annotations

__all__ = ["page_faults"]


def page_faults() -> int | None:
    """Pages that all threads of this process have taken so far without reading a file; ``None`` if nobody counts."""
    try:
        import resource
    except ImportError:  # not on Windows
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
