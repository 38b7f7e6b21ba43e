"""What two ranks reach with LLaMA-Factory, in an environment of its own, and with the wrapper."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from advisor.exports.config_file import new_configuration
from advisor.exports.export import export_policy
from advisor.exports.trainers import get_target
from tests.exports.cells import ON_RANKS_ELSEWHERE
from tests.exports.on_ranks import all_rows, by_the_wrapper_on_ranks
from tests.exports.test_trained_elsewhere import llamafactorys_trainer, silent

__all__ = ["in_llamafactory"]

State = dict[str, torch.Tensor]


def _without_first_labels() -> list[State]:
    """The same: none predicts them, but the transformers that LLaMA-Factory requires counts them."""
    rows = all_rows()
    for row in rows:
        row["labels"][0] = -100
    return rows


def in_llamafactory() -> dict[str, tuple[State, State]]:
    """Case -> the parameters after two steps, in LLaMA-Factory and with the wrapper."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_WORLD_SIZE": "2"}  # as torchrun does
    os.environ |= {"DISABLE_VERSION_CHECK": "1", "ACCELERATE_USE_CPU": "true"}
    found = {}
    for name, case in ON_RANKS_ELSEWHERE.items():
        ours = by_the_wrapper_on_ranks(case.wrappers)
        text = new_configuration(export_policy(case.file, get_target(case.trainer), max_grad_norm=1.0))
        with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            silent(patch)
            # Each rank writes a model of its own, of which newer versions of transformers let only the first write one.
            patch.setattr(PreTrainedModel, "should_save_on_this_rank", lambda *_: True, raising=False)
            made = llamafactorys_trainer(Path(folder), text, rows=_without_first_labels())
            made.train()
        model = made.accelerator.unwrap_model(made.model)
        assert made.accelerator.num_processes == 2
        found[name] = ({one: tensor.detach().clone() for one, tensor in model.named_parameters()}, ours)
    return found
