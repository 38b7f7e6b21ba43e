"""Train two steps in each trainer, in a process that began with the variables of an export: run by a test."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch
from accelerate import Accelerator
from transformers import Trainer

from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from tests.exports.arguments import STEPS_OF_ITS_OWN, arguments_of
from tests.exports.cells import VARIABLES
from tests.exports.policies import file_of
from tests.exports.two_steps import (
    accelerates_loop,
    adamw,
    assert_alike,
    by_the_wrapper,
    deepspeed_engine,
    loaded,
    module,
    quiet_trainer,
    samples,
    tiny,
)


def text_for(trainer: str) -> str:
    return new_configuration(export_policy(file_of(*VARIABLES, micro_batch=2), get_target(trainer)))


def by_transformers(folder: Path) -> torch.nn.Module:
    arguments = arguments_of(text_for("hf"), folder, **STEPS_OF_ITS_OWN)
    trainer = Trainer(tiny(), arguments, train_dataset=samples(padded=False))  # type: ignore[arg-type]
    trainer.train()
    return trainer.model  # type: ignore[return-value]


def by_accelerate(folder: Path) -> torch.nn.Module:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    return accelerates_loop(accelerator, samples(padded=False), norm=None)


def by_lightning(folder: Path) -> torch.nn.Module:
    trained = module()
    quiet_trainer(text_for("lightning")).fit(trained, loaded(samples(padded=False)))
    return trained.model  # type: ignore[no-any-return]


def by_deepspeed(folder: Path) -> torch.nn.Module:
    model = tiny()
    with deepspeed_engine() as deepspeed:
        content = json.loads(text_for("deepspeed"))
        engine, *_ = deepspeed.initialize(model=model, config=content, optimizer=adamw(model.parameters()))
        for batch in loaded(samples(padded=False)):
            engine.backward(engine(**batch).loss)
            engine.step()
    return engine.module  # type: ignore[no-any-return]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    trained = {"hf": by_transformers, "accelerate": by_accelerate, "lightning": by_lightning, "deepspeed": by_deepspeed}
    for train in trained.values():
        model = train(Path(sys.argv[1]))
        assert_alike(model, by_the_wrapper(*VARIABLES, padded=False), 1e-4)
    print(json.dumps({"trained": list(trained), "threads": torch.get_num_threads()}))
