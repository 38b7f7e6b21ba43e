"""Chunked cross entropy: equal to the plain loss where that is proven, refused where it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings
from advisor.methods.kernels._linear_head import chunked_loss, exposes_linear_head, find_linear_head
from advisor.methods.setting import use
from advisor.training.training import Training
from tests.methods.test_out_of_memory import ON_A_MIG_INSTANCE
from tests.methods.tiny import VOCABULARY, adamw, convnet, gpt2, images, text

SIZES = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": VOCABULARY,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))


def capped() -> nn.Module:
    return transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(num_key_value_heads=2, head_dim=16, final_logit_softcapping=30.0, **SIZES)
    )


def scaled() -> nn.Module:
    return transformers.CohereForCausalLM(transformers.CohereConfig(logit_scale=0.0625, **SIZES))


class Tagger(nn.Module):
    """A model with a linear head of its own, and optionally something added to its loss."""

    def __init__(self, penalty: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh())
        self.head = nn.Linear(16, 5)
        self.penalty = penalty

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = functional.cross_entropy(self.head(self.body(inputs)), targets)
        return loss + self.penalty * self.head.weight.square().sum()


def tagger_head(model: Any, batch: Any) -> Any:
    return model.body(batch[0]), model.head.weight, model.head.bias, batch[1]


TAGS = torch.randn(24, 8, generator=torch.Generator().manual_seed(0)), torch.arange(24) % 5


class TestChunkedLoss:
    @pytest.mark.parametrize("chunks", [1, 3, 8, 1000])
    def test_loss_and_gradients_equal_plain_cross_entropy(self, chunks: int) -> None:
        torch.manual_seed(0)
        inputs = [torch.randn(*shape, requires_grad=True) for shape in ((2, 5, 6), (7, 6), (7,))]
        targets = torch.randint(0, 7, (2, 5))
        targets[0, 2:] = -100
        hidden, weight, bias = inputs
        plain = functional.cross_entropy(functional.linear(hidden, weight, bias).flatten(0, 1), targets.flatten())
        chunked = chunked_loss(hidden, weight, bias, targets, chunks=chunks)
        torch.testing.assert_close(chunked, plain)
        for a, b in zip(torch.autograd.grad(chunked, inputs), torch.autograd.grad(plain, inputs), strict=True):
            torch.testing.assert_close(a, b)

    def test_no_chunk_keeps_its_logits_for_the_backward_pass(self) -> None:
        saved: list[int] = []
        hidden = torch.randn(64, 4, requires_grad=True)
        weight = torch.randn(1000, 4, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
            chunked_loss(hidden, weight, None, torch.zeros(64, dtype=torch.long), chunks=8)
        assert max(saved) <= weight.numel()
        assert not [size for size in saved if size == 64 // 8 * 1000]


class TestProof:
    @pytest.mark.parametrize("build", [gpt2, llama], ids=["tied", "untied"])
    def test_plain_causal_language_models_are_trusted(self, build: Any) -> None:
        trusted, reason = exposes_linear_head(Training(build()), text(2, 16))
        assert trusted, reason

    @pytest.mark.parametrize("build", [capped, scaled], ids=["soft-capped", "scaled"])
    def test_models_that_change_their_logits_are_not(self, build: Any) -> None:
        trusted, reason = exposes_linear_head(Training(build()), text(2, 16))
        assert not trusted
        assert "may cap, scale or add" in reason

    def test_a_workloads_own_head_is_trusted_when_the_numbers_agree(self) -> None:
        assert exposes_linear_head(Training(Tagger(), linear_head=tagger_head), TAGS)[0]
        assert not exposes_linear_head(Training(Tagger(penalty=0.01), linear_head=tagger_head), TAGS)[0]

    def test_an_error_in_the_workloads_head_is_the_reason(self) -> None:
        trusted, reason = exposes_linear_head(Training(Tagger(), linear_head=lambda m, b: m.nonsense), TAGS)
        assert not trusted
        assert "nonsense" in reason

    def test_memory_that_runs_out_says_nothing_about_the_head(self) -> None:
        def head(model: Any, batch: Any) -> Any:
            raise ON_A_MIG_INSTANCE

        with pytest.raises(RuntimeError) as caught:
            exposes_linear_head(Training(Tagger(), linear_head=head), TAGS)
        assert caught.value is ON_A_MIG_INSTANCE

    def test_nothing_is_left_behind(self) -> None:
        training = Training(gpt2())
        before = {name: tensor.clone() for name, tensor in training.model.state_dict().items()}
        torch.manual_seed(5)
        random = torch.get_rng_state()
        exposes_linear_head(training, text(2, 16))
        assert all(torch.equal(tensor, before[name]) for name, tensor in training.model.state_dict().items())
        assert torch.equal(torch.get_rng_state(), random)
        assert all(parameter.grad is None for parameter in training.model.parameters())


class TestRefusals:
    @pytest.mark.parametrize(
        ("training", "reason"),
        [
            (lambda: Training(convnet()), "not a transformers causal language model"),
            (lambda: Training(gpt2(), compute_loss=lambda model, batch: model(**batch).loss), "own compute_loss"),
        ],
    )
    def test_the_reason_names_the_way_out(self, training: Any, reason: str) -> None:
        with pytest.raises(MethodRefusedError, match=reason) as caught:
            find_linear_head(training())
        assert "linear_head(model, batch)" in str(caught.value)

    def test_an_output_layer_of_another_class_is_refused(self) -> None:
        class Odd(nn.Linear):
            pass

        model: Any = gpt2()
        model.set_output_embeddings(Odd(64, VOCABULARY, bias=False))
        with pytest.raises(MethodRefusedError, match="is Odd, not a plain"):
            find_linear_head(Training(model))

    def test_a_batch_that_does_not_fit_is_an_answer_not_a_crash(self) -> None:
        trusted, reason = exposes_linear_head(Training(gpt2()), images(2))
        assert not trusted
        assert "mapping with labels" in reason


def test_micro_batches_still_weigh_by_targets_after_the_loss_was_replaced() -> None:
    batch = text(4, 16)
    batch["labels"][1:, 3:] = -100
    states = []
    for options, settings in (({}, []), ({"micro_batch": 1}, [use("chunked_cross_entropy", chunks=8)])):
        training = Training(gpt2(dropout=0.0), build_optimizer=adamw, **options)
        apply_settings(training, settings)
        states.append(float(training.step(batch)))
    assert states[1] == pytest.approx(states[0], rel=1e-6)
