"""Two optimizer steps of a tiny language model, by the wrapper, and what another trainer's are compared with."""

from __future__ import annotations

import contextlib
import importlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import yaml
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

from advisor import apply_policy
from advisor.methods.setting import MethodSetting
from advisor.training.training import Training
from tests.exports.cells import Cell, on_a_cpu
from tests.exports.policies import file_of
from tests.methods.quick_compiler import quick_compiler

__all__ = [
    "EPSILON",
    "RATE",
    "STEPS",
    "accelerates_loop",
    "adamw",
    "assert_alike",
    "assert_differ",
    "assert_moved_alike",
    "assert_trained_as_said",
    "by_the_wrapper",
    "deepspeed_engine",
    "launched",
    "loaded",
    "module",
    "quiet_trainer",
    "samples",
    "the_wrappers",
    "tiny",
]

STEPS = 2
RATE, EPSILON = 1e-2, 1e-2
"""With such an epsilon, Adam's steps are nearly proportional to the gradients, and do not enlarge their rounding."""


def tiny(*, hidden_size: int = 16, intermediate_size: int = 32) -> LlamaForCausalLM:
    set_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=320,
            hidden_size=hidden_size,
            intermediate_size=intermediate_size,
            num_hidden_layers=4,
            num_attention_heads=2,
            max_position_embeddings=16,
        )
    )


def adamw(parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=RATE, eps=EPSILON, weight_decay=0.0)


def samples(count: int = 4 * STEPS, *, padded: bool = True, length: int = 12) -> list[dict[str, torch.Tensor]]:
    """The samples of all steps; with padding, micro-batches have unequally many targets, and no row has its first."""
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(320, (length,), generator=draw) for _ in range(count)]
    labels = [row.clone() for row in rows]
    for number, row in enumerate(labels):
        row[: 1 + number % 5 if padded else 0] = -100
    return [{"input_ids": row, "labels": label} for row, label in zip(rows, labels, strict=True)]


def by_the_wrapper(
    *settings: MethodSetting,
    norm: float | None = None,
    padded: bool = True,
    device: str = "cpu",
    model: LlamaForCausalLM | None = None,
    begun: Mapping[str, torch.Tensor] | None = None,
) -> Training:
    """The wrapper's training after as many steps on the same samples; what it compiles, it runs without kernels.

    It begins with the parameters of ``begun``, which a method may have added.
    """
    with quick_compiler():
        training = apply_policy(
            file_of(*settings, micro_batch=2),
            model or tiny(),
            device=device,
            max_grad_norm=norm,
            build_optimizer=adamw,
        )
        with torch.no_grad():
            for name, start in (begun or {}).items():
                training.model.get_parameter(name).copy_(start)
        rows = samples(padded=padded)
        for step in range(STEPS):
            own = rows[4 * step : 4 * step + 4]
            training.step({name: torch.stack([row[name] for row in own]) for name in own[0]})
    return training


def loaded(rows: list[dict[str, torch.Tensor]], micro_batch: int = 2) -> Any:
    return torch.utils.data.DataLoader(rows, batch_size=micro_batch)  # type: ignore[arg-type]


def accelerates_loop(
    accelerator: Any, rows: list[dict[str, torch.Tensor]], micro_batch: int = 2, *, norm: float | None = 1.0
) -> torch.nn.Module:
    """The model after an accelerate loop over all rows, as accelerate's documentation writes it."""
    model = tiny()
    prepared, optimizer, data = accelerator.prepare(model, adamw(model.parameters()), loaded(rows, micro_batch))
    for batch in data:
        with accelerator.accumulate(prepared):
            accelerator.backward(prepared(**batch).loss)
            if norm is not None and accelerator.sync_gradients:
                accelerator.clip_grad_norm_(prepared.parameters(), norm)
            optimizer.step()
            optimizer.zero_grad()
    trained: torch.nn.Module = accelerator.unwrap_model(prepared)
    return trained


