"""The library call that tunes, for a training bootstrap."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from advisor.decide.answer import Answer
from advisor.errors import OptionError
from advisor.goal import Fidelity, GoalKind, Preference, Price
from advisor.goal_text import parse_floor, parse_gpu_counts
from advisor.search.propose.proposal import SamplerName
from advisor.session.request import DEFAULT_TIME_LIMIT_SECONDS, DEFAULT_TRIALS, TuneRequest
from advisor.session.setup.several_nodes import nodes_from
from advisor.text.paths import path_of
from advisor.text.printable import quoted
from advisor.text.ranges import check_above_zero, whole
from advisor.text.units import MOST_BYTES, parse_bytes, parse_duration
from advisor.workload.function_source import source_from_functions
from advisor.workload.importing import refuse_while_importing
from advisor.workload.source import resolve_source

if TYPE_CHECKING:
    import torch

    from advisor.report.progress import Progress

__all__ = ["Answer", "tune"]

_E = TypeVar("_E", GoalKind, Fidelity, SamplerName)


def tune(
    model: str | os.PathLike[str] | None = None,
    *,
    build_model: Callable[..., torch.nn.Module] | None = None,
    make_batch: Callable[..., Any] | None = None,
    compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None,
    build_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
    count_targets: Callable[[Any], int | float] | None = None,
    linear_head: Callable[[torch.nn.Module, Any], Any] | None = None,
    goal: str = "faster",
    device: str | None = None,
    memory_limit: str | int | None = None,
    fidelity: str | None = None,
    search_space: str | os.PathLike[str] = "default",
    methods: str | Iterable[str] | None = None,
    sampler: str = "model",
    storage: str | None = None,
    trials: int = DEFAULT_TRIALS,
    time_limit: str | float | None = None,
    global_batch: int | None = None,
    gpus: int | str | Iterable[int] | None = None,
    nnodes: int | None = None,
    rdzv_endpoint: str | None = None,
    price: float | None = None,
    kwh_price: float | None = None,
    max_latency: str | float | None = None,
    max_cost: float | None = None,
    deadline: str | float | None = None,
    iterations: int | None = None,
    min_throughput: str | float | None = None,
    output: str | os.PathLike[str] | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    wait: bool = True,
) -> Answer:
    """Measure which policy to train with.

    When nothing has changed since an earlier call (model source, hardware, versions, request), its answer is
    returned at once, without starting a process. When several ranks of one launch call it, one of them tunes and
    the others wait for its answer; over several nodes ``output`` must be a folder that all of them share.

    Args:
        model: A Python file, ``"hf:<model type>"``, a ``config.json`` or a module name; or give functions instead.
        build_model: ``() -> nn.Module``. Functions are found again by name in other processes: they must be
            importable, no lambdas and no functions inside functions.
        make_batch: ``(batch_size) -> pytree of CPU tensors``.
        compute_loss: ``(model, batch) -> scalar``; by default the loss that the model itself returns.
        build_optimizer: ``(parameters) -> optimizer``; by default AdamW.
        count_targets: ``(batch) -> number`` of targets that the loss averages over.
        linear_head: ``(model, batch) -> (hidden, weight, bias or None, targets)`` for losses computed in chunks.
        goal: ``"faster"``, ``"cheapest"`` or ``"bigger"``.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``; by default the first GPU.
        memory_limit: Bytes, or text such as ``"8GiB"``, for the whole process; by default what is free.
        fidelity: ``"exact"``, ``"rounding"``, ``"precision"``, ``"lossy"`` or ``"model"``; by default the search
            space's own ceiling.
        search_space: Name of a shipped space, or path of a YAML file.
        methods: Names of methods (``"checkpoint,swap"`` or a list): nothing else is tried, and each of them must apply.
        sampler: How the next combination is chosen: ``"model"`` (the largest expected improvement under a model of all
            combinations), ``"tpe"`` (Optuna's) or ``"random"``.
        storage: For several workers on one study, each with an ``output`` of its own: URL of a database
            (``"sqlite:///study.db"``, ``"postgresql://..."``, ``"mysql://..."``) or a file ``study.journal``.
        trials: Most policies to measure.
        time_limit: Seconds, or text such as ``"5m"``.
        global_batch: Samples per optimizer step, if that must stay fixed.
        gpus: Numbers of devices that may train together: ``2``, ``(1, 2, 4)`` or ``"1,2,4"``. By default one; for
            ``cheapest`` and on several machines 1, 2, 4, ... up to what is there.
        nnodes: Machines whose devices train together; this is the first, and on each of the others
            ``momadvise --nnodes N --rdzv-endpoint HOST:PORT --node-rank K`` follows it.
        rdzv_endpoint: ``"host:port"`` of this machine, as all of them can reach it.
        price: ``cheapest``: US dollars per hour of one device; by default the list price of its profile.
        kwh_price: ``cheapest``: US dollars per kilowatt-hour, to count energy as well.
        max_latency: ``cheapest``: pick the least cost with at most so many seconds per iteration (or ``"200ms"``).
        max_cost: ``cheapest``: pick the fastest with at most so many dollars per iteration, or for all ``iterations``.
        deadline: ``cheapest``: pick the least cost that finishes ``iterations`` in so many seconds (or ``"8h"``).
        iterations: ``cheapest``: iterations of the whole run.
        min_throughput: ``bigger``: samples per second that must be kept (``20``), or a share of what plain training
            reaches at the model's own size (``"0.5x"``).
        output: Folder for everything that is written; by default ``momadvise-runs/<name>-<fingerprint>``.
        seed: Seed of models, batches and proposals.
        progress: Told of everything that happens; by default the logger ``advisor`` is.
        wait: Whether to wait while another process tunes into the same folder.

    Returns:
        The answer: ``answer.policy``, ``answer.wrapper_path``, ``answer.recommendation``.

    Raises:
        UserError: A mistake that the user can fix; also a call made while a worker imports the calling script
            (guard it with ``if __name__ == "__main__":``).
        TrialError: Nothing could be measured, or nothing fits.
    """
    from advisor.report.progress import LoggingProgress
    from advisor.session.tune import run_session

    refuse_while_importing("advisor.tune")
    functions = {
        "build_model": build_model,
        "make_batch": make_batch,
        "compute_loss": compute_loss,
        "build_optimizer": build_optimizer,
        "count_targets": count_targets,
        "linear_head": linear_head,
    }
    given = {name: function for name, function in functions.items() if function is not None}
    if model is not None and given:
        raise OptionError(
            f"Either a model file or functions must be given, but got {quoted(model)} and {', '.join(given)}."
        )
    if model is not None:
        model = _text(model, "model")
    source = source_from_functions(**given) if model is None else resolve_source(model)
    request = TuneRequest(
        source=source,
        goal=_choice(GoalKind, goal, "goal"),
        device=None if device is None else _text(device, "device"),
        memory_limit_bytes=_bytes(memory_limit),
        fidelity=None if fidelity is None else _choice(Fidelity, fidelity, "fidelity"),
        search_space=_text(search_space, "search_space"),
        methods=_names(methods),
        sampler=_choice(SamplerName, sampler, "sampler"),
        storage=None if storage is None else _text(storage, "storage"),
        trials=whole(trials, "--trials"),
        time_limit_seconds=_seconds(time_limit),
        global_batch=None if global_batch is None else whole(global_batch, "--global-batch"),
        gpu_counts=None if gpus is None else parse_gpu_counts(gpus),
        nodes=nodes_from(nnodes, rdzv_endpoint, None),
        price=None
        if price is None
        else Price(usd_per_hour=_number(price, "--price"), source="--price", date="as given"),
        usd_per_kilowatt_hour=None if kwh_price is None else _number(kwh_price, "--kwh-price"),
        preference=Preference(
            max_latency_seconds=_duration(max_latency, "--max-latency"),
            max_cost_usd=None if max_cost is None else _number(max_cost, "--max-cost"),
            deadline_seconds=_duration(deadline, "--deadline"),
            iterations=None if iterations is None else whole(iterations, "--iterations", most=10**12),
        ),
        floor=None if min_throughput is None else parse_floor(min_throughput),
        output=None if output is None else path_of(output, "--output", OptionError),
        seed=whole(seed, "seed", least=0, most=2**32 - 1),
        wait=wait,
    )
    return run_session(request, LoggingProgress() if progress is None else progress)


def _choice(kind: type[_E], text: str, option: str) -> _E:
    try:
        return kind(text)
    except ValueError:
        valid = ", ".join(repr(member.value) for member in kind)
        raise OptionError(f"{option} must be one of {valid}, but got {quoted(text)}.") from None


def _names(methods: str | Iterable[str] | None) -> tuple[str, ...]:
    """The names of methods that were asked for."""
    if methods is None:
        return ()
    if not isinstance(methods, Iterable):
        raise OptionError(f"methods must be names of methods, but got {quoted(methods)}.")
    texts = [_text(one, "methods") for one in (methods.split(",") if isinstance(methods, str) else methods)]
    names = tuple(dict.fromkeys(text.strip() for text in texts if text.strip()))
    if not names:
        raise OptionError(
            f"--methods must name at least one method, but got {quoted(methods)}. `momadvise methods` lists them."
        )
    return names


def _text(value: object, option: str) -> str:
    """A text, or a path as one."""
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise OptionError(f"{option} must be a text, but got {quoted(value)} of type {type(value).__name__}.")
    return value


def _number(value: Any, option: str) -> float:
    check_above_zero(value, option)
    return float(value)


def _bytes(limit: str | int | None) -> int | None:
    if limit is None:
        return None
    return parse_bytes(limit) if isinstance(limit, str) else whole(limit, "--memory-limit", most=MOST_BYTES)


def _duration(value: str | float | None, option: str) -> float | None:
    if value is None:
        return None
    return parse_duration(value, option=option) if isinstance(value, str) else _number(value, option)


def _seconds(limit: str | float | None) -> float:
    return DEFAULT_TIME_LIMIT_SECONDS if limit is None else _duration(limit, "--time-limit") or 0.0
