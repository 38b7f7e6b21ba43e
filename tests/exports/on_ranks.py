"""What two ranks reach with a trainer's exported configuration, and with the wrapper."""

from __future__ import annotations

import importlib
import json
import os
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import yaml
from transformers import Trainer

from advisor import apply_policy
from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from advisor.policy.file import PolicyFile
from tests.exports.arguments import STEPS_OF_ITS_OWN, arguments_of
from tests.exports.cells import ON_RANKS, PER_STEP
from tests.exports.two_steps import STEPS, accelerates_loop, adamw, loaded, module, quiet_trainer, samples, tiny

__all__ = ["all_rows", "by_the_wrapper_on_ranks", "in_every_trainer"]

State = dict[str, torch.Tensor]


def in_every_trainer() -> dict[str, tuple[State, State]]:
    """Case -> the parameters after two steps, in the trainer and with the wrapper."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_WORLD_SIZE": "2"}  # as torchrun does
    trained = {
        "hf": _by_transformers,
        "accelerate": _by_accelerate,
        "lightning": _by_lightning,
        "deepspeed": _by_deepspeed,
    }
    found: dict[str, tuple[State, State]] = {}
    ours: dict[str, State] = {}
    for name, case in ON_RANKS.items():
        export = export_policy(case.file, get_target(case.trainer), max_grad_norm=1.0)
        model = trained[case.trainer](new_configuration(export), case.file.policy.micro_batch)
        theirs = {parameter: tensor.detach().clone() for parameter, tensor in model.named_parameters()}
        beside = str(case.wrappers.policy)
        if beside not in ours:
            ours[beside] = by_the_wrapper_on_ranks(case.wrappers)
        found[name] = (theirs, ours[beside])
    return found


def _by_transformers(text: str, micro_batch: int) -> torch.nn.Module:
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(tiny(), arguments_of(text, Path(folder), **STEPS_OF_ITS_OWN), train_dataset=all_rows())  # type: ignore[arg-type]
        trainer.train()
    return trainer.accelerator.unwrap_model(trainer.model)  # type: ignore[no-any-return]


def _by_accelerate(text: str, micro_batch: int) -> torch.nn.Module:
    """Launched with the file's values."""
    from accelerate import Accelerator

    content = yaml.safe_load(text)
    steps = PER_STEP // (2 * micro_batch)
    accelerator = Accelerator(mixed_precision=content["mixed_precision"], gradient_accumulation_steps=steps, cpu=True)
    assert accelerator.num_processes == content["num_processes"]
    assert accelerator.distributed_type.value == content["distributed_type"] == "MULTI_CPU"
    return accelerates_loop(accelerator, all_rows(), micro_batch)


def _by_lightning(text: str, micro_batch: int) -> torch.nn.Module:
    trainer, trained = quiet_trainer(text), module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the data loader has no workers
        # Lightning would shuffle them.
        own = all_rows()[dist.get_rank() :: 2]
        trainer.fit(trained, loaded(own, micro_batch))
    assert trainer.world_size == 2
    return trained.model  # type: ignore[no-any-return]


def _by_deepspeed(text: str, micro_batch: int) -> torch.nn.Module:
    import deepspeed

    # It would compile an operator for processes on one host. The attribute deepspeed.comm.torch is torch itself.
    importlib.import_module("deepspeed.comm.torch").build_shm_op = lambda: None
    deepspeed.init_distributed("gloo")
    built = tiny()
    engine, *_ = deepspeed.initialize(model=built, config=json.loads(text), optimizer=adamw(built.parameters()))
    for batch in loaded(all_rows()[dist.get_rank() :: 2], micro_batch):
        engine.backward(engine(**batch).loss)
        engine.step()
    whole = tiny()
    with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
        whole.load_state_dict({name: tensor.detach().clone() for name, tensor in engine.module.state_dict().items()})
    return whole


def by_the_wrapper_on_ranks(file: PolicyFile) -> State:
    """The wrapper's parameters after two steps of all ranks."""
    training = apply_policy(file, tiny(), device="cpu", max_grad_norm=1.0, build_optimizer=adamw)
    rows = all_rows()
    for step in range(STEPS):
        own = rows[PER_STEP * step : PER_STEP * (step + 1)][dist.get_rank() :: 2]
        training.step({name: torch.stack([row[name] for row in own]) for name in own[0]})
    state: State = training.state_dict()["model"]
    training.close()
    sent = [state]
    dist.broadcast_object_list(sent)  # The first one has it.
    return sent[0]


def all_rows() -> list[State]:
    """The samples of all steps and ranks."""
    return samples(PER_STEP * STEPS, padded=False)
