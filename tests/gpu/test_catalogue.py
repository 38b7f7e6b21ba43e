"""Every method of the catalogue, applied once on a device: the step runs, and takes less of what it says it saves."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.hardware.detect import detect_hardware
from advisor.hardware.mesh import MeshAxis
from advisor.measure.measurement import MemoryBreakdown, MemoryMeasurement
from advisor.measure.memory.cuda import CudaMemory
from advisor.methods.base import Method, Saves
from advisor.methods.catalogue import CATALOGUE
from advisor.methods.compose import apply_settings, judge, settings_of
from advisor.methods.setting import MethodSetting, use
from advisor.policy.policy import Policy
from advisor.trial.outcome import Outcome
from advisor.trial.process.runner import Runner
from advisor.trial.spec import SizeTrial
from tests.contract.expected import expected
from tests.gpu.conftest import skip_unless_triton_runs
from tests.gpu.test_methods import COMPILED, OF_THE_HOST, ONLY_A_GPU, SAMPLES
from tests.gpu.unruly import Unruly
from tests.methods.tiny import MODELS, images, import_bitsandbytes, import_torchao, text, training_of

# Not marked slow: files that are go first, and see that no process is left; those of Inductor's compiler stay.
pytestmark = [pytest.mark.gpu, pytest.mark.memory_only, pytest.mark.filterwarnings("default")]

GIB = 2**30
DDP = use("ddp", bucket_views=True, static_graph=False)

FIGURE: dict[Saves, Callable[[MemoryMeasurement], int]] = {
    Saves.PARAMETERS: lambda memory: memory.breakdown.parameters,
    Saves.GRADIENTS: lambda memory: memory.breakdown.gradients,
    Saves.OPTIMIZER_STATE: lambda memory: memory.breakdown.optimizer_state,
    Saves.ACTIVATIONS: lambda memory: memory.breakdown.activations,
    Saves.LOGITS: lambda memory: memory.peak_allocated_bytes,
}

ALONE = [method for method in CATALOGUE if not (method.distributes or method.builds_on)]
TOGETHER = [method for method in CATALOGUE if method.axis is MeshAxis.DATA or method.builds_on]
"""What divides the model (tensor_parallel, pipeline) is tested on CPU ranks alone so far."""
ON_ONE_GPU = [method for method in ALONE if method.name not in OF_THE_HOST]

over = {
    name: pytest.mark.parametrize("method", methods, ids=lambda method: method.name)
    for name, methods in (("all", CATALOGUE), ("on one", ON_ONE_GPU), ("together", TOGETHER))
}


def told_on(method: Method) -> tuple[str, MethodSetting]:
    """The first model and setting with which a method has something to do."""
    cases = [
        (model, setting)
        for setting in settings_of(method)
        for model in MODELS
        if expected(setting).refused.get(model) in (None, *ONLY_A_GPU)
    ]
    assert cases, f"{method.name} must work with one of the models"
    return next((case for case in cases if case[0] not in expected(case[1]).no_effect), cases[0])


def measured(model: str, settings: list[MethodSetting], cuda: torch.device) -> MemoryMeasurement:
    """The memory of the step after those in which a method settles."""
    gc.collect()
    training = training_of(model, device=cuda)
    apply_settings(training, settings)
    batch = (images if model == "convnet" else text)(SAMPLES)
    try:
        with CudaMemory(cuda, 8 * GIB) as meter:
            for _ in range(2 + training.settling_steps):
                training.step(batch)
            loss, memory = meter.measured_step(training, batch)
    finally:
        training.close()
    assert loss.device.type == "cuda"
    return memory


@pytest.fixture(scope="module", autouse=True)
def libraries() -> None:
    import_bitsandbytes()
    import_torchao()


@pytest.fixture(scope="module")
def plain(cuda: torch.device) -> dict[str, MemoryMeasurement]:
    return {model: measured(model, [], cuda) for model in MODELS}


@over["on one"]
def test_a_method_takes_less_of_what_it_says_it_saves(
    method: Method, plain: dict[str, MemoryMeasurement], cuda: torch.device
) -> None:
    model, setting = told_on(method)
    if not judge([setting], facts=None, hardware=detect_hardware("cuda")).applicable:
        pytest.skip("this GPU cannot")
    if method.name in COMPILED:
        skip_unless_triton_runs()
    memory = measured(model, [setting], cuda)
    assert memory.peak_reserved_bytes is not None
    assert memory.peak_reserved_bytes >= memory.peak_allocated_bytes > 0
    for category, figure in FIGURE.items():
        if category in method.saves:
            assert figure(memory) < figure(plain[model]), f"{setting.label} says that it saves {category.value}"
    if not method.saves:
        assert memory.peak_allocated_bytes <= 2 * plain[model].peak_allocated_bytes


@over["all"]
def test_what_cannot_be_applied_is_refused_with_its_rule_before_anything_is_run(
    method: Method, cuda: torch.device
) -> None:
    setting, *_ = settings_of(method)
    verdict = judge([setting], facts=None, hardware=detect_hardware("cuda"))
    if method in ON_ONE_GPU and verdict.applicable:
        return
    assert verdict.reason
    if method in ON_ONE_GPU or method.name in OF_THE_HOST:
        with pytest.raises(MethodRefusedError) as refused:
            apply_settings(training_of("gpt2", device=cuda), [setting])
        assert str(refused.value)


@pytest.fixture(scope="module")
def runner(cuda: torch.device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    with Runner(tmp_path_factory.mktemp("study")) as runner:
        yield runner


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="one device")
@over["together"]
def test_a_method_for_several_devices_trains_on_two(method: Method, runner: Runner, tmp_path: Path) -> None:
    setting, *_ = settings_of(method)
    settings = (DDP, setting) if method.builds_on else (setting,)
    memory = held_by_each(settings, runner, tmp_path)
    alike = held_by_each((DDP,), runner, tmp_path)
    if Saves.OPTIMIZER_STATE in method.saves:
        assert memory.optimizer_state < 0.75 * alike.optimizer_state
    if Saves.PARAMETERS in method.saves:
        assert memory.parameters < 0.75 * alike.parameters


def held_by_each(settings: tuple[MethodSetting, ...], runner: Runner, folder: Path) -> MemoryBreakdown:
    """What one of two ranks holds."""
    policy = Policy(methods=settings, micro_batch=4, gpu_count=2)
    result = runner.run(Unruly(folder).trial(SizeTrial, policy=policy, largest_batch=4))
    assert result.outcome is Outcome.OK, (result, runner.tail_of_log(result.key))
    assert result.sizing is not None
    return result.sizing.points[0].memory.breakdown
