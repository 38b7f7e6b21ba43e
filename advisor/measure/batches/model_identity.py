"""What a model and its batches are, in a few digests: other parameters or shapes make another study."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from advisor.measure.batches.batches import make_batches
from advisor.measure.batches.parts import parts_of
from advisor.training.batch.tree import leaves_of
from advisor.workload.fingerprint import digest_of
from advisor.workload.identity import ModelIdentity

__all__ = ["identity_of"]

_SAMPLES = (2, 4, 8, 1)
"""Of the batches that are looked at; the first that ``make_batch`` makes."""

_DRAWS = 3

_ADDRESS = re.compile(r"0x[0-9a-f]+")


def identity_of(model: torch.nn.Module, make_batch: Callable[[int], Any], seed: int) -> ModelIdentity:
    """Describe a model, as the user builds it, and the batches that ``make_batch`` draws with a seed."""
    tensors = [
        f"{name} {'made later' if is_lazy(tensor) else tuple(tensor.shape)} {tensor.dtype} {tensor.requires_grad}"
        for name, tensor in (*model.named_parameters(), *model.named_buffers())
    ]
    modules = [
        f"{name} {type(module).__module__}.{type(module).__qualname__} {_ADDRESS.sub('', module.extra_repr())}"
        for name, module in model.named_modules()
    ]
    return ModelIdentity(
        parameters=sum(0 if is_lazy(one) else one.numel() for one in model.parameters()),
        model=digest_of(*tensors, *modules),
        batches=digest_of(*_batches(make_batch, seed)),
        libraries=_libraries(model),
        sources=_sources(model),
    )


def _batches(make_batch: Callable[[int], Any], seed: int) -> list[str]:
    """Every part with its type, and the sizes that do not differ from draw to draw."""
    for samples in _SAMPLES:
        try:
            # The last is drawn as the first: what differs then is drawn from elsewhere, and says nothing.
            drawn = [*make_batches(make_batch, samples, _DRAWS, seed), *make_batches(make_batch, samples, 1, seed)]
        except Exception:  # one sample, or an odd number, may be none that it makes
            continue
        sizes = [{path: part.sizes for path, part in parts_of(batch).items()} for batch in drawn]
        words = []
        for leaf in leaves_of(drawn[0]):
            own = [one.get(leaf.path) for one in sizes]
            size = own[0] if len(set(own)) == 1 else "differs"
            kind = str(leaf.value.dtype) if hasattr(leaf.value, "dtype") else type(leaf.value).__name__
            words.append(f"{leaf.path} {kind} {size}")
        return words if len({tuple(one) for one in sizes}) == 1 else ["differ"]
    return []


def _libraries(model: torch.nn.Module) -> dict[str, str]:
    """The installed distributions that the classes of a model's modules come from -> their version."""
    packages = {type(module).__module__.partition(".")[0] for module in model.modules()}
    installed = [package for package in packages if _is_installed(package)]
    versions = {package: version for package in installed if (version := _version(package)) is not None}
    others = [package for package in installed if package not in versions]
    if others:  # of another name: to look through all that is installed takes a fifth of a second
        distributions = metadata.packages_distributions()
        versions |= {name: metadata.version(name) for package in others for name in distributions.get(package, [])}
    return {name: versions[name] for name in sorted(versions)}


def _is_installed(package: str) -> bool:
    """Whether it was imported from where distributions are installed, which the user's own modules are not."""
    places = getattr(sys.modules.get(package), "__path__", None) or [getattr(sys.modules.get(package), "__file__", "")]
    return any(part in ("site-packages", "dist-packages") for place in places for part in Path(place or "").parts)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _sources(model: torch.nn.Module) -> tuple[str, ...]:
    """The files in which the model's classes are defined, but for those of torch."""
    names = {type(module).__module__ for module in model.modules()}
    files = (getattr(sys.modules.get(name), "__file__", None) for name in names if name.partition(".")[0] != "torch")
    return tuple(sorted(file for file in files if isinstance(file, str) and file.endswith(".py")))
