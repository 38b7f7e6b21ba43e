"""Models, batches and single-process runs that the ranks and the tests that judge them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from advisor.goal import Fidelity
from advisor.methods.base import Stage
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import apply_settings, conflict_between, fidelity_of, settings_of
from advisor.methods.setting import MethodSetting, use
from advisor.training.processes.world import World
from advisor.training.training import Training
from tests.contract.expected import expected
from tests.methods.tiny import adamw, gpt2, text

STEPS = 3

FEWER_STEPS = 2
"""Where many cases are gone through: the second goes on from the momentum and the state that the first left."""

DDP, STATIC = (use("ddp", bucket_views=True, static_graph=static) for static in (False, True))
ZERO_1 = use("zero_1")
MODEL_CHANGING = (
    use("lora", rank=8),
    use("momentum_residual", momentum=0.9),
    use("qlora", rank=8),
    use("sparse_reparameterization", nonzero=0.3),
)
ZERO_3, ZERO_2 = (use("fsdp", reshard=reshard, mixed_precision="none", offload=False) for reshard in (True, False))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """No division by the size of a gradient, which would blow up rounding errors of the small ones."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.01)


def two_groups(parameters: Any) -> torch.optim.Optimizer:
    listed = list(parameters)
    return torch.optim.AdamW(
        [
            {"params": [p for p in listed if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in listed if p.dim() < 2], "weight_decay": 0.0, "lr": 5e-4},
        ],
        lr=1e-3,
        eps=1e-4,
    )


def transformer() -> nn.Module:
    return gpt2(3, dropout=0.0)


def padded_text(seed: int) -> dict[str, torch.Tensor]:
    """Eight samples, half of a rank's almost without targets, so that a mean of means would be far off."""
    batch = text(8, 32, seed=seed)
    for sample, length in enumerate((32, 3, 9, 32, 2, 17, 5, 3)):
        batch["labels"][sample, length:] = -100
    return batch


class Branching(nn.Module):
    """Three blocks of odd sizes, and branches of which some take no part."""

    def __init__(self, takes_part: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 7)) for _ in range(3))
        self.never = nn.Linear(7, 7)
        self.sometimes = nn.Linear(7, 7)
        self.takes_part = takes_part

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = inputs + block(inputs)
        if self.takes_part():
            inputs = self.sometimes(inputs)
        return inputs.square().mean()


class Choosing(Branching):
    """Two branches of the same size, as experts are, of which a pass takes one."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            inputs = inputs + block(inputs)
        return (self.sometimes if self.takes_part() else self.never)(inputs).square().mean()


class Convolving(nn.Module):
    """Convolutions without normalization, which would look at a process's share alone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Conv2d(4, 6, 3))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return (self.layers(inputs) - 1).square().mean()


def pictures(seed: int) -> tuple[torch.Tensor]:
    return (torch.randn(8, 3, 9, 9, generator=torch.Generator().manual_seed(seed)),)


class Late(nn.Module):
    """Layers of the same size, of which some take part later than others."""

    def __init__(self, takes_part: Callable[[], bool]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(7, 7, bias=False) for _ in range(8))
        self.takes_part = takes_part

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for layer in self.layers if self.takes_part() else self.layers[:4]:
            inputs = layer(inputs)
        return (inputs - 1).square().mean()


def vectors(seed: int) -> tuple[torch.Tensor]:
    return (torch.randn(8, 7, generator=torch.Generator().manual_seed(seed)),)


@dataclass(frozen=True)
class Case:
    """A training whose parameters after some steps are compared with those of a single process.

    Attributes:
        settings: Its methods; the single process uses those that do not need several.
        micro_batch: Of every process, the single one included.
        clip: Largest norm of the gradients.
        tolerance: Largest error of how far the parameters moved, relative to that.
        build_optimizer: Builds the optimizer.
    """

    settings: tuple[MethodSetting, ...]
    micro_batch: int | None = None
    clip: float | None = None
    tolerance: float = 1e-4
    build_optimizer: Callable[..., torch.optim.Optimizer] = sgd

    @property
    def name(self) -> str:
        clipped = "" if self.clip is None else ", clipped"
        return f"{' + '.join(each.label for each in self.settings)}, micro_batch={self.micro_batch}{clipped}"

    @property
    def single(self) -> tuple[MethodSetting, ...]:
        return tuple(each for each in self.settings if not _for_several(each))


