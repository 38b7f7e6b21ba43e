"""Apply a policy to a model: the same code in trials, in the emitted wrapper and in the user's own training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from advisor.errors import PolicyError
from advisor.methods.compose import apply_settings, validate_setting
from advisor.policy.file import load_policy_file
from advisor.policy.policy import Policy
from advisor.text.ranges import whole_variable
from advisor.workload.batch_layout import SampleDims
from advisor.workload.reduction import Reduction

if TYPE_CHECKING:
    import torch

    from advisor.training.training import Training

__all__ = ["HasPolicy", "apply_policy"]

_MARK = "_momadvise_policy"
"""Marks a model that has a policy: two trainings of one model would update it twice."""


class HasPolicy(Protocol):
    """Something that carries a policy, such as the answer of a tuning."""

    @property
    def policy(self) -> Policy:
        """The policy."""

    @property
    def sample_dims(self) -> SampleDims | None:
        """Where a batch has its samples, if not in the default place."""

    @property
    def reduction(self) -> Reduction | None:
        """How the loss of a batch follows from those of its micro-batches, if not as by default."""


def apply_policy(
    policy: Policy | HasPolicy | str | os.PathLike[str],
    model: torch.nn.Module,
    *,
    device: str | torch.device | None = None,
    compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None,
    build_optimizer: Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None = None,
    count_targets: Callable[[Any], int | float] | None = None,
    linear_head: Callable[[torch.nn.Module, Any], Any] | None = None,
    max_grad_norm: float | None = None,
    blocks: tuple[type, ...] = (),
    sample_dims: SampleDims | None = None,
    reduction: Reduction | None = None,
    example_batch: Any = None,
) -> Training:
    """Apply a policy to a model, with the same code that the trials ran.

    Args:
        policy: A policy, an answer of ``advisor.tune``, or the path of a policy file.
        model: The model; it is moved to ``device`` and changed in place.
        device: Where to train; default: the CUDA device that ``LOCAL_RANK`` names (the first if it is unset, or if no
            other is visible), which becomes the current device; without CUDA, the CPU.
        compute_loss: ``(model, batch) -> scalar``; by default the loss that the model itself returns.
        build_optimizer: ``(parameters) -> optimizer``; by default AdamW.
        count_targets: ``(batch) -> number`` of targets that the loss averages over, the weight of a micro-batch; by
            default labels that are not -100, or samples.
        linear_head: ``(model, batch) -> (hidden, weight, bias or None, targets)`` for losses computed in chunks.
        max_grad_norm: Clip the gradient's norm to this before every optimizer step.
        blocks: Classes of the repeated blocks, when they cannot be found.
        sample_dims: Where a batch has its samples, if not in dimension 0 of every part: path of a part (``"labels"``,
            ``"0.boxes"``) -> the dimension, ``None`` if all samples share the part, or ``"uncut"``.
        reduction: How the loss of a batch follows from those of its micro-batches; default: a mean over the labels of
            text that are not -100, otherwise over samples.
        example_batch: A small batch, for methods that must see the model run before they are applied and have found
            nothing in ``settled``. The first process's counts.

    Returns:
        The training: ``training.step(batch)``, or ``forward``, ``backward`` and ``optimizer_step``.

    Raises:
        OptionError: ``LOCAL_RANK`` is not a number.
        PolicyError: The file cannot be read or names an unknown method or value, the number of torch.distributed
            processes differs from the policy's GPUs or exceeds the visible ones, the model already has a policy, or
            ``build_optimizer`` is no function or ``max_grad_norm`` not above 0.
        MethodRefusedError: A method cannot apply to this model.
    """
    # Imported here: the parent process builds and writes policies without ever loading torch.
    from advisor.training.processes.world import current_world
    from advisor.training.training import Training

    if isinstance(policy, str | os.PathLike):
        policy = load_policy_file(policy)
    if not isinstance(policy, Policy):
        sample_dims = policy.sample_dims if sample_dims is None else sample_dims
        reduction = policy.reduction if reduction is None else reduction
        policy = policy.policy
    for setting in policy.methods:
        validate_setting(setting)
    _check_processes(policy)
    if _MARK in vars(model):
        raise PolicyError(
            f"A policy must be applied to a plain model, but {type(model).__name__} has one already "
            f"({vars(model)[_MARK]}). Build the model anew, or use the training that it was prepared for."
        )
    training = Training(
        model,
        device=_default_device() if device is None else device,
        compute_loss=compute_loss,
        build_optimizer=_checked_builder(build_optimizer),
        count_targets=count_targets,
        linear_head=linear_head,
        max_grad_norm=_checked_norm(max_grad_norm),
        blocks=blocks,
        micro_batch=policy.micro_batch,
        sample_dims=sample_dims,
        reduction=reduction,
        world=current_world(policy.axes),
        example_batch=example_batch,
    )
    training.settled.update(policy.settled)
    try:
        apply_settings(training, policy.methods)
    except BaseException:
        training.close()
        raise
    _prepare_for_others(training, policy, compute_loss)
    return training


def _prepare_for_others(
    training: Training, policy: Policy, compute_loss: Callable[[torch.nn.Module, Any], torch.Tensor] | None
) -> None:
    """Have the model say, and do, what those who hold it without the training would not know."""
    from advisor.training.direct_call import announce_direct_calls
    from advisor.training.plain_saving import save_as_plain

    model = training.model
    object.__setattr__(model, _MARK, policy.words)
    announce_direct_calls(training, policy.words, compute_loss)
    if policy.methods:
        save_as_plain(training)
    else:
        training.on_close(lambda: vars(model).pop(_MARK, None))  # plain training leaves nothing in the model


def _checked_builder(builder: Any) -> Any:
    """What builds the optimizer, which must not be one that was made already.

    Raises:
        PolicyError: It is one, or something else that cannot be called.
    """
    if builder is not None and not callable(builder):
        raise PolicyError(
            f"build_optimizer must be a function that makes an optimizer of parameters, but got a "
            f"{type(builder).__name__}. Pass build_optimizer=lambda parameters: torch.optim.AdamW(parameters, "
            "lr=...)."
        )
    return builder


def _checked_norm(norm: float | None) -> float | None:
    """What gradients are clipped to.

    Raises:
        PolicyError: A factor from it would turn gradients around, or drop them.
    """
    if norm is not None and not norm > 0:
        raise PolicyError(f"max_grad_norm must be above 0, but got {norm}. Leave it out to clip no gradients.")
    return norm


def _default_device() -> str:
    """The GPU of this process, made the current one for libraries that name no device.

    Raises:
        PolicyError: This machine has fewer GPUs than processes.
    """
    import torch

    if not torch.cuda.is_available():
        return "cpu"
    rank, count = whole_variable(os.environ, "LOCAL_RANK", default=0, least=0), torch.cuda.device_count()
    if rank >= count > 1:
        raise PolicyError(
            f"Every process must have a GPU of its own, but LOCAL_RANK is {rank} and {count} GPUs are visible. "
            "Start fewer processes, or make more GPUs visible with CUDA_VISIBLE_DEVICES."
        )
    device = f"cuda:{rank if count > 1 else 0}"  # a process that sees only one GPU was given its own
    torch.cuda.set_device(device)
    return device


def _check_processes(policy: Policy) -> None:
    """Require one process per GPU of the policy: fewer would wait for the others, more would each train alone.

    Raises:
        PolicyError: Their numbers differ.
    """
    import torch.distributed as dist

    initialized = dist.is_available() and dist.is_initialized()
    count = dist.get_world_size() if initialized else 1
    if count == policy.gpu_count:
        return
    found = f"torch.distributed has {count} processes" if initialized else "torch.distributed is not initialized"
    if policy.gpu_count == 1:
        raise PolicyError(
            f"A policy for one GPU must be applied in one process, but {found}: each would train a model of its own. "
            f"Start one process, or tune for {count} GPUs."
        )
    raise PolicyError(
        f"A policy for {policy.gpu_count} GPUs must be applied in {policy.gpu_count} processes, but {found}. "
        f"Start them with `torchrun --nproc-per-node {policy.gpu_count} train.py`, and call "
        "`torch.distributed.init_process_group()` in train.py before the policy is applied."
    )
