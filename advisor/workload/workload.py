"""Where the user's functions are, and how another process finds them (:mod:`advisor.workload._loading`)."""

from __future__ import annotations

import enum
import os
import re
import sys
from pathlib import Path

import msgspec

from advisor.text.paths import as_seen_from_here

__all__ = ["CONSTANTS", "FUNCTIONS", "Stated", "WorkloadKind", "WorkloadSource", "package_root"]

FUNCTIONS = ("build_model", "make_batch", "compute_loss", "build_optimizer", "count_targets", "linear_head")
"""What a user may define; the first two are needed."""

CONSTANTS = ("MAX_GRAD_NORM", "BATCH_SIZE", "BLOCKS", "SIZES")
"""What a user may state beside them, in the same file."""

_OF_HUB = re.compile(r"/(?P<folder>models--(?P<repository>[^/]+--[^/]+))/snapshots/(?P<commit>[^/]+)/config\.json$")
"""A config in the cache of the Hugging Face hub."""


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
        is_found = bool(self.import_paths) and self.import_paths[0] in (os.getcwd(), *sys.path)
        named = _in_hub_cache(self.location) or (self._namespaced if is_found else "")
        return str(as_seen_from_here(Path(self.location))) if os.path.isabs(self.location) and not named else self.typed

    @property
    def typed(self) -> str:
        """What a user in the current folder types for it, with no folder of this machine; empty for functions."""
        if self.kind is WorkloadKind.HUGGING_FACE and not os.path.isabs(self.location):
            return f"hf:{self.location}"
        if not self.location:
            return ""
        path = as_seen_from_here(Path(self.location))
        named = _in_hub_cache(self.location) or self._namespaced
        return named or (path.name if path.is_absolute() else path.as_posix())

    @property
    def _namespaced(self) -> str:
        """The module's name, where its path does not tell: below folders that have no ``__init__.py``; else empty."""
        path, root = Path(self.location), self.import_paths[0] if self.import_paths else ""
        if self.kind is not WorkloadKind.FILE or not root or (package_root(path) or path.parent) == Path(root):
            return ""
        below = path.relative_to(root).with_suffix("")
        return ".".join(below.parts[:-1] if below.name == "__init__" else below.parts)


def package_root(path: Path) -> Path | None:
    """The folder above the outermost package that the file is in, or ``None`` for a file on its own.

    A file of a package may use relative imports, so it must be loaded as the package's module.
    """
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier() and folder != folder.parent:
        folder = folder.parent
    return None if folder == path.parent or not path.stem.isidentifier() else folder


def _in_hub_cache(location: str) -> str:
    """How a config in the cache of the Hugging Face hub is named: by its repository; empty for any other path."""
    found = _OF_HUB.search(location)
    if found is None:
        return ""
    repository, commit = found["repository"].replace("--", "/", 1), found["commit"]
    try:
        newest = Path(location[: found.start()], found["folder"], "refs", "main").read_text().strip()
    except OSError:
        newest = ""
    return f"hf:{repository}" if newest == commit else f"hf:{repository}@{commit}"
