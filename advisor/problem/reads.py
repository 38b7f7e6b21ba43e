"""What the user's code reads while it is imported and built: environment variables, files, modules.

A model may depend on more than its source: on ``LAYERS`` in the environment, on a ``config.json``, on a module that it
imports by a computed name. Whatever it reads is part of what a measurement holds for. Only names leave the process
that reads; an environment variable may hold a secret.

Libraries read much for themselves that has nothing to do with the model. So a read counts if the user's code made it,
or called what made it; what a library reads while it is imported does not.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import site
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

__all__ = ["Reads", "is_users", "reads_so_far", "recording_reads"]

_OWN_SETTINGS = frozenset({"torch", "numpy", "transformers", "huggingface_hub", "triton", "advisor"})
"""Libraries that read the environment for settings of their own, whoever calls them."""

_OF_A_LAUNCH = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE|LOCAL_WORLD_SIZE)|MASTER_(ADDR|PORT)|CUDA_VISIBLE_DEVICES"
    r"|(TORCHELASTIC|SLURM|OMPI|PMI|PMIX|PBS|LSB|WANDB)_.*|(OLD)?PWD|HOSTNAME|TMPDIR|TERM|SHLVL|_"
)
"""Variables that differ from rank to rank, or from job to job, of one and the same training."""

_FOR_OTHERS = ("expandvars", "expanduser")
"""Functions of the standard library that read the environment for whoever calls them."""

_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/lib", "/usr/share/", "/lib/", "/lib64/")
_CACHES = ("torchinductor_", "/.triton/", "/.nv/", "/__pycache__/", "/.cache/torch/")
_IMPORTING = "<frozen importlib"


class Reads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was read, by name.

    Attributes:
        environment: Variables that were looked up, whether they were set or not.
        files: Absolute paths that were opened for reading, whether they existed or not; those of the user's modules.
    """

    environment: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


_environment: set[str] = set()
_read: set[str] = set()
_written: set[str] = set()
_depth = 0
_is_listening = False
_iterating: tuple[int, int] | None = None


@contextlib.contextmanager
def recording_reads() -> Iterator[None]:
    """Around whatever runs the user's code: note what that reads."""
    global _depth, _is_listening
    if not _is_listening:
        sys.addaudithook(_hear)
        _is_listening = True
    before = type(os.environ)
    if _depth == 0:
        os.environ.__class__ = _Environment
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0:
            os.environ.__class__ = before


def reads_so_far() -> Reads:
    """Everything that was noted in this process, and in those that it was forked from."""
    modules = {
        file
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str) and os.path.isabs(file) and is_users(file)
    }
    files = {path for path in _read - _written if _may_count(path)} | {os.path.abspath(file) for file in modules}
    return Reads(environment=tuple(sorted(_environment)), files=tuple(sorted(files)))


class _Environment(type(os.environ)):  # type: ignore[misc]
    """``os.environ`` that notes which variables the user's code looks up."""

    def __getitem__(self, name: str) -> str:
        if isinstance(name, str) and _depth:
            frame = sys._getframe(1)
            if not _OF_A_LAUNCH.fullmatch(name) and _reads_variable(frame) and _instruction(frame) != _iterating:
                _environment.add(name)
        return str(super().__getitem__(name))

    def __iter__(self) -> Iterator[str]:
        global _iterating
        # Whoever copies all of it depends on none in particular; the same instruction then looks each of them up.
        _iterating = _instruction(sys._getframe(1))
        return iter(list(super().__iter__()))


def _instruction(frame: FrameType | None) -> tuple[int, int] | None:
    """Which instruction of whose code is running; mappings' own code left out."""
    while frame is not None and _is_plumbing(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (id(frame.f_code), frame.f_lasti)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not _depth:
        return
    path, mode, flags = (*arguments, None, None, None)[:3]
    if not isinstance(path, str | bytes | os.PathLike):
        return
    name = os.path.abspath(os.fsdecode(path))
    writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
    if mode is None and isinstance(flags, int):
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if writes:
        _written.add(name)
    elif _opens_file(sys._getframe(1)):
        _read.add(name)


def _reads_variable(frame: FrameType | None) -> bool:
    while frame is not None:
        file, name = frame.f_code.co_filename, str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if is_users(file):
            return True
        if file.startswith(_IMPORTING) or name in _OWN_SETTINGS:
            return False
        is_standard = name in sys.stdlib_module_names and not _is_plumbing(file)
        if is_standard and frame.f_code.co_name not in _FOR_OTHERS:
            return False
        frame = frame.f_back
    return False


def _opens_file(frame: FrameType | None) -> bool:
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return True
        if file.startswith(_IMPORTING) or str(frame.f_globals.get("__name__", "")).partition(".")[0] == "advisor":
            return False
        frame = frame.f_back
    return False


@functools.cache
def _is_plumbing(file: str) -> bool:
    return (
        file in (os.__file__, __file__)
        or os.path.basename(file) in ("_collections_abc.py", "<frozen os>")
        or (file.startswith("<frozen ") and not file.startswith(_IMPORTING))
    )


@functools.cache
def is_users(file: str) -> bool:
    """Whether a source file is the user's: neither Python's, nor installed, nor ours."""
    if not file.endswith(".py"):
        return False
    return _may_count(os.path.abspath(file))


@functools.cache
def _may_count(path: str) -> bool:
    return (
        not path.startswith((*_SYSTEM, *_installed()))
        and not any(part in path for part in _CACHES)
        and not path.endswith((".pyc", ".so"))
    )


@functools.cache
def _installed() -> tuple[str, ...]:
    """Folders of Python itself, of what is installed, and of this package."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = {sysconfig.get_path(name) for name in names} | set(site.getsitepackages()) | {site.getusersitepackages()}
    folders.add(str(Path(__file__).resolve().parents[1]))
    folders.add(os.path.dirname(os.__file__))
    both = folders | {os.path.realpath(folder) for folder in folders}
    return tuple(sorted(folder.rstrip("/") + "/" for folder in both))
