"""axolotl's or LLaMA-Factory's own trainer on GPUs, with exported keys, beside the wrapper: one rank, run by a test."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, GradientState
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule
from torch.distributed.tensor import DTensor
from transformers import LlamaForCausalLM, PreTrainedModel

from advisor import apply_policy
from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from advisor.policy.file import PolicyFile
from tests.exports.arguments import variables_of
from tests.exports.cells import EVERY_BLOCK, WITH_ADAPTERS, Cell
from tests.exports.cells_on_gpus import FAILING_ELSEWHERE, ON_GPUS_ELSEWHERE, ON_GPUS_UNDER, PURE_BF16, TF32
from tests.exports.policies import file_of
from tests.exports.test_adapters_elsewhere import adapters_of, wide
from tests.exports.test_trained_elsewhere import Rows, axolotls_trainer, llamafactorys_trainer, silent
from tests.exports.two_steps import STEPS, adamw, samples, tiny

State = dict[str, torch.Tensor]
LENGTH = 16
"""Of the rows: axolotl multiplies in float8 where a micro-batch has a multiple of 16 tokens, and fails elsewhere."""


def trained(name: str, cells: tuple[Cell, ...]) -> list[tuple[State, State, State] | str]:
    """Of each cell, what is trained: at the start, and after two steps of the trainer and the wrapper; or its error."""
    without = [cell for cell in cells if not has_adapters(cell)]
    ours = {str(cell): by_the_wrapper(cell, tiny(), {}) for cell in without}  # before the trainer replaces anything
    found: list[tuple[State, State, State] | str] = []
    for cell in cells:
        with tempfile.TemporaryDirectory() as own, pytest.MonkeyPatch.context() as patch, forgotten():
            try:
                found.append(trained_beside(name, cell, Path(own), patch, ours.get(str(cell))))
            except Exception as error:  # the test expects it, or shows it
                traceback.print_exc()
                found.append(repr(error))
    return found


def trained_beside(
    name: str, cell: Cell, folder: Path, patch: pytest.MonkeyPatch, ours: State | None
) -> tuple[State, State, State]:
    """With the wrapper's parameters, which a cell with adapters has yet to find: from the trainer's own start."""
    export = export_policy(policy_of(cell), get_target(name), max_grad_norm=cell.norm)
    text = new_configuration(export)
    for variable, value in variables_of(export):
        if variable.startswith("FSDP_"):
            patch.setenv(variable, value)
    if cell in FAILING_ELSEWHERE[name]:
        text = text.replace("fp16: false", "fp16: true")
    model = wide() if has_adapters(cell) else tiny()
    if PURE_BF16 in cell.settings:
        model = model.bfloat16()  # LLaMA-Factory keeps the format that a model was saved in.
    trainer = trainer_of(name, text, folder, patch, rows_of(cell), model)
    if ours is None:
        begun = adapters_of(trainer.model)
        ours = by_the_wrapper(cell, wide(), begun)
        trainer.train()
        return begun, adapters_of(trainer.accelerator.unwrap_model(trainer.model)), ours
    begun = {one: parameter.detach().clone() for one, parameter in model.named_parameters()}
    trainer.train()
    assert_configured(trainer, cell)
    return begun, whole(trainer.accelerator.unwrap_model(trainer.model)), ours


def has_adapters(cell: Cell) -> bool:
    return any(setting in WITH_ADAPTERS for setting in cell.settings)


def policy_of(cell: Cell) -> PolicyFile:
    return file_of(*cell.settings, micro_batch=2)


def rows_of(cell: Cell) -> Rows:
    """The samples of all steps and ranks."""
    rows = samples(per_step(policy_of(cell)) * STEPS, padded=False, length=LENGTH)
    for row in rows:
        row["labels"][0] = -100  # None predicts them, but the transformers that LLaMA-Factory requires counts them.
    return rows


def trainer_of(
    name: str, text: str, folder: Path, patch: pytest.MonkeyPatch, rows: Rows, model: LlamaForCausalLM
) -> Any:
    """Before its steps."""
    # Each rank writes a model of its own, of which newer versions of transformers let only the first write one.
    patch.setattr(PreTrainedModel, "should_save_on_this_rank", lambda *_: True, raising=False)
    if name == "axolotl":
        return axolotls_trainer(text, folder, patch, model=model, rows=rows)
    silent(patch)
    patch.setenv("DISABLE_VERSION_CHECK", "1")
    # Its peft looks for layers of torchao's, under names that torchao 0.18 no longer has.
    patch.setattr("peft.tuners.lora.torchao.is_torchao_available", lambda: False)
    return llamafactorys_trainer(folder, text, model=model, rows=rows, use_cpu=False)


def by_the_wrapper(cell: Cell, model: LlamaForCausalLM, begun: State) -> State:
    """What as many ranks of the wrapper train, from the same start."""
    file, rows = policy_of(cell), rows_of(cell)
    training = apply_policy(file, model, device="cuda", max_grad_norm=cell.norm, build_optimizer=adamw)
    with torch.no_grad():
        for name, start in begun.items():
            training.model.get_parameter(name).copy_(start)
    rank, count, size = int(os.environ["RANK"]), file.policy.gpu_count, per_step(file)
    for step in range(STEPS):
        own = rows[size * step : size * (step + 1)][rank::count]
        training.step({name: torch.stack([row[name] for row in own]) for name in own[0]})
    state = adapters_of(training.model) if begun else training.state_dict()["model"]
    found = {name: tensor.detach().cpu().clone() for name, tensor in state.items()}
    training.close()
    return found


def per_step(file: PolicyFile) -> int:
    """Samples of an optimizer step."""
    return file.policy.micro_batch * file.policy.accumulation_steps * file.policy.gpu_count


def whole(model: torch.nn.Module) -> State:
    """All parameters of a model that may be sharded."""
    found = {}
    for name, parameter in model.named_parameters():
        tensor = parameter.detach().cuda()
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found[name.replace("_checkpoint_wrapped_module.", "")] = full.cpu().clone()
    return found


def assert_configured(trainer: Any, cell: Cell) -> None:
    """It is on its device, and did what no parameter shows."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    assert trainer.args.device.type == "cuda"
    sharded = {name: value for one in cell.settings if one.name == "fsdp" for name, value in one.parameters.items()}
    assert all(isinstance(parameter, DTensor) is bool(sharded) for parameter in model.parameters())
    if sharded:
        assert sum(isinstance(module, FSDPModule) for module in model.modules()) > len(model.model.layers)
        plugin = trainer.accelerator.state.fsdp_plugin
        assert plugin.reshard_after_forward is sharded["reshard"]
        assert isinstance(plugin.cpu_offload, CPUOffloadPolicy) is sharded["offload"]
        wrapped = any("_checkpoint_wrapped_module" in name for name, _ in model.named_parameters())
        assert (wrapped or model.is_gradient_checkpointing) is (EVERY_BLOCK in cell.settings)
    assert (torch.backends.cuda.matmul.fp32_precision == "tf32") is (TF32 in cell.settings)
    for setting in ON_GPUS_UNDER:
        if setting.name == "intraop_threads":
            assert torch.get_num_threads() == setting.parameters["count"]
        if setting.name == "expandable_segments":
            assert torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]


@contextmanager
def forgotten() -> Iterator[None]:
    """What trainers keep for the whole process."""
    before = dict(os.environ)
    try:
        yield
    finally:
        GradientState._reset_state()
        AcceleratorState._reset_state(reset_partial_state=True)
        os.environ.clear()
        os.environ.update(before)
        torch.set_float32_matmul_precision("highest")
        for backend in (torch.backends, torch.backends.cuda.matmul, torch.backends.cudnn):
            backend.fp32_precision = "none"


def main() -> None:
    """Train as one rank some cells."""
    folder, name, *indices = sys.argv[1:]
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    warnings.simplefilter("ignore")
    torch.cuda.set_device(rank)
    if count > 1:
        dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    cells = (*ON_GPUS_ELSEWHERE[name], *FAILING_ELSEWHERE[name])
    found = trained(name, tuple(cells[int(index)] for index in indices))
    kept = [one if isinstance(one, str) else [{n: t.cpu() for n, t in state.items()} for state in one] for one in found]
    torch.save(kept, Path(folder) / f"{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
