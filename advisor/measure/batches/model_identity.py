"""What a workload is, as it is built here: other parameters, shapes or types make another study."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from advisor.measure.batches.batches import make_batches, seed_everything
from advisor.measure.batches.parts import parts_of
from advisor.training.batch.tree import leaves_of
from advisor.training.optimizer.workload_optimizer import built_optimizer
from advisor.workload._user_functions import Workload
from advisor.workload.code.fingerprint import digest_of, source_digest
from advisor.workload.identity import ModelIdentity

__all__ = ["built_on_meta", "identity_of"]

_SAMPLES = (2, 4, 8, 1)
"""Of the batches that are looked at; the first that ``make_batch`` makes."""

_DRAWS = 3

_NO_OPTIONS = frozenset({"params", "param_names", "lr", "initial_lr"})
"""Entries of an optimizer's groups that say nothing of a step's time or memory."""

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def built_on_meta(workload: Workload, seed: int, size: Mapping[str, int | float]) -> torch.nn.Module | None:
    """The model without memory or values; ``None`` if its code needs some."""
    seed_everything(seed)
    try:
        with torch.device("meta"):
            return workload.build_model(**size)
    except Exception:  # code that reads values, or moves the model to a device
        return None


def identity_of(
    model: torch.nn.Module,
    workload: Workload,
    make_batch: Callable[[int], Any],
    seed: int,
    known: Collection[str] = (),
) -> ModelIdentity:
    """Describe a model, as the user builds it, its optimizer, and the batches that ``make_batch`` draws with a seed.

    Args:
        model: The model.
        workload: What the user states beside it.
        make_batch: Number of samples -> a batch.
        seed: Of the batches.
        known: Files whose code identifies the workload already.
    """
    named = [*model.named_parameters(), *model.named_buffers()]
    tensors = [
        f"{name} {'made later' if is_lazy(tensor) else tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}"
        for name, tensor in named
    ]
    modules = [
        f"{name} {_name(type(module))} {_ADDRESS.sub('', module.extra_repr())}"
        for name, module in model.named_modules()
    ]
    dtypes: Counter[str] = Counter()
    for _, tensor in named:
        dtypes[_dtype(tensor)] += _count(tensor)
    return ModelIdentity(
        class_name=_name(type(model)),
        parameters=sum(map(_count, model.parameters())),
        trainable=sum(_count(one) for one in model.parameters() if one.requires_grad),
        buffers=sum(map(_count, model.buffers())),
        dtypes=dict(sorted(dtypes.items())),
        modules=dict(sorted(Counter(_name(type(module)) for module in model.modules()).items())),
        structure=digest_of(*tensors, *modules),
        batch=_batch(make_batch, seed),
        optimizer=_optimizer(model, workload),
        declares=_declared(workload),
        libraries=_libraries(model),
        sources=_sources(model),
        code=_code(model, known),
    )


def _count(tensor: torch.Tensor) -> int:
    return 0 if is_lazy(tensor) else tensor.numel()


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _name(kind: type) -> str:
    """A class, with its module if that is installed: the user may rename files."""
    return f"{kind.__module__}.{kind.__qualname__}" if _is_installed(kind.__module__) else kind.__qualname__


def _batch(make_batch: Callable[[int], Any], seed: int) -> dict[str, str]:
    """Every part with its type, and the sizes that do not differ from draw to draw."""
    for samples in _SAMPLES:
        try:
            # The last is drawn as the first: what differs then is drawn from elsewhere, and says nothing.
            drawn = [*make_batches(make_batch, samples, _DRAWS, seed), *make_batches(make_batch, samples, 1, seed)]
        except Exception:  # one sample, or an odd number, may be none that it makes
            continue
        sizes = [{path: part.sizes for path, part in parts_of(batch).items()} for batch in drawn]
        if len({tuple(one) for one in sizes}) > 1:
            return {f"{samples} samples": "parts differ"}
        words = {}
        for leaf in leaves_of(drawn[0]):
            own = [one.get(leaf.path) for one in sizes]
            size = list(own[0] or ()) if len(set(own)) == 1 else "of several sizes"
            kind = _dtype(leaf.value) if hasattr(leaf.value, "dtype") else type(leaf.value).__name__
            words[leaf.path or "whole"] = f"{kind} {size}" if own[0] is not None else kind
        return words
    return {}


def _optimizer(model: torch.nn.Module, workload: Workload) -> str:
    """The optimizer's class and which of its options are in use: a momentum takes memory, its value does not.

    Whole numbers and words may decide how long a step takes (iterations, a rank), so these are told with their values.
    """
    if workload.build_optimizer is None:
        return "AdamW, the default"
    try:
        optimizer = built_optimizer(model, workload.build_optimizer)
    except Exception:  # it may need what a model without memory lacks
        return "made from a real model only"
    groups = [optimizer.defaults, *optimizer.param_groups]
    used = {_option(name, value) for group in groups for name, value in group.items() if name not in _NO_OPTIONS}
    return f"{_name(type(optimizer))}({', '.join(sorted(used - {''}))})"


def _option(name: str, value: object) -> str:
    """An option that is in use, with its value if that is a whole number or a word; empty for any other."""
    if not isinstance(value, int | float | tuple | str) or not value:
        return ""
    return f"{name}={value}" if isinstance(value, int | str) and value is not True else name


def _declared(workload: Workload) -> dict[str, str]:
    functions = ("compute_loss", "build_optimizer", "count_targets", "linear_head")
    found = {name: "given" for name in functions if getattr(workload, name) is not None}
    if workload.max_grad_norm is not None:
        found["MAX_GRAD_NORM"] = "given"
    if workload.batch_size is not None:
        found["BATCH_SIZE"] = str(workload.batch_size)
    if workload.blocks:
        found["BLOCKS"] = ", ".join(block.__qualname__ for block in workload.blocks)
    if workload.sizes:
        found["SIZES"] = "; ".join(f"{name}: {', '.join(map(str, one))}" for name, one in workload.sizes.items())
    return found


def _libraries(model: torch.nn.Module) -> dict[str, str]:
    """The installed distributions that the classes of a model's modules come from -> their version; torch is known."""
    packages = {type(module).__module__.partition(".")[0] for module in model.modules()} - {"torch"}
    installed = [package for package in packages if _is_installed(package)]
    versions = {package: version for package in installed if (version := _version(package)) is not None}
    others = [package for package in installed if package not in versions]
    if others:  # of another name: to look through all that is installed takes a fifth of a second
        distributions = metadata.packages_distributions()
        versions |= {name: metadata.version(name) for package in others for name in distributions.get(package, [])}
    return {name: versions[name] for name in sorted(versions)}


def _is_installed(module: str) -> bool:
    """Whether it was imported from where distributions are installed, which the user's own modules are not."""
    package = sys.modules.get(module.partition(".")[0])
    places = getattr(package, "__path__", None) or [getattr(package, "__file__", "")]
    return any(part in ("site-packages", "dist-packages") for place in places for part in Path(place or "").parts)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _sources(model: torch.nn.Module) -> tuple[str, ...]:
    """The files in which the model's classes are defined, but for those of torch."""
    return tuple(sorted(_files(model).values()))


def _code(model: torch.nn.Module, known: Collection[str]) -> dict[str, str]:
    """Digests of the user's own modules that define the model's classes, but for those that are known."""
    own = {name: Path(file) for name, file in sorted(_files(model).items()) if not _is_installed(name)}
    return {
        name: source_digest(file.read_bytes())
        for name, file in own.items()
        if os.path.realpath(file) not in known and file.is_file()
    }


def _files(model: torch.nn.Module) -> dict[str, str]:
    """Module that defines classes of the model -> its file."""
    names = {type(module).__module__ for module in model.modules()}
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in names}
    return {
        name: file
        for name, file in files.items()
        if isinstance(file, str) and file.endswith(".py") and name.partition(".")[0] != "torch"
    }
