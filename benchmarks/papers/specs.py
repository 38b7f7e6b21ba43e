"""Trials of every kind for the papers' commands: of a complete policy, with its accumulation and devices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from advisor.hardware.hardware import DeviceKind
from advisor.methods.setting import MethodSetting
from advisor.policy.policy import Policy
from advisor.session.setup.limits import memory_budget
from advisor.trial.spec import FidelityTrial, PredictTrial, Trial
from advisor.workload.source import resolve_source
from benchmarks.papers.command import Options

__all__ = ["policy_of", "spec_of"]

_S = TypeVar("_S", bound=Trial[Any])

_TIME_LIMIT_SECONDS = 120.0


def policy_of(settings: Sequence[MethodSetting], batch: int, settled: Mapping[str, str] | None = None) -> Policy:
    """The policy of methods in any order at one batch, in samples, with their calibration from the profiling runs."""
    methods = tuple(sorted(settings, key=lambda one: one.name))
    return Policy(methods=methods, micro_batch=batch, settled=dict(settled or {}))


def spec_of(
    kind: type[_S],
    options: Options,
    workload: Path | str,
    policy: Policy,
    *,
    seconds: float = _TIME_LIMIT_SECONDS,
    steps: int = 3,
    model_size: Mapping[str, int | float] | None = None,
    limit_bytes: int | None = None,
    time_limit_seconds: float = _TIME_LIMIT_SECONDS,
) -> _S:
    """One trial of a policy on the command's device.

    Args:
        kind: What to do.
        options: Options of the command; they name the device.
        workload: A model file, or ``hf:NAME``.
        policy: The policy to apply.
        seconds: Time limit of the steps.
        steps: Of FidelityTrial: number of steps, within that time.
        model_size: Arguments of the model file's ``build_model`` and ``make_batch``.
        limit_bytes: The memory limit; ``None`` for what is free.
        time_limit_seconds: Time limit of the trial on a GPU.
    """
    limit = limit_bytes or memory_budget(options.hardware, None).limit_bytes
    asked: dict[str, Any] = {}
    if issubclass(kind, FidelityTrial):
        asked["fidelity_steps"] = steps
    if issubclass(kind, PredictTrial) and options.hardware.kind is DeviceKind.CUDA:
        asked["allocator_limit_bytes"] = limit
    return kind(
        workload=resolve_source(workload),
        model_size=dict(model_size or {}),
        policy=policy,
        device=options.hardware.device,
        memory_limit_bytes=limit,
        measure_seconds=seconds,
        time_limit_seconds=options.at_most(time_limit_seconds),
        **asked,
    )
