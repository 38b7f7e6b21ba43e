"""What a study's measurements depend on besides the source of its workload, and what has changed since.

Values of environment variables may be secrets, so only salted digests are kept.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from importlib import metadata
from pathlib import Path

import msgspec

from advisor.workload.fingerprint import digest_of, source_digest
from advisor.workload.reads import EVERY_VARIABLE, Reads, depends_on_session

__all__ = ["Identity", "ModelIdentity"]

_WHOLE_BYTES = 64 * 2**20
_END_BYTES = 2**20
"""For a larger file, only size and both ends are hashed."""


class ModelIdentity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a short start sees of a workload.

    Attributes:
        parameters: Number of parameters.
        model: Digest of the names, shapes and types of parameters and buffers, and of the modules.
        batches: Digest of the parts of a batch, their types, and the sizes that all batches have.
        libraries: Installed distributions that the modules' classes come from -> version.
        sources: Files of installed packages, except torch, that define these classes: a user's own package may change
            under the same version.
    """

    parameters: int
    model: str
    batches: str
    libraries: dict[str, str] = {}
    sources: tuple[str, ...] = ()


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a study's measurements depend on.

    Attributes:
        salt: Salt of the variables' digests.
        environment: Variable that the user's code read -> digest of its value, ``None`` if unset.
        files: File that it read -> digest of the content, ``None`` if missing.
        folders: Folder that it listed -> digest of the names in it.
        model: What the probe saw.
    """

    salt: str
    environment: dict[str, str | None] = {}
    files: dict[str, str | None] = {}
    folders: dict[str, str | None] = {}
    model: ModelIdentity | None = None

    @classmethod
    def of(cls, reads: Reads, model: ModelIdentity | None) -> Identity:
        """The current state of everything that was read."""
        salt = secrets.token_hex(16)
        return cls(
            salt=salt,
            environment={name: _variable(name, salt) for name in reads.environment},
            files={path: _content(path) for path in (*reads.files, *(() if model is None else model.sources))},
            folders={path: _names(path) for path in reads.folders},
            model=model,
        )

    def changes(self) -> list[str]:
        """What has changed, in words; runs nothing."""
        found = [
            "an environment variable (the model's code goes through all of them)"
            if name == EVERY_VARIABLE
            else f"the environment variable {name}"
            for name, known in self.environment.items()
            if _variable(name, self.salt) != known
        ]
        found += [f"the file {path}" for path, known in self.files.items() if _content(path) != known]
        found += [f"the files in {path}" for path, known in self.folders.items() if _names(path) != known]
        libraries = {} if self.model is None else self.model.libraries
        return found + [
            f"{name} ({version} then, {now or 'not installed'} now)"
            for name, version in libraries.items()
            if (now := _version(name)) != version
        ]

    def changes_of_model(self, now: ModelIdentity) -> list[str]:
        """What a short start finds changed, in words."""
        then = self.model
        if then is None:
            return []
        if then.parameters != now.parameters:
            return [f"the model ({then.parameters:,} parameters then, {now.parameters:,} now)"]
        found = ["the model's modules, shapes or types"] if then.model != now.model else []
        return found + (["the shapes or types of a batch"] if then.batches != now.batches else [])


def _variable(name: str, salt: str) -> str | None:
    if name == EVERY_VARIABLE:
        every = sorted((one, value) for one, value in os.environ.items() if not depends_on_session(one))
        return digest_of(salt, *(f"{one}={value}" for one, value in every))
    value = os.environ.get(name)
    return None if value is None else digest_of(salt, value)


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
