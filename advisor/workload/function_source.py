"""A workload from functions that a program passes, named so that another process can find them."""

from __future__ import annotations

import importlib.util
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

from advisor.errors import WorkloadError
from advisor.workload.code.fingerprint import digest_of
from advisor.workload.code.reachable_code import local_code
from advisor.workload.contract import check_arguments
from advisor.workload.workload import WorkloadKind, WorkloadSource

__all__ = ["added_paths", "source_from_functions"]

_FIX = "Define it with def at the top level of a .py file and pass that function."


def source_from_functions(**given: Any) -> WorkloadSource:
    """Name functions so that a worker process can import them.

    The constants of the contract (``BATCH_SIZE``, ``MAX_GRAD_NORM``, ``BLOCKS``, ``SIZES``) are read from the module
    that defines ``build_model``.

    Raises:
        WorkloadError: ``build_model`` or ``make_batch`` is missing, or one of the functions cannot be found again by
            its name or does not take the arguments that it is called with.
    """
    missing = next((role for role in ("build_model", "make_batch") if given.get(role) is None), None)
    if missing is not None:
        raise WorkloadError(
            f"a model file, or both build_model and make_batch, must be given, but there is no {missing}. "
            f"Pass {missing}=, or the path of a file that defines both."
        )
    found = {role: _locate(role, function) for role, function in given.items() if function is not None}
    functions = {role: name for role, (name, _, _) in found.items()}
    for role, name in functions.items():
        check_arguments(role, given[role], name)
    roots = {file: root for _, file, root in found.values() if file is not None}
    names = {role: name.rpartition(":")[2] for role, name in functions.items()}
    # Functions of one file with the names of the contract are the same workload as that file.
    parts, files = [f"{role}={name}" for role, name in names.items() if role != name], set[str]()
    for file, root in sorted(roots.items()):
        digest, own = _code(file, root, names)
        parts.append(digest)
        files.update(own)
    return WorkloadSource(
        kind=WorkloadKind.FUNCTIONS,
        location="",
        functions=functions,
        import_paths=_import_paths(roots),
        name=given["build_model"].__name__,
        fingerprint=parts[0] if len(parts) == 1 else digest_of(*parts),
        files=tuple(sorted(files)),
    )


def _locate(role: str, function: Callable[..., Any]) -> tuple[str, Path | None, Path]:
    """The reference of a function, the file it is in, and the folder from which that file is imported."""
    qualname = getattr(function, "__qualname__", None)
    module_name = getattr(function, "__module__", None)
    if not callable(function) or qualname is None or module_name is None:
        raise _not_importable(role, f"got {function!r} of type {type(function).__name__}")
    if "<lambda>" in qualname:
        raise _not_importable(role, "got a lambda")
    if "<locals>" in qualname:
        raise _not_importable(role, f"{qualname} is defined inside another function")
    module = sys.modules.get(module_name)
    if module is None or _resolve(module, qualname) is not function:
        raise WorkloadError(
            f"{role} must be found again by its name, but {module_name}:{qualname} is not the object that was passed "
            f"(a bound method, a wrapped function, or a name that was assigned again). {_FIX}"
        )
    if module_name == "__main__":
        return _locate_main(role, module, qualname)
    origin = getattr(module, "__file__", None)
    if origin is None:
        return f"{module_name}:{qualname}", None, Path()
    file = Path(origin).resolve()
    depth = module_name.count(".") + (2 if file.name == "__init__.py" else 1)
    return f"{module_name}:{qualname}", file, file.parents[depth - 1]


def _locate_main(role: str, module: Any, qualname: str) -> tuple[str, Path | None, Path]:
    """A function of the program itself: by module name under ``python -m``, otherwise by the program's file."""
    origin = getattr(module, "__file__", None)
    if origin is None or not Path(origin).is_file():
        reason = f"{qualname} was defined interactively or with python -c: there is no file to import it from"
        raise _not_importable(role, reason)
    file = Path(origin).resolve()
    spec = getattr(module, "__spec__", None)
    if spec is not None and importlib.util.find_spec(spec.name) is not None:
        return f"{spec.name}:{qualname}", file, file.parents[spec.name.count(".")]
    return f"{file}:{qualname}", file, file.parent


def _not_importable(role: str, reason: str) -> WorkloadError:
    return WorkloadError(f"{role} must be a function that another process can import by name, but {reason}. {_FIX}")


def _resolve(module: Any, qualname: str) -> Any:
    found = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def _is_installed(file: Path) -> bool:
    """Whether a file belongs to the interpreter or an installed library, whose versions are kept elsewhere."""
    folders = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return "dist-packages" in file.parts or any(file.is_relative_to(folder) for folder in folders)


def _code(file: Path, root: Path, names: dict[str, str]) -> tuple[str, tuple[str, ...]]:
    """A digest of what a file contributes, and the files that it covers."""
    if file.suffix != ".py" or _is_installed(file):
        return digest_of(file.name, file.read_bytes()), ()
    first = {role: name.partition(".")[0] for role, name in names.items()}
    optimizer = {first[role] for role in ("build_optimizer",) if role in first}
    optimizer -= {name for role, name in first.items() if role != "build_optimizer"}
    return local_code(file, root, first.values(), optimizer)


def _import_paths(roots: dict[Path, Path]) -> tuple[str, ...]:
    """Folders that the worker must search: those of the functions, then what this program added to its own path."""
    own = [str(root) for file, root in roots.items() if not _is_installed(file)]
    return tuple(dict.fromkeys([*own, *added_paths()]))


def added_paths() -> tuple[str, ...]:
    """Folders that this program has added to its search path: neither Python's nor those of installed libraries."""
    entries = [Path(entry or ".").resolve() for entry in sys.path]
    return tuple(dict.fromkeys(str(entry) for entry in entries if entry.is_dir() and not _is_installed(entry)))
