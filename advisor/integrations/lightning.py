"""Train a LightningModule under a policy: strategies for Lightning's Trainer, on one device and on several."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

from advisor.errors import PolicyError
from advisor.integrations.lightning_strategy import UnderPolicy
from advisor.policy.apply import HasPolicy
from advisor.policy.policy import Policy

__all__ = ["ParallelPolicyStrategy", "PolicyStrategy"]


class PolicyStrategy(UnderPolicy, SingleDeviceStrategy):  # type: ignore[misc]
    """Trains under a policy on one device: ``Trainer(strategy=PolicyStrategy("policy.yaml"), devices=1)``.

    A batch of the ``DataLoader`` is one optimizer step's (or one of ``accumulate_grad_batches`` for it): the strategy
    splits it into the policy's micro-batches and calls ``training_step`` for each, with the weights that make their
    gradients those of the whole batch. ``batch_size`` of the data module or the module is set to what the policy needs;
    a ``DataLoader`` that was passed to ``fit`` must have it already. Clipping is the Trainer's
    (``gradient_clip_val``); number formats are the policy's. What is saved is the state of a plain module. Each ``fit``
    needs a strategy and a module that had no policy before.

    Args:
        policy: A policy, an answer of ``advisor.tune``, or the path of a policy file.
        untested: Accept versions of Lightning that this was not tested with.
        options: Of :func:`advisor.apply_policy`: ``count_targets``, ``linear_head``, ``blocks``, ``sample_dims``,
            ``reduction``, ``example_batch``. A module's own ``linear_head(batch)`` and ``count_targets(batch)`` are
            taken as well. With a loss that is computed in chunks, ``training_step`` is not called.

    Raises:
        PolicyError: The policy cannot be read or is for several devices, or the version of Lightning is not known.
        MethodRefusedError: (in ``fit``) A method cannot apply to the module or beside what the Trainer does itself.
        WorkloadError: (in ``fit``) The first batch has another size than the policy's.
    """

    strategy_name = "momadvise"

    def __init__(
        self, policy: Policy | HasPolicy | str | os.PathLike[str], *, untested: bool = False, **options: Any
    ) -> None:
        super().__init__(policy, untested=untested, **options)
        self._devices: list[torch.device] | None = None
        count = self._policy.gpu_count
        if count != 1:
            raise PolicyError(
                f"PolicyStrategy trains on one device, but the policy is for {count}. Give the Trainer "
                f"strategy=ParallelPolicyStrategy(policy) and devices={count}, or tune with gpus=1."
            )

    # What Lightning's connector hands over, once.

    @property
    def parallel_devices(self) -> list[torch.device] | None:
        """The devices that the Trainer was asked for: one."""
        return self._devices

    @parallel_devices.setter
    def parallel_devices(self, devices: list[torch.device]) -> None:
        if len(devices) != 1:
            raise PolicyError(
                f"A policy for one device must be used on one, but the Trainer has {len(devices)}. "
                "Give it devices=1, or tune for several devices and use ParallelPolicyStrategy."
            )
        self._devices = devices
        self._root_device = torch.device(devices[0])


class ParallelPolicyStrategy(UnderPolicy, DDPStrategy):  # type: ignore[misc]
    """Trains under a policy for several devices: ``Trainer(strategy=ParallelPolicyStrategy(policy), devices=2)``.

    As :class:`PolicyStrategy`, with a process for each device, which Lightning or torchrun starts. What divides the
    training is the policy's method (``ddp``, ``zero_1``, ``fsdp``); nothing is wrapped by Lightning. A batch of the
    ``DataLoader`` is a process's share of a step; Lightning's own sampler gives each process other samples. Validation,
    test and prediction steps may call the module also where its parameters are sharded.

    Args:
        policy: A policy, an answer of ``advisor.tune``, or the path of a policy file.
        untested: Accept versions of Lightning that this was not tested with.
        options: Of :func:`advisor.apply_policy`, as for :class:`PolicyStrategy`.

    Raises:
        PolicyError: The policy cannot be read or is for one device, the version of Lightning is not known, or (in the
            Trainer) there is another number of devices.
        MethodRefusedError: A method cannot be used in Lightning; or, in ``fit``, cannot apply to the module or beside
            what the Trainer does itself.
        WorkloadError: (in ``fit``) The first batch has another size than the policy's.
    """

    strategy_name = "momadvise_parallel"

    def __init__(
        self, policy: Policy | HasPolicy | str | os.PathLike[str], *, untested: bool = False, **options: Any
    ) -> None:
        super().__init__(policy, untested=untested, **options)
        if self._policy.gpu_count == 1:
            raise PolicyError(
                "ParallelPolicyStrategy trains on several devices, but the policy is for 1. Give the Trainer "
                "strategy=PolicyStrategy(policy) and devices=1, or tune for several devices (gpus=2)."
            )

    def _configure_launcher(self) -> None:
        """Refuse another number of processes before any of them is started."""
        wanted, found = self._policy.gpu_count, self.num_processes * self.num_nodes
        if found != wanted:
            raise PolicyError(
                f"A policy for {wanted} devices must be used by as many processes, but the Trainer has {found} "
                f"(devices x num_nodes). Give it devices={wanted}, or tune for {found}."
            )
        super()._configure_launcher()

    def configure_ddp(self) -> None:
        """Wrap nothing: the policy's method takes the place of Lightning's wrapper."""

    def _check_trainer(self, trainer: Trainer, module: LightningModule) -> None:
        super()._check_trainer(trainer, module)
        if self._layer_sync is not None:
            raise PolicyError(
                "Layers must stay what was measured, but the Trainer has sync_batchnorm=True, which replaces them. Set "
                "sync_batchnorm=False in the Trainer."
            )

    @contextlib.contextmanager
    def block_backward_sync(self) -> Generator[None, None, None]:
        """For a batch of ``accumulate_grad_batches`` that others follow."""
        with self.training.accumulating():
            yield

    def validation_step(self, *arguments: Any, **keywords: Any) -> Any:
        """The module's step, with all of its parameters."""
        return self._called(super().validation_step, arguments, keywords)

    def test_step(self, *arguments: Any, **keywords: Any) -> Any:
        """The module's step, with all of its parameters."""
        return self._called(super().test_step, arguments, keywords)

    def predict_step(self, *arguments: Any, **keywords: Any) -> Any:
        """The module's step, with all of its parameters."""
        return self._called(super().predict_step, arguments, keywords)

    def _called(self, step: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if self._training is None:
            return step(*arguments, **keywords)
        # What is gathered is used by the next step of training, too, whereas Lightning evaluates in inference mode.
        with torch.inference_mode(False), torch.no_grad():
            return self.training.distribution.call(self.training.model, lambda _: step(*arguments, **keywords))