def _for_several(each: MethodSetting) -> bool:
    method = get_method(each.name)
    return method.distributes or bool(method.builds_on)


def _cases() -> list[Case]:
    cases = []
    for name in ("ddp", "zero_1", "fsdp"):
        for setting in settings_of(get_method(name)):
            if setting.parameters.get("offload"):
                continue
            tolerance = 0.05 if setting.parameters.get("mixed_precision") == "bf16" else 1e-4
            cases += [
                Case((setting,), tolerance=tolerance),
                Case((setting,), micro_batch=2, clip=0.1, tolerance=tolerance),
                Case((setting,), micro_batch=1, tolerance=tolerance),
            ]
    chunked = use("chunked_cross_entropy", chunks=8)
    # A graph that may change asks less of a method than one that may not, and ZeRO-1 averages gradients as ddp does.
    for setting in (STATIC, ZERO_3):
        cases += [
            Case((use("checkpoint", every=1), setting), micro_batch=2),
            Case((use("checkpoint", every=2), setting), micro_batch=2),
            Case((use("selective_checkpoint", recompute="attention"), setting), micro_batch=2),
            Case((use("selective_checkpoint", recompute="elementwise"), setting), micro_batch=2),
            Case((chunked, setting), micro_batch=2),
            Case((use("precision", dtype="bf16"), setting), micro_batch=2, tolerance=0.01),
            Case((use("precision", dtype="fp16"), setting), micro_batch=2, tolerance=0.01),
            Case((use("checkpoint", every=1), chunked, setting), micro_batch=2, clip=0.1),
            # An input that rounding moves over a boundary has another level.
            Case((use("few_bit_activation", bits=2), setting), micro_batch=2, tolerance=1e-3),
        ]
    for changed in MODEL_CHANGING:
        cases += [
            Case((DDP, changed), micro_batch=2, clip=0.1),
            Case((changed, ZERO_1), micro_batch=2),
        ]
    for setting in (STATIC, DDP):  # What clips by itself hears from both when gradients are there.
        cases += [
            Case((use("pure_bf16", rounding="stochastic"), setting), micro_batch=2, clip=0.5, tolerance=0.05),
            Case((use("half_weights", rounding="nearest"), setting), micro_batch=2, clip=0.1, tolerance=0.01),
        ]
    normalization = use("selective_checkpoint", recompute="normalization")
    recomputing = (
        use("residual_checkpoint", blocks=2, inside="inputs"),
        use("optimal_checkpoint", budget=0.4),
        normalization,
    )
    # Segments of several blocks and fsdp cannot be combined.
    cases += [Case((each, STATIC), micro_batch=2) for each in recomputing]
    cases += [
        Case((DDP, use("swap", min_bytes=2**20)), micro_batch=2),
        Case((use("fused_optimizer"), ZERO_3), micro_batch=2, clip=0.1, build_optimizer=two_groups),
        Case((use("muon"), DDP), micro_batch=2, clip=0.1, tolerance=0.01, build_optimizer=two_groups),
        Case((use("adafactor"), DDP), micro_batch=2, clip=0.1, build_optimizer=two_groups),
        Case((use("adafactor"), ZERO_1), micro_batch=2, clip=0.1, build_optimizer=two_groups),
        Case((use("adam_low_bit", state="8bit"), DDP), micro_batch=2, clip=0.1, tolerance=0.3, build_optimizer=adamw),
        Case((DDP, use("overlapped_swap", min_bytes=2**20, ahead=0.1)), micro_batch=2),
        Case((DDP, use("fp8_activations", format="e4m3")), micro_batch=2, tolerance=0.1),
        Case((use("adam_8bit"), DDP), micro_batch=2, tolerance=0.3, build_optimizer=adamw),
        Case((DDP, use("gradient_compression", hook="fp16")), micro_batch=2, tolerance=0.01),
        Case((use("gradient_compression", hook="fp16"), ZERO_1), micro_batch=2, tolerance=0.01),
    ]
    return cases


