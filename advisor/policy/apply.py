"""Apply a policy to a model: the same code in trials, in the emitted wrapper and in the user's own training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from advisor.errors import PolicyError
from advisor.methods.compose import apply_uses, validate_use
from advisor.policy.file import load_policy_file
from advisor.policy.policy import Policy

if TYPE_CHECKING:
    import torch

    from advisor.methods.training import Training

__all__ = ["HasPolicy", "apply_policy"]


class HasPolicy(Protocol):
    """Something that carries a policy, such as the answer of a tuning."""

    @property
    def policy(self) -> Policy:
        """The policy."""


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
) -> Training:
    """Make a training out of a model: the same code that the trials ran.

    Args:
        policy: What to apply: a policy, an answer of ``advisor.tune``, or the path of a policy file.
        model: The model; it is moved to ``device`` and changed in place.
        device: Where to train; by default the first CUDA device if there is one, else the CPU.
        compute_loss: ``(model, batch) -> scalar``; by default the loss that the model itself returns.
        build_optimizer: ``(parameters) -> optimizer``; by default AdamW.
        count_targets: ``(batch) -> number`` of targets that the loss averages over, the weight of a micro-batch; by
            default labels that are not -100, or samples.
        linear_head: ``(model, batch) -> (hidden, weight, bias or None, targets)`` for losses computed in chunks.
        max_grad_norm: Clip the gradient's norm to this before every optimizer step.
        blocks: Classes of the repeated blocks, when they cannot be found.

    Returns:
        The training: ``training.step(batch)``, or ``forward``, ``backward`` and ``optimizer_step``.

    Raises:
        PolicyError: The file cannot be read, the policy asks for several GPUs, or it names a method or value that
            does not exist.
        MethodRefusedError: A method cannot apply to this model.
    """
    # Imported here: the parent process builds and writes policies without ever loading torch.
    import torch

    from advisor.methods.training import Training
    from advisor.methods.world import current_world

    if isinstance(policy, str | os.PathLike):
        policy = load_policy_file(policy).policy
    elif not isinstance(policy, Policy):
        policy = policy.policy
    if policy.gpu_count not in (1, current_world().size):
        raise PolicyError(
            f"gpu_count must be the number of processes that train together, but gpu_count={policy.gpu_count} and "
            f"there are {current_world().size}; start them with torchrun, and initialize torch.distributed first"
        )
    for use in policy.methods:
        validate_use(use)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    training = Training(
        model,
        device=device,
        compute_loss=compute_loss,
        build_optimizer=build_optimizer,
        count_targets=count_targets,
        linear_head=linear_head,
        max_grad_norm=max_grad_norm,
        blocks=blocks,
        micro_batch=policy.micro_batch,
    )
    try:
        apply_uses(training, policy.methods)
    except BaseException:
        training.close()
        raise
    return training
