"""Records what the user's code reads while it is imported and built: environment variables, files, modules.

A model may depend on more than its source: on ``LAYERS`` in the environment, on a ``config.json``, on a module that it
imports by a computed name. Measurements are valid only for what it read. Only names leave the reading process; an
environment variable may hold a secret.

Libraries read much that has nothing to do with the model. So a read counts if the user's code made it or called the
code that made it, but not if a library makes it while it is imported.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
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

__all__ = ["EVERY_VARIABLE", "Reads", "depends_on_session", "is_users", "reads_so_far", "recording_reads"]

_OWN_SETTINGS = frozenset({"torch", "numpy", "transformers", "huggingface_hub", "triton", "advisor"})
"""Libraries that read the environment for their own settings."""

_OF_A_LAUNCH = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE|LOCAL_WORLD_SIZE)|MASTER_(ADDR|PORT)|CUDA_VISIBLE_DEVICES"
    r"|(TORCHELASTIC|SLURM|OMPI|PMI|PMIX|PBS|LSB|WANDB)_.*|(OLD)?PWD|HOSTNAME|TMPDIR|TERM|SHLVL|_"
)
"""Variables that differ between ranks or jobs of the same training."""

_OF_A_SESSION = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|MAIL|EDITOR|VISUAL|PAGER|LS_COLORS|DISPLAY|COLUMNS|LINES|PS1|LANG(UAGE)?"
    r"|(LC|XDG|SSH|DBUS|GPG|TERM|TMUX|VSCODE|CONDA|VIRTUAL_ENV|PYTEST|PYENV|PYTHON|PIP)(_.*|[A-Z]*)|GIT_.*|LESS.*"
)
"""... and those that differ from one terminal to another."""

_FOR_OTHERS = ("expandvars", "expanduser")
"""Functions of the standard library that read the environment for whoever calls them."""

_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/lib", "/usr/share/", "/lib/", "/lib64/")
_LIBRARIES = ("/site-packages/", "/dist-packages/")
"""Parts of the paths of libraries, also of an environment that a ``.pth`` file or ``PYTHONPATH`` adds to this one."""
_CACHES = ("torchinductor_", "/.triton/", "/.nv/", "/__pycache__/", "/.cache/torch/")
_IMPORTING = "<frozen importlib"


class Reads(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names of what was read.

    Attributes:
        environment: Variables that were looked up, set or not; :data:`EVERY_VARIABLE` if the user's code iterated over
            all.
        files: Absolute paths that were opened for reading, existing or not, and those of the user's modules.
        folders: Absolute paths of folders that were listed.
    """

    environment: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


EVERY_VARIABLE = "*"
"""Stands for all names."""

_environment: set[str] = set()
_listed: set[str] = set()
_read: set[str] = set()
_written: set[str] = set()
_depth = 0
_is_listening = False
_iterating: tuple[int, int] | None = None


@contextlib.contextmanager
def recording_reads() -> Iterator[None]:
    """Context that records what the user's code in it reads."""
    global _depth, _is_listening
    if not _is_listening:
        sys.addaudithook(_hear)
        _is_listening = True
    before = type(os.environ)
    if _depth == 0:
        os.environ.__class__ = _Environment
    _depth += 1
    try:
        with _hearing_safetensors() if _depth == 1 else contextlib.nullcontext():
            yield
    finally:
        _depth -= 1
        if _depth == 0:
            os.environ.__class__ = before


def reads_so_far() -> Reads:
    """Everything recorded in this process and in those that it was forked from."""
    modules = {
        file
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str) and os.path.isabs(file) and is_users(file)
    }
    files = {path for path in _read - _written if _may_count(path)} | {os.path.abspath(file) for file in modules}
    folders = {path for path in _listed if _may_count(path) and not path.startswith(os.path.expanduser("~/."))}
    return Reads(environment=tuple(sorted(_environment)), files=tuple(sorted(files)), folders=tuple(sorted(folders)))


def depends_on_session(name: str) -> bool:
    """Whether a variable differs between terminals or ranks for the same model."""
    return _OF_A_SESSION.fullmatch(name) is not None or _OF_A_LAUNCH.fullmatch(name) is not None


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
        frame = sys._getframe(1)
        # Copying all variables depends on none in particular, but looks up each from the same instruction.
        _iterating = _instruction(frame)
        if _depth and "KeysView" not in frame.f_code.co_qualname and _goes_through(frame):
            _environment.add(EVERY_VARIABLE)
        return iter(list(super().__iter__()))


def _instruction(frame: FrameType | None) -> tuple[int, int] | None:
    """Which instruction of whose code is running; mappings' own code left out."""
    while frame is not None and _is_plumbing(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else (id(frame.f_code), frame.f_lasti)


def _goes_through(frame: FrameType | None) -> bool:
    """Whether the user's own code, not a function that it called, iterates over every variable."""
    while frame is not None and _is_plumbing(frame.f_code.co_filename):
        if "_collections_abc" not in frame.f_code.co_filename:
            return False  # os.environ.copy()
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    if not _depth:
        return
    if event == "open":
        _hear_open(arguments)
    elif event in ("os.listdir", "os.scandir"):
        if isinstance(arguments[0], str | bytes | os.PathLike | None) and _opens_file(sys._getframe(1)):
            _listed.add(os.path.abspath(os.fsdecode(arguments[0] or ".")))
    elif event == "subprocess.Popen" and isinstance(arguments[1], list | tuple) and _opens_file(sys._getframe(1)):
        # Files among the arguments, such as a script; what the process itself reads is not seen.
        names = [os.fsdecode(one) for one in arguments[1] if isinstance(one, str | bytes | os.PathLike)]
        _read.update(os.path.abspath(name) for name in names if os.path.isfile(name))


def _hear_open(arguments: tuple[Any, ...]) -> None:
    path, mode, flags = (*arguments, None, None, None)[:3]
    if not isinstance(path, str | bytes | os.PathLike):
        return
    name = os.path.abspath(os.fsdecode(path))
    writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
    if mode is None and isinstance(flags, int):
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
    if writes:
        _written.add(name)
    elif _opens_file(sys._getframe(2)):
        _read.add(name)


@contextlib.contextmanager
def _hearing_safetensors() -> Iterator[None]:
    """Record the files of safetensors, which native code opens, whoever has imported the function that opens them."""
    if importlib.util.find_spec("safetensors") is None:
        yield
        return
    original = importlib.import_module("safetensors").safe_open

    def safe_open(filename: str | os.PathLike[str], *arguments: Any, **options: Any) -> Any:
        if _opens_file(sys._getframe(1)):
            _read.add(os.path.abspath(os.fspath(filename)))
        return original(filename, *arguments, **options)

    _replace(original, safe_open)
    try:
        yield
    finally:
        _replace(safe_open, original)


def _replace(old: Any, new: Any) -> None:
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if isinstance(names, dict) and names.get("safe_open") is old:
            names["safe_open"] = new


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
    """Whether a source file is the user's: not Python's, installed or ours."""
    return file.endswith(".py") and _may_count(os.path.abspath(file))


@functools.cache
def _may_count(path: str) -> bool:
    return (
        not path.startswith((*_SYSTEM, *_installed()))
        and not any(part in path for part in (*_CACHES, *_LIBRARIES))
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
