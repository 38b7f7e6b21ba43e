"""What one or two optimizer steps did, seen from outside the method under test."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from advisor.measure.batches.batches import seed_everything
from advisor.measure.memory.storages import bytes_of
from advisor.methods.activations._host_copies import HostCopy
from advisor.methods.catalogue import get_method
from advisor.methods.compose import apply_settings
from advisor.methods.formats._loss_scaling import HalfLossScaler
from advisor.methods.setting import MethodSetting
from advisor.training.optimizer.device_parameter import device_parameter
from advisor.training.structure import parameter_bytes
from advisor.training.training import Training
from tests.contract.expected import Expected, expected
from tests.methods.tiny import images, text, training_of

STEPS = 2

CUTS_THE_CHAIN = {"checkpoint", "residual_checkpoint", "sqrt_checkpoint", "recursive_checkpoint", "optimal_checkpoint"}
"""Methods that do something else with four blocks than with two."""


@dataclass
class Observation:
    """What a training did in :data:`STEPS` optimizer steps."""

    losses: list[torch.Tensor] = field(default_factory=list)
    gradients: list[dict[str, torch.Tensor]] = field(default_factory=list)
    updates: dict[str, torch.Tensor] = field(default_factory=dict)
    """How far each parameter moved: compared with whole parameters, an optimizer that never steps looks right."""
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    held_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    parameter_bytes: int = 0
    notes: list[str] = field(default_factory=list)


class LiveBytes(TorchDispatchMode):
    """Bytes of the storages made under it that still exist, wherever they are held."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, tuple[StorageWeakRef, int]] = {}
        self._on_host: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self._seen[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        return out

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let ``torch.compile`` compile below this mode, instead of skipping what it meets here for good."""
        return True

    def exclude(self, tensor: torch.Tensor) -> None:
        self._on_host.add(tensor.untyped_storage()._cdata)

    def live(self) -> int:
        return sum(size for key, (ref, size) in self._seen.items() if key not in self._on_host and not ref.expired())


def dropout_for(settings: Sequence[MethodSetting]) -> float:
    """The probability of dropout with which methods can be compared with plain training."""
    return 0.0 if any(get_method(setting.name).other_masks for setting in settings) else 0.1


def layers_for(settings: Sequence[MethodSetting]) -> int:
    """Of the transformer, where many cases are gone through: with two it takes half the time."""
    return 4 if CUTS_THE_CHAIN & {setting.name for setting in settings} else 2


def training_for(model: str, settings: Sequence[MethodSetting], **options: Any) -> Training:
    """A training in which methods can be compared with plain training; they are not yet applied."""
    return training_of(model, **{"dropout": dropout_for(settings), **options})


def samples_for(settings: Sequence[MethodSetting]) -> int:
    """The number of samples in a batch with which each of the methods has something to do."""
    return max((expected(setting).samples for setting in settings), default=Expected.samples)


def batch_for(model: str, samples: int, seed: int) -> Any:
    """A batch; few samples are small ones too: emulated in 16 bits, convolutions take long."""
    few = samples == Expected.samples
    return (
        images(samples, seed, side=24 if few else 32) if model == "convnet" else text(samples, 32 if few else 64, seed)
    )


def observe(
    model: str,
    settings: Sequence[MethodSetting],
    monkeypatch: Any,
    *,
    weighed: bool = True,
    samples: int = Expected.samples,
    **options: Any,
) -> Observation:
    """Apply methods to a fresh model and take :data:`STEPS` steps with fixed random numbers.

    Args:
        model: Name of the model.
        settings: The methods.
        monkeypatch: pytest's.
        weighed: Whether to see which bytes are held after a forward pass, which takes time.
        samples: In a batch; see :func:`samples_for`.
        options: Of the training.

    Raises:
        MethodRefusedError: A method does not apply.
    """
    training = training_for(model, settings, **options)
    before = {name: parameter.detach().clone() for name, parameter in training.model.named_parameters()}
    apply_settings(training, settings)
    seen = Observation(notes=training.notes)
    try:
        _watch_steps(training, model, seen, monkeypatch, samples=samples, weighed=weighed)
    finally:
        training.close()
    seen.updates = {name: seen.state[name] - value for name, value in before.items()}
    return seen


def _watch_steps(
    training: Training, model: str, seen: Observation, monkeypatch: Any, *, samples: int, weighed: bool
) -> None:
    names = {id(p): name.replace("_checkpoint_wrapped_module.", "") for name, p in training.model.named_parameters()}
    current: dict[str, torch.Tensor] = {}

    def keep(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if getattr(optimizer, "found_inf", None):  # Under float16 a fused optimizer looks for overflow itself ...
            return
        grad_scale = getattr(optimizer, "grad_scale", None)  # ... and gets the gradients as they are.
        scale = _left_scaled(training) if grad_scale is None else grad_scale
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    on_device = device_parameter(parameter)
                    gradient = parameter.grad.to(on_device.device).float()
                    current[names[id(on_device)]] = gradient / scale

    training.optimizer.register_step_pre_hook(keep)
    live = LiveBytes()
    plain_init = HostCopy.__init__

    def init(self: HostCopy, flat: torch.Tensor) -> None:
        plain_init(self, flat)
        live.exclude(self.host)  # On a CPU the host copies would count as device memory.

    with monkeypatch.context() as patch:
        patch.setattr(HostCopy, "__init__", init)
        for step in range(STEPS):
            current = {}
            for _ in range(10):  # Under float16, steps are skipped until the scale is found.
                seed_everything(step)
                with live if weighed else contextlib.nullcontext():
                    loss = training.forward(batch_for(model, samples, seed=step))
                seen.held_bytes = live.live()
                training.backward(loss)
                live = LiveBytes()
                seen.gradient_bytes = sum(_bytes(p.grad) for p in training.model.parameters() if p.grad is not None)
                training.optimizer_step()
                if current:
                    break
            seen.losses.append(loss.detach())
            seen.gradients.append(current)
    seen.optimizer_bytes = _state_bytes_on_device(training)
    seen.parameter_bytes = parameter_bytes(training.model)
    seen.state = {name: tensor.clone() for name, tensor in training.state_dict()["model"].items()}


def _left_scaled(training: Training) -> float:
    """What gradients are still multiplied by when the optimizer steps: float16 could not hold their true values."""
    scaler = training.gradient_scaler
    return scaler.get_scale() if isinstance(scaler, HalfLossScaler) else 1.0


def _state_bytes_on_device(training: Training) -> int:
    """Without the state of parameters that stand for others on the device: that is on the host, also on a CPU."""
    states = training.optimizer.state
    return bytes_of([dict(states[p]) for p in states if device_parameter(p) is p], training.device)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of tensors have the same names and the same bits."""
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def relative_error(measured: dict[str, torch.Tensor], plain: dict[str, torch.Tensor]) -> float:
    """Norm of the difference of two gradient vectors, relative to the second."""
    assert measured.keys() == plain.keys()
    difference = sum(float((measured[name].double() - plain[name].double()).square().sum()) for name in plain)
    return (difference / sum(float(tensor.double().square().sum()) for tensor in plain.values())) ** 0.5
