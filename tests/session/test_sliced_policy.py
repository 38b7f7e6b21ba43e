"""A policy by hand that divides layers is predicted by a plan that one plain step finds, or refused with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.errors import MethodRefusedError
from advisor.predict.prediction import Category
from advisor.session.predict import PredictRequest, run_prediction
from advisor.workload.source import resolve_source

pytestmark = pytest.mark.slow

MODEL = """\
import torch
from transformers import GPT2Config, GPT2LMHeadModel

BATCH_SIZE = 4


def build_model():
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 64, "n_positions": 32}
    return GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))


def make_batch(batch_size):
    tokens = torch.randint(64, (batch_size, 32))
    return {"input_ids": tokens, "labels": tokens}
"""


@pytest.fixture
def request_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PredictRequest:
    monkeypatch.setenv("MOMADVISE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.py").write_text(MODEL)
    return PredictRequest(
        source=resolve_source(tmp_path / "model.py"), policy_file=tmp_path / "policy.yaml", device="cpu"
    )


def write_policy(request: PredictRequest, degree: int) -> None:
    assert request.policy_file is not None
    request.policy_file.write_text(
        "schema: 1\npolicy:\n  methods: {tensor_parallel: {sequence: false, vocabulary: false}}\n  micro_batch: 4\n"
        f"  gpu_count: {degree}\n  mesh: {{tensor: {degree}}}\n"
    )


def test_a_plan_that_nobody_has_found_is_found_by_one_step(request_of: PredictRequest) -> None:
    write_policy(request_of, 2)
    found = run_prediction(request_of, lambda text: None)
    assert any(note.startswith("How layers are divided was found by one plain step") for note in found.notes)
    blocks, others = 2 * (4 * 64 * 64 + 2 * 64 * 256), 64 * 64 + 32 * 64
    biases_and_norms = 2 * (3 * 64 + 64 + 256 + 64 + 4 * 64) + 2 * 64
    parameters = found.asked.parts[Category.PARAMETERS]
    assert 4 * (blocks // 2 + others) < parameters < 4 * (blocks // 2 + others + biases_and_norms)


def test_a_number_of_devices_that_cannot_divide_it_is_refused(request_of: PredictRequest) -> None:
    write_policy(request_of, 3)
    with pytest.raises(MethodRefusedError, match="has 64 inputs, which 3 ranks cannot share evenly"):
        run_prediction(request_of, lambda text: None)
