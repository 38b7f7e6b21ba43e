"""In a trace transformers makes the attention masks that it makes in a real step with the same batch, and no others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode

from advisor.predict.trace.step_trace import faked
from advisor.predict.trace.transformers_masks import mask_facts, masks_as_with_values

SMALL = {"vocab_size": 11, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
TOKENS = torch.ones(2, 6, dtype=torch.long)
PADDED = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])


def gpt2() -> torch.nn.Module:
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_embd=8, n_head=2, **SMALL))


def bert() -> torch.nn.Module:
    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=16, **SMALL
    )
    return transformers.BertModel(config)


def masked(build: Any, batch: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch, *, fake: bool) -> bool:
    """Whether attention is given a mask in a forward pass, in a trace or with values."""
    seen: list[Any] = []
    plain = torch.nn.functional.scaled_dot_product_attention

    def attention(*args: Any, **kwargs: Any) -> torch.Tensor:
        seen.append(kwargs.get("attn_mask", args[3] if len(args) > 3 else None))
        return plain(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attention)
        if fake:
            mode, facts = FakeTensorMode(), mask_facts(batch)
            with mode:
                model = build()
                with masks_as_with_values(facts):
                    model(**faked(batch, mode))
        else:
            build()(**batch)
    assert len(seen) == 1
    return seen[0] is not None


@pytest.mark.parametrize("build", [gpt2, bert])
@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": TOKENS},
        {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS)},
        {"input_ids": TOKENS, "attention_mask": PADDED},
        {"input_ids": TOKENS, "attention_mask": torch.ones_like(TOKENS), "token_type_ids": torch.zeros_like(TOKENS)},
        {"input_ids": TOKENS, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]] * 2)},
    ],
    ids=["tokens", "nothing padded", "padded", "types", "packed"],
)
def test_a_trace_has_the_masks_of_a_real_step(
    build: Any, batch: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, traced = (masked(build, batch, monkeypatch, fake=fake) for fake in (False, True))
    assert traced == real


def test_what_transformers_decides_on_is_given_back() -> None:
    from transformers import masking_utils

    before = dict(vars(masking_utils))
    with masks_as_with_values(mask_facts({"input_ids": TOKENS})):
        assert dict(vars(masking_utils)) != before
    assert dict(vars(masking_utils)) == before


def test_a_mask_without_a_name_is_known_by_its_values() -> None:
    from transformers import masking_utils

    plain = masking_utils._ignore_causal_mask_sdpa
    for batch, changes in (((TOKENS, PADDED), False), ((TOKENS, torch.full_like(TOKENS, 7)), True)):
        with masks_as_with_values(mask_facts(batch)):
            assert (masking_utils._ignore_causal_mask_sdpa is not plain) == changes
