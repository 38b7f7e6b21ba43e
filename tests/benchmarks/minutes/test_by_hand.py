"""Hand-written loops train what the user's file trains, or say why a setting does not apply."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks.minutes import by_hand
from benchmarks.minutes.by_hand import Loop, NotApplicableError, executable_loop
from benchmarks.minutes.settings import FIRST_EXECUTABLE_BATCH, REFERENCE_SET, UNTOUCHED, Setting

CPU = torch.device("cpu")
ROOT = Path(__file__).resolve().parents[3]


def users_file(**names: Any) -> ModuleType:
    """A linear regression of four numbers."""
    module = ModuleType("users_file")
    module.build_model = lambda: torch.nn.Linear(4, 1)  # type: ignore[attr-defined]
    module.make_batch = lambda batch_size: {"inputs": torch.ones(batch_size, 4)}  # type: ignore[attr-defined]
    module.compute_loss = lambda model, batch: (model(batch["inputs"]) ** 2).mean()  # type: ignore[attr-defined]
    for name, value in names.items():
        setattr(module, name, value)
    return module


def losses(setting: Setting, module: ModuleType) -> list[float]:
    torch.manual_seed(0)
    loop = Loop(module, setting, 2, CPU)
    return [float(loop.step(module.make_batch(2))) for _ in range(4)]


def test_a_fused_optimizer_takes_the_same_steps_as_the_users() -> None:
    module = users_file(build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.5))
    assert losses(Setting(name="fused", fused=True), module) == pytest.approx(losses(UNTOUCHED, module))


def test_hand_written_loops_clip_gradients_too() -> None:
    def optimizer(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.05)

    free, clipped = (
        losses(UNTOUCHED, users_file(build_optimizer=optimizer, MAX_GRAD_NORM=norm)) for norm in (None, 1e-3)
    )
    assert clipped[0] == free[0]
    assert clipped[-1] > free[-1], "it has hardly moved"


@pytest.mark.parametrize("batch", [{"images": torch.ones(2, 4)}, (torch.ones(2, 4),), torch.ones(2, 4)])
def test_a_model_that_returns_its_loss_is_called_according_to_the_batch_type(batch: Any) -> None:
    class Model(torch.nn.Linear):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images).mean()

    module = users_file(build_model=lambda: Model(4, 1))
    del module.compute_loss
    assert Loop(module, UNTOUCHED, 2, CPU).step(batch).dim() == 0


def test_channels_last_needs_a_convolution_of_images() -> None:
    setting = Setting(name="channels last", channels_last=True)
    with pytest.raises(NotApplicableError, match="no convolution"):
        Loop(users_file(), setting, 2, CPU)
    seen: list[bool] = []

    def compute_loss(model: Any, batch: torch.Tensor) -> torch.Tensor:
        seen.append(batch.is_contiguous(memory_format=torch.channels_last))
        return model(batch).mean()

    module = users_file(build_model=lambda: torch.nn.Conv2d(3, 4, 3), compute_loss=compute_loss)
    Loop(module, setting, 2, CPU).step(torch.randn(2, 3, 8, 8))
    assert seen == [True]


def test_a_custom_optimizer_has_no_fused_form() -> None:
    class Own(torch.optim.SGD):
        pass

    with pytest.raises(NotApplicableError, match="Own has no fused form"):
        Loop(users_file(build_optimizer=lambda parameters: Own(parameters)), Setting(name="f", fused=True), 2, CPU)


def test_bf16_does_not_apply_where_it_is_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {torch.float32: 1.0, torch.bfloat16: 4.0}
    monkeypatch.setattr(by_hand, "_matmul_seconds", seconds.__getitem__)
    setting = Setting(name="bf16", bf16=True)
    with pytest.raises(NotApplicableError, match=r"not native: .* at 0\.25 times the rate"):
        Loop(users_file(), setting, 2, CPU)
    seconds[torch.bfloat16] = 0.5
    assert Loop(users_file(), setting, 2, CPU).step({"inputs": torch.ones(2, 4)}).isfinite()


def test_accelerates_batch_is_its_first_one_unless_memory_runs_out() -> None:
    pytest.importorskip("accelerate")
    setting = REFERENCE_SET[-1]
    assert executable_loop(users_file(), setting, CPU).batch == FIRST_EXECUTABLE_BATCH

    def make_batch(batch_size: int) -> dict[str, torch.Tensor]:
        if batch_size > 100:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.")
        return {"inputs": torch.ones(batch_size, 4)}

    assert executable_loop(users_file(make_batch=make_batch), setting, CPU).batch < 100


def test_hand_written_loops_never_import_momadvise() -> None:
    code = "import sys, benchmarks.minutes.arm; sys.exit('advisor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
