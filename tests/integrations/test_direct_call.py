"""A direct call of a model goes without what methods put around a step: it says so, once."""

from __future__ import annotations

import copy
import pickle
import warnings
from typing import Any

import pytest
import torch

from advisor.methods.setting import MethodSetting, use
from advisor.policy.apply import apply_policy
from advisor.training.training import Training
from tests.integrations.small import batch, model, policy_of
from tests.methods.quick_compiler import quick_compiler

AROUND = {
    "precision": use("precision", dtype="bf16"),
    "chunked_cross_entropy": use("chunked_cross_entropy", chunks=8),
    "compress_activations": use("compress_activations", bits=8),
}
INSIDE = {
    "checkpoint": use("checkpoint", every=1),
    "lora": use("lora", rank=8),
    "fused_optimizer": use("fused_optimizer"),
}
WARNS = r"called directly in training mode.*training\.forward\(batch\)"


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.layer(inputs).square().mean()


def training_of(*settings: MethodSetting) -> Training:
    return apply_policy(policy_of(*settings), model(2))


@pytest.mark.parametrize("setting", AROUND.values(), ids=AROUND)
def test_the_first_direct_call_warns_with_the_fix_and_no_other_does(setting: MethodSetting) -> None:
    training = training_of(setting)
    with pytest.warns(UserWarning, match=WARNS) as told:
        training.model(**batch(0))
    training.model(**batch(0))  # Another warning would be an error.
    assert setting.name in str(told[0].message)
    assert told[0].filename == __file__


@pytest.mark.parametrize("setting", AROUND.values(), ids=AROUND)
def test_steps_evaluation_and_closed_trainings_do_not_warn(setting: MethodSetting) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training = training_of(setting)
        training.step(batch(0))
        for micro_batch in training.split(batch(0)):
            training.backward(training.forward(micro_batch))
        training.evaluate(lambda model: model(**batch(0)))
        with torch.no_grad():
            training.model(**batch(0))
        training.model.eval()(**batch(0))
        training.close()
        training.model.train()(**batch(0))


@pytest.mark.parametrize("setting", INSIDE.values(), ids=INSIDE)
def test_methods_that_change_the_model_itself_need_no_warning(setting: MethodSetting) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        training_of(setting).model(**batch(0))


def test_a_copy_belongs_to_no_training_and_a_pickled_model_can_be_read() -> None:
    training = training_of(AROUND["precision"])
    plain = model(2).state_dict()
    assert training.model.state_dict().keys() == plain.keys()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy.deepcopy(training.model)(**batch(0))
    read: Any = pickle.loads(pickle.dumps(training.model))
    torch.testing.assert_close(read.state_dict(), training.model.state_dict())


def test_a_compiled_model_warns_as_well() -> None:
    with quick_compiler():
        training = apply_policy(policy_of(AROUND["precision"], use("compile", scope="model")), Small())
        training.step(torch.ones(2, 4))
        with pytest.warns(UserWarning, match=WARNS):
            training.model(torch.ones(2, 4))
        training.close()


def test_what_a_user_compiles_later_runs_without_a_break() -> None:
    training = apply_policy(policy_of(AROUND["precision"]), Small())
    compiled = torch.compile(training.model, backend="eager", fullgraph=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.ones(2, 4))
