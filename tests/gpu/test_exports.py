"""Exports that only a GPU can train: formats of its own, and FSDP, which accelerate does not use on CPUs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.hf_keys import HF
from tests.exports.arguments import STEPS_OF_ITS_OWN, arguments_of
from tests.exports.cells import FSDP, ON_A_GPU, Cell
from tests.exports.policies import file_of
from tests.exports.two_steps import assert_alike, by_the_wrapper, samples, tiny

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture
def accelerate_forgets() -> Iterator[None]:
    """Accelerators share a state, which the next test is not to find."""
    yield
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize("cell", ON_A_GPU, ids=str)
@pytest.mark.usefixtures("values", "accelerate_forgets")
def test_the_trainer_reaches_the_wrappers_parameters(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Trainer

    # Without torchrun the Trainer would use all visible GPUs.
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in alone.items():
        monkeypatch.setenv(name, value)
    text = new_configuration(export_policy(file_of(*cell.settings, micro_batch=2), HF, max_grad_norm=1.0))
    arguments = arguments_of(text, tmp_path, **STEPS_OF_ITS_OWN, use_cpu=False)
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
