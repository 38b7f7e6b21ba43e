"""The memory figure on the CPU against the profiler's own sum of allocations, on real architectures.

Widths are reduced for speed where several batches are tried; the architectures are those of transformers, and those
of the examples in full size close the file. The reference runs with nothing of ours:
the whole life of a training inside the profiler, the peak read off its allocation events in the second step.
"""

from __future__ import annotations

import copy
import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function

from advisor.training.training import Training
from tests.measure.tiny import meter

_TEXT = {"vocab_size": 2048}


def gpt2() -> torch.nn.Module:
    import transformers

    sizes = {"n_embd": 128, "n_layer": 3, "n_head": 4, "use_cache": False, "bos_token_id": 0, "eos_token_id": 0}
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **_TEXT))


def bert() -> torch.nn.Module:
    import transformers

    sizes = {"hidden_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 512}
    return transformers.BertForMaskedLM(transformers.BertConfig(**sizes, **_TEXT))


def resnet() -> torch.nn.Module:
    import transformers

    sizes = {"depths": [2, 2, 2, 2], "hidden_sizes": [32, 64, 128, 256], "embedding_size": 32}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=10, **sizes))


def text(samples: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 2048, (samples, 64))
    return {"input_ids": tokens, "labels": tokens.clone()}


def images(samples: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(samples, 3, 64, 64), "labels": torch.randint(0, 10, (samples,))}


def measured_peak(build: Callable[[], torch.nn.Module], make: Callable[[int], Any], samples: int) -> int:
    memory_meter = meter()
    training = Training(build())
    batch = make(samples)
    training.step(batch)
    return memory_meter.measured_step(training, batch)[1].peak_bytes


def profiler_peak(build: Callable[[], torch.nn.Module], make: Callable[[int], Any], samples: int) -> int:
    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        training = Training(build())
        batch = make(samples)
        training.step(batch)
        gc.collect()
        with record_function("second step begins"):
            pass
        training.step(batch)
        with record_function("second step ends"):
            pass
    begin = end = 0
    allocations = []
    pending = list(profiler.profiler.kineto_results.experimental_event_tree())  # type: ignore[union-attr]
    while pending:
        event = pending.pop()
        if event.typed[0] == _EventType.Allocation:
            allocations.append((event.start_time_ns, event.typed[1].alloc_size))
        begin = event.start_time_ns if event.name == "second step begins" else begin
        end = event.start_time_ns if event.name == "second step ends" else end
        pending.extend(event.children)
    live = peak = 0
    for moment, size in sorted(allocations, key=lambda allocation: allocation[0]):
        live += size
        if begin <= moment <= end:
            peak = max(peak, live)
    return peak


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # transformers and the profiler have some of their own
@pytest.mark.parametrize("samples", [1, 2, 16])
@pytest.mark.parametrize(("build", "make"), [(gpt2, text), (bert, text), (resnet, images)])
def test_the_peak_agrees_with_the_profiler_within_1_percent(
    build: Callable[[], torch.nn.Module], make: Callable[[int], Any], samples: int
) -> None:
    assert measured_peak(build, make, samples) == pytest.approx(profiler_peak(build, make, samples), rel=0.01)


def full_gpt2() -> torch.nn.Module:
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config(use_cache=False))


def full_bert() -> torch.nn.Module:
    import transformers

    return transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=20))


def full_resnet() -> torch.nn.Module:
    import transformers

    return transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=1000))


def short_text(samples: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(0, 256, (samples, 32))
    return {"input_ids": tokens, "labels": tokens.clone()}


def snippets(samples: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(1000, 1256, (samples, 32))
    return {
        "input_ids": tokens,
        "attention_mask": torch.ones_like(tokens),
        "labels": torch.randint(0, 20, (samples,)),
    }


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("build", "make"), [(full_gpt2, short_text), (full_bert, snippets), (full_resnet, images)], ids=lambda f: f.__name__
)
def test_the_peak_agrees_on_the_examples_architectures_in_full_size(
    build: Callable[[], torch.nn.Module], make: Callable[[int], Any]
) -> None:
    """Each takes 4 to 20 s on one busy core, most of it to fill a gigabyte and a half for the first time, twice."""
    original = build()  # initialized once: it lies outside of both measurements
    copied = functools.partial(copy.deepcopy, original)
    assert measured_peak(copied, make, 1) == pytest.approx(profiler_peak(copied, make, 1), rel=0.01)