@contextlib.contextmanager
def deepspeed_engine() -> Iterator[Any]:
    """DeepSpeed, in a group of this process alone."""
    deepspeed = pytest.importorskip("deepspeed")
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in alone.items():
            patch.setenv(name, value)
        # It would compile an operator for several processes on one host.
        patch.setattr(importlib.import_module("deepspeed.comm.torch"), "build_shm_op", lambda: None)
        deepspeed.init_distributed("gloo")
        yield deepspeed
    dist.destroy_process_group()


def module() -> Any:
    """The model as a LightningModule."""
    from lightning.pytorch import LightningModule

    class Module(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = tiny()

        def training_step(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
            loss: torch.Tensor = self.model(**batch).loss
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return adamw(self.parameters())

    return Module()


def quiet_trainer(text: str, accelerator: str = "cpu") -> Any:
    """Lightning's Trainer as LightningCLI builds it from what was exported, for the steps."""
    from jsonargparse import ArgumentParser
    from lightning.pytorch import Trainer

    parser = ArgumentParser()
    parser.add_class_arguments(Trainer, "trainer")
    content = yaml.safe_load(text)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    quiet["use_distributed_sampler"] = False
    content["trainer"] |= {**quiet, "accelerator": accelerator, "max_steps": STEPS}
    return parser.instantiate_classes(parser.parse_object(content)).trainer


def launched(text: str, folder: Path, *more: str) -> dict[str, str]:
    """The variables that `accelerate launch` sets for a script and a configuration, with ``more`` of its options."""
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env, prepare_simple_launcher_cmd_env

    (folder / "a.yaml").write_text(text)
    options = ["--config_file", str(folder / "a.yaml"), *more, "train.py"]
    arguments = _validate_launch_command(launch_command_parser().parse_args(options))[0]
    if arguments.multi_gpu or arguments.use_fsdp:
        arguments.main_process_port = 0
        variables = prepare_multi_gpu_env(arguments)
    else:
        _, variables = prepare_simple_launcher_cmd_env(arguments)
    return {name: value for name, value in variables.items() if name.startswith(("ACCELERATE_", "FSDP_", "FP8_"))}


def assert_alike(theirs: torch.nn.Module, training: Training, tolerance: float) -> None:
    """The parameters of both have moved, and to the same place; the training is closed."""
    ours = training.state_dict()["model"]
    training.close()
    assert_moved_alike(dict(theirs.named_parameters()), ours, tolerance)


def assert_trained_as_said(
    theirs: torch.nn.Module, cell: Cell, *, padded: bool = True, beside: Training | None = None
) -> None:
    """The parameters are the wrapper's, or differ from them, as the cell says."""
    training = beside or the_wrappers(cell, padded=padded)
    differing = pytest.raises(AssertionError, match="weight") if cell.differs else contextlib.nullcontext()
    with differing:
        assert_alike(theirs, training, cell.tolerance)


def the_wrappers(cell: Cell, *, padded: bool = True) -> Training:
    """The wrapper's training of a cell."""
    return by_the_wrapper(*on_a_cpu(*cell.settings), norm=cell.norm, padded=padded)


def assert_moved_alike(theirs: dict[str, torch.Tensor], ours: dict[str, torch.Tensor], tolerance: float) -> None:
    """Every parameter has moved from where it was built, and to the same place in both."""
    for name, before in tiny().named_parameters():
        moved = (ours[name].cpu() - before).norm()
        assert moved > 0
        assert (theirs[name] - ours[name].cpu()).norm() <= tolerance * moved, name


def assert_differ(trained: Sequence[dict[str, torch.Tensor]]) -> None:
    """No two have moved to the same place."""
    for one, other in itertools.combinations(trained, 2):
        with pytest.raises(AssertionError, match="weight"):
            assert_moved_alike(one, other, 1e-4)
