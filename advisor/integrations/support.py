"""Which method works in which trainer, and why not: what the adapters consult, and the page on trainers shows."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from advisor.errors import MethodRefusedError
from advisor.hardware.mesh import MeshAxis
from advisor.methods.base import Method, Stage
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.setting import MethodSetting

__all__ = [
    "ACCELERATE",
    "HF",
    "LIGHTNING",
    "SFT",
    "TRAINERS",
    "Trainer",
    "outcomes",
    "require_supported",
    "why_refused",
]


@dataclasses.dataclass(frozen=True)
class Trainer:
    """Somebody else's training loop.

    Attributes:
        name: As people say it.
        library: The distribution that has it.
        tested: Minor versions of the library that the adapter was tested with.
        call: The call that applies a policy in it.
        call_for_several: The call that applies a policy for several devices, if it is another one.
        own_loss: Whether it computes the loss of a language model itself, in a function that no method can replace.
    """

    name: str
    library: str
    tested: tuple[str, ...]
    call: str
    call_for_several: str = ""
    own_loss: bool = False


HF = Trainer("transformers.Trainer", "transformers", ("5.23",), "advisor.integrations.hf.attach(trainer, policy)")
SFT = dataclasses.replace(HF, name="trl.SFTTrainer", library="trl", tested=("1.16",), own_loss=True)
ACCELERATE = Trainer(
    "an accelerate loop",
    "accelerate",
    ("1.15",),
    "advisor.integrations.accelerate.prepare(model, policy, accelerator=accelerator)",
)
LIGHTNING = Trainer(
    "lightning.Trainer",
    "lightning",
    ("2.6",),
    "lightning.pytorch.Trainer(strategy=advisor.integrations.lightning.PolicyStrategy(policy), devices=1)",
    "lightning.pytorch.Trainer(strategy=advisor.integrations.lightning.ParallelPolicyStrategy(policy), devices=2)",
)
TRAINERS = (HF, SFT, ACCELERATE, LIGHTNING)


def why_refused(method: Method, trainer: Trainer) -> str:
    """Why a method cannot be used in a trainer, with the fix; empty if its adapter applies it."""
    if method.axis not in (None, MeshAxis.DATA):
        return (
            f"processes that hold one model must be given the same samples, but {trainer.name} gives each process "
            "samples of its own; train with the policy's wrapper.py, or use a policy that divides only the batch"
        )
    if trainer.own_loss and method.stage is Stage.LOSS:
        return (
            f"it replaces the loss, but {trainer.name} computes a loss of its own; leave the method out, or use "
            f"{HF.name}"
        )
    return ""


def outcomes(trainers: Iterable[Trainer] = TRAINERS) -> dict[tuple[str, str], str]:
    """(name of a method, name of a trainer) -> why it is refused there; empty where the adapter applies it."""
    return {(method.name, trainer.name): why_refused(method, trainer) for trainer in trainers for method in CATALOGUE}


def require_supported(settings: Iterable[MethodSetting], trainer: Trainer) -> None:
    """Refuse a policy with a method that cannot be used in a trainer.

    Raises:
        MethodRefusedError: There is one; the message has the method, the trainer and the fix.
    """
    for setting in settings:
        if reason := why_refused(get_method(setting.name), trainer):
            raise MethodRefusedError(f"{setting.words} cannot be used in {trainer.name}: {reason}")
