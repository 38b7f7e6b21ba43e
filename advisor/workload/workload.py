"""Where the user's functions are, and how another process finds them (:mod:`advisor.workload._loading`)."""

from __future__ import annotations

import enum
import os
from pathlib import Path

import msgspec

__all__ = ["CONSTANTS", "FUNCTIONS", "Stated", "WorkloadKind", "WorkloadSource"]

FUNCTIONS = ("build_model", "make_batch", "compute_loss", "build_optimizer", "count_targets", "linear_head")
"""What a user may define; the first two are needed."""

CONSTANTS = ("MAX_GRAD_NORM", "BATCH_SIZE", "BLOCKS", "SIZES")
"""What a user may state beside them, in the same file."""


class WorkloadKind(enum.Enum):
    """How to find the functions."""

    FILE = "file"
    """A Python file with ``build_model`` and ``make_batch``."""
    FUNCTIONS = "functions"
    """Importable functions given to ``advisor.tune``."""
    HUGGING_FACE = "hugging face"
    """A model type, a repository on the hub or a ``config.json``, built with random weights."""


class Stated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the user says of the training beside the model; ``None`` for what the model says itself.

    Attributes:
        batch_size: Samples per forward pass today: the baseline's.
        tokens: Tokens of a sample.
        image_size: Pixels per side of a sample.
        max_grad_norm: The norm that gradients are clipped to.
    """

    batch_size: int | None = None
    tokens: int | None = None
    image_size: int | None = None
    max_grad_norm: float | None = None


class WorkloadSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workload as another process can find it again.

    Attributes:
        location: FILE: absolute path. HUGGING_FACE: model type or absolute path of a ``config.json``. FUNCTIONS: empty.
        functions: FUNCTIONS: contract name -> ``"module:qualname"`` or ``"/path/file.py:qualname"``.
        import_paths: Folders to put on ``sys.path`` before loading.
        name: Short name for people and folders, e.g. ``"gpt2"``.
        fingerprint: Hash of the code that it runs, from its file and the local modules that this imports, and of
            what is stated.
        files: Absolute paths of these files.
        stated: What the user says beside it.
    """

    kind: WorkloadKind
    location: str
    functions: dict[str, str] = {}
    import_paths: tuple[str, ...] = ()
    name: str
    fingerprint: str
    stated: Stated = Stated()
    files: tuple[str, ...] = ()

    @property
    def root(self) -> str:
        """The folder that its own files are in; empty if there is none."""
        if self.import_paths:
            return self.import_paths[0]
        return os.path.dirname(self.location) if os.path.isabs(self.location) else ""

    @property
    def typed_here(self) -> str:
        """What finds it from the current folder, on this machine: a path to one that is elsewhere is whole."""
        typed = self.typed
        elsewhere = os.path.isabs(self.location) and typed == Path(self.location).name
        return self.location if elsewhere and not Path(typed).exists() else typed

    @property
    def typed(self) -> str:
        """What a user in the current folder types for it; empty for functions."""
        if self.kind is WorkloadKind.HUGGING_FACE and not os.path.isabs(self.location):
            return f"hf:{self.location}"
        if not self.location:
            return ""
        path, here = Path(self.location), Path.cwd().resolve()
        return path.relative_to(here).as_posix() if path.is_relative_to(here) else path.name