_TOLERANCES = {
    Fidelity.EXACT: 1e-4,
    Fidelity.ROUNDING: 1e-3,
    Fidelity.PRECISION: 0.05,
    Fidelity.LOSSY: 0.6,  # Both sides lose: what is compared are two trainings that lost other things.
    Fidelity.MODEL: 0.1,  # Another optimizer; one that takes signs or norms makes much of a rounding error.
}
"""Of how far parameters moved."""


def _over_the_catalogue() -> list[Case]:
    """Every method for one device on top of each way to distribute with which it declares no conflict."""
    cases = []
    for method in CATALOGUE:
        if method.distributes or method.builds_on or method.one_device_only:
            continue
        able = [each for each in settings_of(method) if "gpt2" not in expected(each).refused]
        # Another optimizer is the same on several devices as on one; what else is learned is another matter.
        if not able or (fidelity_of(able[0]) is Fidelity.MODEL and method.stage is not Stage.OPTIMIZER):
            continue
        # ZeRO-1 averages gradients as ddp does; what it does itself is for the optimizer.
        for way in (DDP, ZERO_1, ZERO_3) if method.stage is Stage.OPTIMIZER else (DDP, ZERO_3):
            pair = tuple(sorted((able[0], way), key=lambda each: each.name))
            if conflict_between(pair) is None:
                adam = method.stage is Stage.OPTIMIZER
                cases.append(
                    Case(
                        pair,
                        micro_batch=4 if not method.accumulates else 2,
                        tolerance=1.0 if method.random_gradients else _TOLERANCES[fidelity_of(able[0])],
                        build_optimizer=adamw if adam else sgd,
                    )
                )
    return cases


def _once() -> dict[str, Case]:
    """Of cases that differ only in the order of their methods, which does not matter, the one with less tolerance."""
    cases: dict[tuple[object, ...], Case] = {}
    for case in (*_over_the_catalogue(), *_cases()):
        key = (frozenset(each.label for each in case.settings), case.micro_batch, case.clip, case.build_optimizer)
        if key not in cases or case.tolerance < cases[key].tolerance:
            cases[key] = case
    return {case.name: case for case in cases.values()}


CASES = _once()


def trained(
    case: Case,
    world: World | None,
    share: Callable[[Any], Any] = lambda batch: batch,
    *,
    build: Callable[[], nn.Module] = transformer,
    data: Callable[[int], Any] = padded_text,
    steps: int = STEPS,
) -> tuple[dict[str, Any], list[float]]:
    """State and losses of a case after some steps, in one process or as a rank of several."""
    training = started(case.settings if world else case.single, world, case, build=build)
    losses = [float(training.step(share(data(step)))) for step in range(steps)]
    state = training.state_dict()
    training.close()
    return state, losses


def started(
    settings: Sequence[MethodSetting],
    world: World | None,
    case: Case | None = None,
    *,
    build: Callable[[], nn.Module] = transformer,
    **options: Any,
) -> Training:
    """A training to which methods were applied, on a model that is another one in every rank but the first."""
    model = build()
    if world is not None and world.rank:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
    known: dict[str, Any] = {"build_optimizer": sgd}
    if case is not None:
        known = {"build_optimizer": case.build_optimizer, "micro_batch": case.micro_batch, "max_grad_norm": case.clip}
    training = Training(model, world=world, **(known | options))
    apply_settings(training, settings)
    return training


def movement_error(measured: dict[str, torch.Tensor], plain: dict[str, torch.Tensor], start: nn.Module) -> float:
    """Error of how far parameters moved, relative to it: compared whole, one that stood still would look right."""
    begin = start.state_dict()
    wrong = sum(float((measured[name].double() - plain[name].double()).square().sum()) for name in plain)
    moved = sum(float((plain[name].double() - begin[name].double()).square().sum()) for name in plain)
    return (wrong / moved) ** 0.5
