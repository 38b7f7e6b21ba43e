"""What measurements depend on besides the code of the workload, and what has changed since.

Values of environment variables may be secrets: four digits of a salted digest are kept, which show that a value is
another one and are too few to find out which.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from importlib import metadata
from pathlib import Path

import msgspec

from advisor.workload.code.fingerprint import digest_of, source_digest
from advisor.workload.difference import Difference, Weight, version_differences
from advisor.workload.reads import EVERY_VARIABLE, Reads, depends_on_session
from advisor.workload.workload import WorkloadSource

__all__ = ["Identity", "ModelIdentity"]

_WHOLE_BYTES = 64 * 2**20
_END_BYTES = 2**20
"""For a larger file, only size and both ends are hashed."""

_DIGITS = 4


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a short start sees of a workload: its model, batches and optimizer as they are built here.

    Attributes:
        class_name: Class of the model.
        parameters: Number of parameters.
        trainable: Those that require a gradient.
        buffers: Numbers in buffers.
        dtypes: Type of parameters and buffers -> how many numbers have it.
        modules: Class of a module -> how many there are.
        structure: Digest of the names, shapes and types of parameters and buffers, and of the modules.
        batch: Part of a batch -> its type, and the sizes that all batches have.
        optimizer: Class of the optimizer, and which of its options are in use.
        declares: What else the workload states -> its value, or that there is one.
        libraries: Installed distributions that the modules' classes come from -> version.
        sources: Files of installed packages, except torch, that define these classes: a user's own package may change
            under the same version.
        code: Module that defines some of these classes, is neither installed nor below the workload's folder (found by
            PYTHONPATH, say, or in ``src``) -> digest of its code.
    """

    class_name: str
    parameters: int
    trainable: int
    buffers: int
    dtypes: dict[str, int] = {}
    modules: dict[str, int] = {}
    structure: str
    batch: dict[str, str] = {}
    optimizer: str = ""
    declares: dict[str, str] = {}
    libraries: dict[str, str] = {}
    sources: tuple[str, ...] = ()
    code: dict[str, str] = {}

    def differences(self, now: ModelIdentity) -> list[Difference]:
        """What is another model, batch or optimizer now."""
        found = [
            Difference(subject="model", what=what, was=f"{was:,}", now=f"{new:,}")
            for what, was, new in (
                ("parameters", self.parameters, now.parameters),
                ("trainable parameters", self.trainable, now.trainable),
                ("numbers in buffers", self.buffers, now.buffers),
            )
            if was != new
        ]
        if self.class_name != now.class_name:
            found.append(Difference(subject="model", what="class", was=self.class_name, now=now.class_name))
        if not found:  # then they say no more than that there are more numbers
            found += _counted("model", self.dtypes, now.dtypes)
        found += _counted("modules", self.modules, now.modules)
        if self.structure != now.structure and not found:
            found.append(Difference(subject="model", what="modules, shapes or types"))
        found += [
            Difference(subject="model", what=f"code of {name}")
            for name, digest in self.code.items()
            if digest not in now.code.values()  # whatever its file is called
        ]
        found += _worded("batch", self.batch, now.batch)
        if self.optimizer != now.optimizer:
            found.append(Difference(subject="optimizer", was=self.optimizer, now=now.optimizer))
        return found + _worded("model file", self.declares, now.declares)


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What measurements depend on.

    Attributes:
        salt: Salt of the variables' digests.
        environment: Variable that the user's code read -> digest of its value, ``None`` if unset.
        files: File that it read -> digest of the content, ``None`` if missing. A path below the workload's folder is
            relative to that.
        folders: Folder that it listed -> digest of the names in it.
        model: What the probe saw.
    """

    salt: str
    environment: dict[str, str | None] = {}
    files: dict[str, str | None] = {}
    folders: dict[str, str | None] = {}
    model: ModelIdentity | None = None

    @classmethod
    def of(cls, reads: Reads, model: ModelIdentity | None, source: WorkloadSource | None = None) -> Identity:
        """The current state of everything that was read, without the files whose code identifies the workload."""
        salt = secrets.token_hex(16)
        known = () if source is None else source.files
        root = "" if source is None else source.root
        files = [
            path
            for path in (*reads.files, *(() if model is None else model.sources))
            if os.path.realpath(path) not in known
        ]
        return cls(
            salt=salt,
            environment={name: _variable(name, salt) for name in reads.environment},
            files={_below(path, root): _content(path) for path in files},
            folders={_below(path, root): _names(path) for path in reads.folders},
            model=model,
        )

    @property
    def portable(self) -> Identity:
        """Without what belongs to this machine: paths outside of the workload's folder, all variables together."""
        return msgspec.structs.replace(
            self,
            environment={name: one for name, one in self.environment.items() if name != EVERY_VARIABLE},
            files={path: one for path, one in self.files.items() if not os.path.isabs(path)},
            folders={path: one for path, one in self.folders.items() if not os.path.isabs(path)},
            model=None if self.model is None else msgspec.structs.replace(self.model, sources=()),
        )

    def changes(self, root: str = "") -> list[Difference]:
        """What has changed of what was read, and of the model's libraries; runs nothing.

        Args:
            root: The workload's folder now.
        """
        every = "an environment variable (the model's code goes through all of them)"
        names = [
            every if name == EVERY_VARIABLE else f"the environment variable {name}"
            for name, known in self.environment.items()
            if _variable(name, self.salt) != known
        ]
        names += [f"the file {path}" for path, known in self.files.items() if _content(_at(path, root)) != known]
        names += [f"the files in {path}" for path, known in self.folders.items() if _names(_at(path, root)) != known]
        libraries = {} if self.model is None else self.model.libraries
        now = {name: version for name in libraries if (version := _version(name)) is not None}
        return [Difference(subject=name, weight=Weight.READ) for name in names] + version_differences(
            libraries, now, libraries
        )


