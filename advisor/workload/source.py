"""Resolve the user's MODEL to a workload that another process can find.

No user code runs here and torch is not imported: files are read, not loaded. Of a repository on the Hugging Face hub
its config is fetched.
"""

from __future__ import annotations

import difflib
import importlib.machinery
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import msgspec

from advisor.errors import WorkloadError
from advisor.text.paths import path_of
from advisor.text.printable import quoted, shown
from advisor.workload.code.fingerprint import digest_of
from advisor.workload.code.reachable_code import local_code
from advisor.workload.contract import check_contract
from advisor.workload.hub import hub_config
from advisor.workload.workload import FUNCTIONS, Stated, WorkloadKind, WorkloadSource, package_root

__all__ = ["resolve_source", "stating"]

_ACCEPTED = (
    "a Python file with build_model and make_batch, an importable module, "
    "hf:<model type>, hf:<org>/<name> on the hub, a config.json, or a folder with a config.json"
)
_NOT_OF_TRAINING = frozenset(
    {
        "_commit_hash",
        "_name_or_path",
        "dtype",
        "task_specific_params",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Of a config: who wrote it, formats (weights are built in float32), what is for generation alone."""
_MODEL_TYPE = re.compile(r"[\w.-]{1,100}", re.ASCII)
_PATHS = ("/", "./", "../", "~")
"""How a path begins, and no repository on the hub."""


def resolve_source(model: str | Path) -> WorkloadSource:
    """Find a workload by what the user named.

    Args:
        model: A Python file, an importable module (``package.module``), ``hf:<model type>``, ``hf:<org>/<name>``
            (a repository on the Hugging Face hub), a Hugging Face ``config.json``, or a folder with one.

    Raises:
        WorkloadError: It does not exist, is not valid Python or JSON, or lacks ``build_model`` or ``make_batch``.
    """
    text = str(model)
    if isinstance(model, str) and text.startswith("hf:"):
        named = text.removeprefix("hf:")
        if named.startswith(_PATHS) or named.endswith(("/", ".json")):
            return resolve_source(named)  # as text: a module's name has no slash at its end
        return _hub_repository(named) if "/" in named else _hugging_face_type(named)
    path = path_of(text, "MODEL", WorkloadError)
    try:
        return _found(path, text)
    except OSError as error:
        raise WorkloadError(
            f"MODEL must be readable, but {shown(error.filename or path)}: {error.strerror}."
        ) from error


def stating(source: WorkloadSource, stated: Stated) -> WorkloadSource:
    """A workload with what the user says beside it.

    Raises:
        WorkloadError: A length or a size of samples that the user's own ``make_batch`` decides.
    """
    if stated == Stated():
        return source
    for option, value in (("--tokens", stated.tokens), ("--image-size", stated.image_size)):
        if value is not None and source.kind is not WorkloadKind.HUGGING_FACE:
            raise WorkloadError(
                f"{option} is for models of transformers, whose batches are made here, but {shown(source.name)} makes "
                f"its own and {option} is {value}. Leave it out, and let make_batch make samples of that size."
            )
    fingerprint = digest_of(source.fingerprint, msgspec.json.encode(stated))
    return msgspec.structs.replace(source, stated=stated, fingerprint=fingerprint)


def _found(path: Path, text: str) -> WorkloadSource:
    if path.is_dir():
        return _config_folder(path)
    if path.is_file():
        if path.suffix == ".json":
            return _config_file(path)
        if path.suffix == ".py":
            path = path.resolve()
            return _file_source(path, package_root(path), path.stem)
        raise WorkloadError(f"MODEL must be {_ACCEPTED}, but {shown(path)} is a file of another kind.")
    if not text.endswith((".py", ".json")) and all(part.isidentifier() for part in text.split(".")):
        return _module(text)
    raise WorkloadError(f"MODEL must be {_ACCEPTED}, but there is no file {shown(path)}.{_near_files(path)}")


def _file_source(path: Path, root: Path | None, name: str) -> WorkloadSource:
    """A file; with ``root``, it is part of a package below that folder and imported by its dotted name."""
    check_contract(path)
    fingerprint, files = local_code(path, root or path.parent, FUNCTIONS)
    return WorkloadSource(
        kind=WorkloadKind.FILE,
        location=str(path),
        import_paths=() if root is None else (str(root),),
        name=name,
        fingerprint=fingerprint,
        files=files,
    )


def _module(name: str) -> WorkloadSource:
    """An importable module, found without importing its packages."""
    search = list(dict.fromkeys([str(Path.cwd()), *sys.path]))
    parts = name.split(".")
    origin: str | None = None
    for position, part in enumerate(parts):
        spec = importlib.machinery.PathFinder.find_spec(part, search)
        if spec is None:
            missing = ".".join(parts[: position + 1])
            raise WorkloadError(
                f"MODEL must be {_ACCEPTED}, but there is neither a file nor a module {quoted(missing)}."
                f"{_near_files(Path(name))}"
            )
        origin = spec.origin
        search = list(spec.submodule_search_locations or ())
    if origin is None or not origin.endswith(".py"):
        raise WorkloadError(
            f"a module given as MODEL must be a Python file, but {quoted(name)} is not one. "
            "Name the module that defines build_model and make_batch."
        )
    path = Path(origin).resolve()
    depth = len(parts) + (1 if path.name == "__init__.py" else 0)
    return _file_source(path, path.parents[depth - 1], parts[-1])


def _hugging_face_type(model_type: str) -> WorkloadSource:
    """A model type. Whether transformers knows it is checked where transformers is loaded: in the worker."""
    if not _MODEL_TYPE.fullmatch(model_type):
        raise WorkloadError(
            f"hf: takes a model type of transformers such as hf:bert, but got {quoted('hf:' + model_type)}. "
            "For one model's sizes name its repository, such as hf:google-bert/bert-base-uncased, or give the path of "
            "its config.json; models are built with random weights."
        )
    return _hugging_face_source(model_type, model_type, "hugging face type", model_type)


def _hub_repository(repository: str) -> WorkloadSource:
    """A repository on the hub. The name in the cache tells its commit, its content is what counts."""
    path = hub_config(repository)
    name = repository.partition("@")[0].rpartition("/")[2]
    return _config_source(path, name)


def _hugging_face_source(location: str, name: str, *content: str) -> WorkloadSource:
    """The version of transformers is that of the library that the model's modules come from."""
    return WorkloadSource(
        kind=WorkloadKind.HUGGING_FACE,
        location=location,
        name=name,
        fingerprint=digest_of(*content),
        files=(location,) if os.path.isabs(location) else (),
    )


def _config_folder(folder: Path) -> WorkloadSource:
    config = folder / "config.json"
    if config.is_file():
        return _config_file(config)
    files = sorted(path.name for path in folder.glob("*.py"))[:8]
    inside = f" Python files in it: {', '.join(map(shown, files))}; name one of them." if files else ""
    raise WorkloadError(
        f"a folder given as MODEL must hold a Hugging Face config.json, but {shown(folder)} has none.{inside}"
    )


def _config_file(path: Path) -> WorkloadSource:
    path = path.resolve()
    return _config_source(path, path.parent.name if path.name == "config.json" else path.stem)


def _config_source(path: Path, name: str) -> WorkloadSource:
    content = path.read_bytes()
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise WorkloadError(f"a config must be valid JSON, but {shown(path)} is not: {error}.") from error
    model_type = config.get("model_type") if isinstance(config, dict) else None
    if not isinstance(model_type, str) or not _MODEL_TYPE.fullmatch(model_type):
        has = "none" if model_type is None else quoted(model_type)
        raise WorkloadError(
            f'a Hugging Face config must have a "model_type" of transformers, but {shown(path)} has {has}. '
            'Add it, for example {"model_type": "bert", ...}.'
        )
    return _hugging_face_source(
        str(path), name or model_type, "hugging face config", json.dumps(_of_training(config), sort_keys=True)
    )


def _of_training(config: dict[str, Any]) -> dict[str, Any]:
    """A config, and those in it, without what decides nothing of the model that is trained here."""
    return {
        name: _of_training(value) if name.endswith("config") and isinstance(value, dict) else value
        for name, value in config.items()
        if name not in _NOT_OF_TRAINING
    }


def _near_files(path: Path) -> str:
    """Files of the folder with a similar name, as a sentence, or nothing."""
    folder = path.parent
    if not os.path.isdir(folder):
        return f" (There is no folder {shown(folder)} either.)"
    names = sorted(item.name for item in folder.iterdir() if item.suffix in (".py", ".json"))
    near = difflib.get_close_matches(path.name, names, n=3, cutoff=0.5)
    near += [name for name in names if Path(name).stem == path.stem and name not in near]
    return f" Did you mean {' or '.join(shown(folder / name) for name in near)}?" if near else ""
