"""Exports that only a GPU can train: formats of its own, and FSDP, which accelerate does not use on CPUs."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from tests.distributed.ranks import ROOT
from tests.exports import on_gpus
from tests.exports.arguments import STEPS_OF_ITS_OWN, arguments_of, variables_of
from tests.exports.cells import (
    FSDP,
    ON_A_GPU,
    ON_GPUS,
    ON_GPUS_UNDER,
    ON_GPUS_WITH_DEEPSPEED,
    ON_HARDWARE,
    Cell,
    OnRanks,
)
from tests.exports.policies import file_of
from tests.exports.two_steps import (
    accelerates_loop,
    assert_alike,
    assert_differ,
    assert_moved_alike,
    by_the_wrapper,
    launched,
    loaded,
    module,
    quiet_trainer,
    samples,
    tiny,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture
def accelerate_forgets() -> Iterator[None]:
    """Accelerators share a state, and arguments set variables, which the next test is not to find."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    for backend in (torch.backends, torch.backends.cuda.matmul, torch.backends.cudnn):
        backend.fp32_precision = "none"
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without torchrun the Trainer would use all visible GPUs."""
    single = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in single.items():
        monkeypatch.setenv(name, value)


def text_of(trainer: str, cell: Cell) -> str:
    return new_configuration(
        export_policy(file_of(*cell.settings, micro_batch=2), get_target(trainer), max_grad_norm=1.0)
    )


@pytest.mark.parametrize("cell", ON_A_GPU["hf"], ids=str)
@pytest.mark.usefixtures("values", "accelerate_forgets", "alone")
def test_the_trainer_reaches_the_wrappers_parameters(cell: Cell, tmp_path: Path) -> None:
    from transformers import Trainer

    arguments = arguments_of(text_of("hf", cell), tmp_path, **STEPS_OF_ITS_OWN, use_cpu=False)
    trainer = Trainer(tiny(), arguments, train_dataset=samples())  # type: ignore[arg-type]
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    assert next(model.parameters()).device.type == "cuda"
    state = trainer.accelerator.get_state_dict(trainer.model)
    whole = tiny()
    whole.load_state_dict(state)
    kept = tuple(setting for setting in cell.settings if setting != FSDP)
    assert_alike(whole, by_the_wrapper(*kept, norm=1.0, device="cuda"), cell.tolerance)
    assert isinstance(next(model.parameters()), torch.distributed.tensor.DTensor) is (FSDP in cell.settings)


@pytest.mark.parametrize("cell", ON_A_GPU["accelerate"], ids=str)
@pytest.mark.usefixtures("values", "accelerate_forgets", "alone")
def test_accelerates_loop_reaches_the_wrappers_parameters(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate import Accelerator

    for name, value in launched(text_of("accelerate", cell), tmp_path).items():
        monkeypatch.setenv(name, value)
    accelerator = Accelerator(gradient_accumulation_steps=2)
    theirs = accelerates_loop(accelerator, samples(padded=False))
    ours = by_the_wrapper(*cell.settings, norm=1.0, padded=False, device="cuda")
    assert_alike(theirs.cpu(), ours, cell.tolerance)


@pytest.mark.parametrize("cell", ON_A_GPU["lightning"], ids=str)
@pytest.mark.usefixtures("values", "alone")
def test_lightnings_trainer_reaches_the_wrappers_parameters(cell: Cell) -> None:
    trainer, trained = quiet_trainer(text_of("lightning", cell), "cuda"), module()
    trainer.fit(trained, loaded(samples(padded=False)))
    ours = by_the_wrapper(*cell.settings, norm=1.0, padded=False, device="cuda")
    assert_alike(trained.model.cpu(), ours, cell.tolerance)


@pytest.mark.parametrize("cell", ON_HARDWARE["hf"], ids=str)
@pytest.mark.usefixtures("hardware", "accelerate_forgets", "alone")
def test_the_trainer_with_ligers_kernels_reaches_the_wrappers_parameters(cell: Cell, tmp_path: Path) -> None:
    from transformers import Trainer

    pytest.importorskip("liger_kernel")
    arguments = arguments_of(text_of("hf", cell), tmp_path, **STEPS_OF_ITS_OWN, use_cpu=False)
    trainer = Trainer(tiny(), arguments, train_dataset=samples())  # type: ignore[arg-type]
    trainer.train()
    ours = by_the_wrapper(*cell.settings, norm=1.0, device="cuda")
    assert_alike(trainer.accelerator.unwrap_model(trainer.model).cpu(), ours, cell.tolerance)


Found = dict[str, tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]]


def on_two(folder: Path, cases: dict[str, OnRanks], *more: str) -> Found:
    """In processes that begin with the variables of exports, which these assert that the allocator has read."""
    command = [sys.executable, "-m", on_gpus.__name__, str(folder), *more]
    exports = [export_policy(file_of(*ON_GPUS_UNDER), get_target(case.trainer)) for case in cases.values()]
    (variables,) = {tuple(variables_of(export)) for export in exports}
    ranks = []
    for rank in ("0", "1"):
        number = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
        own = {**os.environ, **number, **dict(variables)}
        ranks.append(subprocess.Popen(command, env=own, cwd=ROOT, stderr=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=600)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    first, second = (torch.load(folder / f"{rank}.pt") for rank in range(2))
    for case in cases:
        torch.testing.assert_close(first[case][0], second[case][0], rtol=0, atol=0)
    result: Found = first
    return result


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    return on_two(tmp_path_factory.mktemp("two"), ON_GPUS)


@pytest.mark.parametrize("case", ON_GPUS)
@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="one device")
@pytest.mark.usefixtures("values")
def test_two_ranks_of_the_trainer_reach_the_parameters_of_two_of_the_wrapper(case: str, found: Found) -> None:
    assert_as_said(found[case], ON_GPUS[case])


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="one device")
@pytest.mark.usefixtures("values")
def test_two_ranks_of_lightning_with_deepspeed_reach_the_parameters_of_two_of_the_wrapper(tmp_path: Path) -> None:
    from torch.utils.cpp_extension import CUDA_HOME

    if find_spec("deepspeed") is None or CUDA_HOME is None or not Path(CUDA_HOME, "bin", "nvcc").exists():
        pytest.skip("no DeepSpeed, or no nvcc, which it asks for")
    found = on_two(tmp_path, ON_GPUS_WITH_DEEPSPEED, "deepspeed")
    for name, case in ON_GPUS_WITH_DEEPSPEED.items():
        assert_as_said(found[name], case)


def assert_as_said(parameters: tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]], case: OnRanks) -> None:
    """The trainer's parameters are the wrapper's, or differ from them, as the case says."""
    differing = pytest.raises(AssertionError, match="weight") if case.differs else contextlib.nullcontext()
    with differing:
        assert_moved_alike(*parameters, case.tolerance)


@pytest.mark.skipif("torch.cuda.device_count() < 2", reason="one device")
@pytest.mark.usefixtures("values")
def test_what_lightning_sends_in_fewer_bits_is_rounded(found: Found) -> None:
    names = ("accelerate, ddp", "lightning, sent in fp16", "lightning, sent in bf16")
    assert_differ([found[name][0] for name in names])