def _counted(subject: str, then: dict[str, int], now: dict[str, int]) -> list[Difference]:
    return _worded(
        subject, {name: f"{one:,}" for name, one in then.items()}, {name: f"{n:,}" for name, n in now.items()}
    )


def _worded(subject: str, then: dict[str, str], now: dict[str, str]) -> list[Difference]:
    return [
        Difference(subject=subject, what=name, was=then.get(name, ""), now=now.get(name, ""))
        for name in sorted(then.keys() | now.keys())
        if then.get(name) != now.get(name)
    ]


def _below(path: str, root: str) -> str:
    return Path(path).relative_to(root).as_posix() if root and Path(path).is_relative_to(root) else path


def _at(path: str, root: str) -> str:
    return path if os.path.isabs(path) else os.path.join(root, path)


def _variable(name: str, salt: str) -> str | None:
    if name == EVERY_VARIABLE:
        every = sorted((one, value) for one, value in os.environ.items() if not depends_on_session(one))
        return digest_of(salt, *(f"{one}={value}" for one, value in every))[:_DIGITS]
    value = os.environ.get(name)
    return None if value is None else digest_of(salt, value)[:_DIGITS]


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _names(path: str) -> str | None:
    """The contents of a folder, without files of Python and editors."""
    try:
        names = sorted(name for name in os.listdir(path) if not name.startswith((".", "__pycache__")))
    except OSError:
        return None
    return digest_of(*names)


def _content(path: str) -> str | None:
    """Of a file: Python's without its comments, other ones byte by byte; a large one by its size and its ends."""
    file = Path(path)
    try:
        size = file.stat().st_size
        if file.is_dir():
            return None
        if size <= _WHOLE_BYTES:
            content = file.read_bytes()
            return source_digest(content) if file.suffix == ".py" else hashlib.sha256(content).hexdigest()
        with file.open("rb") as opened:
            begin = opened.read(_END_BYTES)
            opened.seek(-_END_BYTES, os.SEEK_END)
            return digest_of(str(size), begin, opened.read())
    except OSError:
        return None
