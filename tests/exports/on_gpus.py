"""What two ranks on GPUs reach with a trainer's exported configuration, and with the wrapper: run by a test."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch.distributed.tensor import DTensor
from transformers import Trainer

from advisor import apply_policy
from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from advisor.policy.file import PolicyFile
from tests.exports.arguments import STEPS_OF_ITS_OWN, arguments_of
from tests.exports.cells import ON_GPUS, ON_GPUS_WITH_DEEPSPEED, PER_STEP, OnRanks
from tests.exports.two_steps import (
    STEPS,
    accelerates_loop,
    adamw,
    launched,
    loaded,
    module,
    quiet_trainer,
    samples,
    tiny,
)

State = dict[str, torch.Tensor]


def in_every_trainer(cases: dict[str, OnRanks]) -> dict[str, tuple[State, State]]:
    """Case -> the parameters after two steps, in the trainer and with the wrapper."""
    trained = {
        "hf": _by_transformers,
        "accelerate": _by_accelerate,
        "lightning": _by_lightning,
        "deepspeed": _by_deepspeed,
    }
    found: dict[str, tuple[State, State]] = {}
    ours: dict[str, State] = {}
    for name, case in cases.items():
        text = new_configuration(export_policy(case.file, get_target(case.trainer), max_grad_norm=1.0))
        with _forgotten(), tempfile.TemporaryDirectory() as folder:
            theirs = _whole(trained[case.trainer](text, case.file.policy.micro_batch, Path(folder)))
        if (beside := str(case.file.policy)) not in ours:
            ours[beside] = _by_the_wrapper(case.file)
        found[name] = (theirs, ours[beside])
    return found


def _by_transformers(text: str, micro_batch: int, folder: Path) -> torch.nn.Module:
    arguments = arguments_of(text, folder, **STEPS_OF_ITS_OWN, use_cpu=False)
    trainer = Trainer(tiny(), arguments, train_dataset=_rows())  # type: ignore[arg-type]
    trainer.train()
    return trainer.accelerator.unwrap_model(trainer.model)  # type: ignore[no-any-return]


def _by_accelerate(text: str, micro_batch: int, folder: Path) -> torch.nn.Module:
    """In a process as ``accelerate launch`` starts it."""
    os.environ |= launched(text, folder)
    accelerator = Accelerator(gradient_accumulation_steps=PER_STEP // (2 * micro_batch))
    assert accelerator.num_processes == 2
    return accelerates_loop(accelerator, _rows(), micro_batch)


def _by_lightning(text: str, micro_batch: int, folder: Path) -> torch.nn.Module:
    trainer, trained = quiet_trainer(text, "cuda"), module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the data loader has no workers
        trainer.fit(trained, loaded(_rows()[dist.get_rank() :: 2], micro_batch))
    return trained.model  # type: ignore[no-any-return]


def _by_deepspeed(text: str, micro_batch: int, folder: Path) -> torch.nn.Module:
    import deepspeed

    deepspeed.init_distributed()
    built = tiny()
    engine, *_ = deepspeed.initialize(model=built, config=json.loads(text), optimizer=adamw(built.parameters()))
    for batch in loaded(_rows()[dist.get_rank() :: 2], micro_batch):
        engine.backward(engine(**{name: part.cuda() for name, part in batch.items()}).loss)
        engine.step()
    return engine.module  # type: ignore[no-any-return]


def _by_the_wrapper(file: PolicyFile) -> State:
    training = apply_policy(file, tiny(), device="cuda", max_grad_norm=1.0, build_optimizer=adamw)
    rows = _rows()
    for step in range(STEPS):
        own = rows[PER_STEP * step : PER_STEP * (step + 1)][dist.get_rank() :: 2]
        training.step({name: torch.stack([row[name] for row in own]) for name in own[0]})
    sent = [{name: tensor.cpu() for name, tensor in training.state_dict()["model"].items()}]
    training.close()
    dist.broadcast_object_list(sent, device=torch.device("cpu"))  # The first one has it.
    return sent[0]


def _whole(model: torch.nn.Module) -> State:
    found = {}
    for name, parameter in model.named_parameters():
        tensor = parameter.detach().cuda()
        whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        found[name.replace("_checkpoint_wrapped_module.", "")] = whole.cpu().clone()
    return found


def _rows() -> list[State]:
    return samples(PER_STEP * STEPS, padded=False)


@contextmanager
def _forgotten() -> Iterator[None]:
    """What trainers keep for the whole process."""
    before = dict(os.environ)
    yield
    GradientState._reset_state()
    AcceleratorState._reset_state(reset_partial_state=True)
    os.environ.clear()
    os.environ.update(before)


def main() -> None:
    """Train as one of two ranks."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    warnings.simplefilter("ignore")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}  # as torchrun does
    torch.cuda.set_device(rank)
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    cases = ON_GPUS_WITH_DEEPSPEED if sys.argv[2:] == ["deepspeed"] else ON_GPUS
    torch.save(in_every_trainer(cases), folder / f"{rank}.pt")
    assert torch.cuda.memory._snapshot()["allocator_settings"]["expandable_segments"]
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
