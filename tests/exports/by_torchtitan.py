"""torchtitan's own Trainer, with exported arguments, beside the wrapper on the same model: one rank, run by a test."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from advisor import apply_policy
from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from tests.exports.cells import BY_TORCHTITAN, Cell
from tests.exports.policies import file_of
from tests.exports.two_steps import EPSILON, RATE, STEPS, adamw
from tests.methods.quick_compiler import quick_inductor

State = dict[str, torch.Tensor]
TOKENS = 32


class Told(torch.nn.Module):
    """A model of torchtitan's with its loss, as the wrapper trains it."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        logits = self.model(tokens)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def small() -> Any:
    """A configuration function's model: two blocks of llama 3, whose attention is torch's."""
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3 import model_registry

    spec = model_registry("debugmodel")
    spec.model.layers = spec.model.layers[:4]
    for layer in spec.model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    return spec


def trained(cell: Cell, folder: Path, schedule: str = "") -> tuple[State, State, State]:
    """The parameters at the start, and after two steps of the Trainer and of the wrapper.

    ``schedule`` takes the place of the exported one.
    """
    from torchtitan.components.optimizer import default_adamw
    from torchtitan.config import ConfigManager

    file = file_of(*cell.settings, micro_batch=2)
    text = new_configuration(export_policy(file, get_target("torchtitan"), max_grad_norm=cell.norm))
    arguments = " ".join(line for line in text.splitlines() if not line.startswith("#")).split()
    config = ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel", *arguments])
    config.parallelism.pipeline_parallel_schedule = schedule or config.parallelism.pipeline_parallel_schedule
    config.model_spec = small()
    implementation = config.optimizer.implementation
    config.optimizer = default_adamw(lr=RATE, eps=EPSILON, betas=(0.9, 0.999), weight_decay=0.0)
    config.optimizer.implementation = implementation
    config.lr_scheduler.warmup_steps, config.lr_scheduler.decay_ratio = 0, 0.0
    config.training.seq_len, config.training.steps = TOKENS, STEPS
    config.hf_assets_path, config.dump_folder = str(folder), str(folder)
    config.tokenizer = config.dataloader = Nothing()
    config.debug.seed = 1
    config.validator.enable = config.checkpoint.enable = False
    if config.training.enable_cpu_offload:
        torch.nn.init._no_grad_trunc_normal_ = drawn_once
    trainer = config.build()
    before = whole(trainer.model_parts)
    rows = torch.randint(2048, (STEPS, config.training.global_batch_size, TOKENS + 1), generator=seeded())
    # The software device computes no kernel of Triton's, so what is compiled there runs without any.
    with quick_inductor() if "SOFTWARE_GPUS" in os.environ else contextlib.nullcontext():
        for step in range(STEPS):
            trainer.step += 1
            trainer.train_step(trainer.batch_generator(micro_batches(trainer, rows[step])))
    compiled = any(one._compiled_call_impl for part in trainer.model_parts for one in part.modules())
    assert compiled is any(setting.name in ("compile", "compile_budget") for setting in cell.settings)
    theirs = whole(trainer.model_parts)
    dist.destroy_process_group()
    return before, theirs, by_the_wrapper(cell, before, rows)


def micro_batches(trainer: Any, rows: torch.Tensor) -> Iterator[tuple[State, torch.Tensor]]:
    """This rank's part of a step."""
    degree, rank = 1, 0
    if trainer.parallel_dims.dp_enabled:
        mesh = trainer.parallel_dims.get_mesh("batch")
        degree, rank = mesh.size(), mesh.get_local_rank()
    own = rows[rank::degree]
    count = trainer.gradient_accumulation_steps * trainer.num_pipeline_parallel_microbatches
    for part in own.chunk(count):
        yield {"input": part[:, :-1].contiguous()}, part[:, 1:].contiguous()


def by_the_wrapper(cell: Cell, before: State, rows: torch.Tensor) -> State:
    """Of what changes numbers; on one device, with all samples of a step."""
    model = Told(small().model.build())
    model.model.init_weights(buffer_device=None)
    with torch.no_grad():
        for name, parameter in model.model.named_parameters():
            parameter.copy_(before[name])
    kept = tuple(setting for setting in cell.settings if setting.name in ("precision", "pure_bf16", "fused_optimizer"))
    file = file_of(*kept, micro_batch=rows.shape[1], accumulation_steps=1)
    training = apply_policy(file, model, device="cuda", max_grad_norm=cell.norm, build_optimizer=adamw)
    for step in rows:
        training.step({"tokens": step[:, :-1].contiguous(), "labels": step[:, 1:].contiguous()})
    state = {name: one.detach().float().cpu() for name, one in model.model.named_parameters()}
    training.close()
    return state


def whole(parts: list[torch.nn.Module]) -> State:
    """The parameters of all stages."""
    found: State = {}
    for part in parts:
        for name, parameter in part.named_parameters():
            tensor = parameter.detach().cuda()
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            plain = name.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")
            found[plain] = full.float().cpu().clone()
    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, found)
    return {name: tensor for one in every for name, tensor in one.items()}


def drawn_once(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """In place of drawing again what is out of bounds: torch 2.15 never ends that for a DTensor on the host, because it
    sets the host's generator back after each draw."""
    with torch.no_grad():
        return tensor.normal_(mean, std, generator=generator).clamp_(a, b)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(1)


class Nothing:
    """In place of what reads text: the batches come from here."""

    def build(self, **given: Any) -> None:
        return None

    def to_dict(self) -> dict[str, Any]:
        return {}


def main() -> None:
    """Train one cell as one rank: torchtitan keeps the meshes of the first process group for the whole process."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    warnings.simplefilter("ignore")
    cell = BY_TORCHTITAN[int(sys.argv[2])]
    found = trained(cell, folder, *sys.argv[3:])
    for setting in cell.settings:
        if setting.name == "intraop_threads":
            assert torch.get_num_threads() == setting.parameters["count"]
        if setting.name == "expandable_segments":
            assert torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]
    if rank == 0:
        torch.save(found, folder / "trained.pt")


if __name__ == "__main__":
    main()
