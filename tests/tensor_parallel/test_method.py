"""What tensor_parallel declares, keeps in a policy and refuses, in one process."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.hardware.mesh import Mesh
from advisor.methods.catalogue import get_method
from advisor.methods.compose import conflict_between, judge
from advisor.methods.setting import use
from advisor.methods.tensor_parallel._derivation import Derivation, derive
from advisor.methods.tensor_parallel._written_plan import read_plan, written_plan
from advisor.training.structure import find_blocks
from advisor.training.training import Training
from tests.methods.tiny import cpu, facts_of, text, training_of
from tests.tensor_parallel.models import build, loss_of

SPLIT, WHOLE = (use("tensor_parallel", sequence=sequence, vocabulary=False) for sequence in (True, False))
SLICED_VOCABULARY = use("tensor_parallel", sequence=True, vocabulary=True)


def derived(kind: str) -> Derivation:
    model = build(kind)
    return derive(model, find_blocks(model), loss_of(kind), 2)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox", "qwen3", "phi3", "bert", "mixtral"])
def test_a_plan_is_the_same_when_it_was_written_and_read(kind: str) -> None:
    found = derived(kind)
    text = written_plan(found)
    read = read_plan(text, find_blocks(build(kind)), 2)
    assert read is not None
    assert written_plan(read) == text
    for own, plan in zip(read.plans, found.plans, strict=True):
        assert [_plain(region) for region in own.regions] == [_plain(region) for region in plan.regions]
        assert own.slices.keys() == plan.slices.keys()
    assert len(text) < 5000


def _plain(region: Any) -> Any:
    return torch.utils._pytree.tree_map(
        lambda each: each.tolist() if isinstance(each, torch.Tensor) else each, dataclasses.astuple(region)
    )


def test_a_plan_for_another_number_of_ranks_is_made_anew_and_one_of_another_model_refused() -> None:
    text = written_plan(derived("gpt2"))
    assert read_plan(text, find_blocks(build("gpt2")), 4) is None
    with pytest.raises(MethodRefusedError, match="must be one for this model"):
        read_plan(text, find_blocks(build("llama")), 2)
    with pytest.raises(MethodRefusedError, match="and the model 4"):
        read_plan(text, find_blocks(training_of("gpt2").model), 2)
    with pytest.raises(MethodRefusedError, match="must be one for this model"):
        read_plan("no plan", find_blocks(build("gpt2")), 2)


def test_it_is_judged_by_what_the_probe_found_for_as_many_devices() -> None:
    training = training_of("gpt2", dropout=0.0)
    before = {name: one.clone() for name, one in training.model.state_dict().items()}
    found = get_method("tensor_parallel").facts_of(training, text(2), (2, 3, 8))
    assert all(torch.equal(one, before[name]) for name, one in training.model.state_dict().items())
    assert 0.5 < found["tensor_degrees"][2] < 1.0
    assert "cannot share evenly" in found["tensor_refusals"][3]
    assert "mlp" not in found["tensor_whole"].get(2, "")
    assert "heads" in found["tensor_whole"][8], "four heads cannot be shared by eight, but the MLP can"
    refusals = {2: "the tokens cannot be divided"}
    facts = facts_of(
        "gpt2", **{**found, "sequence_refusals": refusals, "vocabulary_refusals": {4: "rows cannot be shared"}}
    )

    def reason(setting: Any, degree: int) -> str:
        verdict = judge(
            (setting,),
            facts=facts,
            hardware=cpu(),
            gpu_count=degree,
            mesh=Mesh(tensor=degree),
        )
        return "" if verdict.applicable else verdict.reason

    assert reason(WHOLE, 2) == ""
    assert "the tokens cannot be divided" in reason(SPLIT, 2)
    assert "cannot share evenly" in reason(WHOLE, 3)
    assert "rows cannot be shared" in reason(SLICED_VOCABULARY, 4)
    odd = facts_of("gpt2", tokens_per_sample=31)
    assert "cannot share 31 evenly" in get_method("tensor_parallel").why_not_on(SPLIT.parameters, Mesh(tensor=2), odd)
    assert get_method("tensor_parallel").why_not_on(WHOLE.parameters, Mesh(tensor=2), odd) == ""


@pytest.mark.parametrize("other", ["muon", "adafactor"])
def test_optimizers_that_look_at_whole_matrices_are_in_conflict(other: str) -> None:
    assert "whole" in (conflict_between((use(other), SPLIT)) or "")


def test_a_loss_in_chunks_is_in_conflict_with_a_sliced_output_layer_alone() -> None:
    chunked = use("chunked_cross_entropy", chunks=8)
    assert "slice" in (conflict_between((chunked, SLICED_VOCABULARY)) or "")
    assert conflict_between((chunked, SPLIT)) is None


def test_a_model_without_blocks_cannot_be_sliced() -> None:
    training = Training(torch.nn.Linear(4, 4))
    found = get_method("tensor_parallel").facts_of(training, torch.zeros(2, 4), (2,))
    assert "no repeated blocks" in found["tensor_refusals"][2]


def test_the_plan_of_the_probe_is_what_a_training_would_settle_on() -> None:
    training = training_of("gpt2", dropout=0.0)
    method = get_method("tensor_parallel")
    facts = facts_of("gpt2", **method.facts_of(training, text(2), (2, 4)), linear_head=True)
    parameters = dict(SLICED_VOCABULARY.parameters)
    settled = method.settled_by(parameters, Mesh(tensor=2), facts)
    assert settled is not None
    written = msgspec.json.decode(settled, type=dict[str, Any])
    assert written["sliced_loss"] is True
    blocks = find_blocks(training.model)
    plan = read_plan(msgspec.json.encode(written["plan"]), blocks, 2)
    assert plan is not None
    assert written_plan(plan) == written_plan(derive(training.model, blocks, lambda model: model(**text(2)).loss, 2))
    assert method.settled_by({**parameters, "vocabulary": False}, Mesh(tensor=2), facts).endswith(
        '"sliced_loss":false}'
    )
    assert method.settled_by(parameters, Mesh(tensor=8), facts) is None
