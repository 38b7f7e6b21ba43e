"""What each method does with the two small models on a CPU, where that is not simply: it applies and has an effect.

Written by hand and never derived from the methods: it is what the suites hold them to. Keys are a method's name, or
the label of one of its settings, which goes before the name.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from advisor.methods.setting import MethodSetting

__all__ = ["Expected", "expected", "unable"]


@dataclass(frozen=True)
class Expected:
    """What is expected of a method, or of one of its settings.

    Attributes:
        refused: Model -> words of the reason for which it cannot be applied.
        known_by_facts: Model -> words of the reason for which it is not judged applicable, by what a probe saw and
            applying it alone cannot know.
        not_on_cpu: Words of the reason for which it is not judged applicable on a CPU, although applying it there
            works (to see that it is right).
        no_effect: Models in which it finds nothing to do and says so.
        same_bits: Models in which it changes nothing in two steps although it is not exact.
        slow: Models with which it takes seconds.
        optimizer_share: Most that is left of the optimizer's state where it lowers that.
        samples: In a batch: more, at the price of time, for what moves only tensors of a mebibyte or is coarse.
    """

    refused: dict[str, str] = field(default_factory=dict)
    known_by_facts: dict[str, str] = field(default_factory=dict)
    not_on_cpu: str = ""
    no_effect: tuple[str, ...] = ()
    same_bits: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    samples: int = 2
    optimizer_share: float = 0.6


BOTH = ("gpt2", "convnet")

EXPECTED = {
    "adam_low_bit(state=fp8)": Expected(samples=8),  # smaller gradients are lost in its coarser steps
    "attention_backend(kernel=cudnn)": Expected(refused=dict.fromkeys(BOTH, "NVIDIA")),
    "attention_backend(kernel=efficient)": Expected(refused=dict.fromkeys(BOTH, "NVIDIA")),
    "attention_backend(kernel=flash)": Expected(
        known_by_facts={"convnet": "never calls"},
        no_effect=BOTH,  # without dropout, torch chooses it on a CPU
        same_bits=BOTH,
    ),
    "attention_backend(kernel=math)": Expected(
        known_by_facts={"convnet": "never calls"},
        no_effect=("convnet",),
        same_bits=("convnet",),
    ),
    "channels_last": Expected(refused={"gpt2": "no convolution"}),
    "chunked_cross_entropy": Expected(refused={"convnet": "linear_head"}),
    "compile(scope=model)": Expected(slow=BOTH),
    "expandable_segments": Expected(refused=dict.fromkeys(BOTH, "CUDA")),
    "few_bit_activation": Expected(refused={"convnet": "neither GELU nor SiLU"}),
    "float8": Expected(not_on_cpu="CPU", no_effect=BOTH, same_bits=BOTH),
    "host_optimizer": Expected(not_on_cpu="CPU", same_bits=BOTH),
    # Tests run with a single thread, on a machine that says it has two cores.
    "intraop_threads": Expected(known_by_facts=dict.fromkeys(BOTH, "no more than 2"), no_effect=BOTH, same_bits=BOTH),
    "intraop_threads(count=1)": Expected(no_effect=BOTH, same_bits=BOTH),
    "lora(rank=32)": Expected(refused={"convnet": "lower rank"}),
    "muon": Expected(
        refused={"convnet": "no parameter that is a trained matrix"},
        optimizer_share=0.7,  # of one moment in place of two, for two thirds of the parameters
    ),
    "overlapped_swap": Expected(not_on_cpu="CPU", samples=8),
    "overlapped_swap(ahead=0.1, min_bytes=16777216)": Expected(not_on_cpu="CPU", no_effect=BOTH, samples=8),
    "overlapped_swap(ahead=0.25, min_bytes=16777216)": Expected(not_on_cpu="CPU", no_effect=BOTH, samples=8),
    "precision(dtype=tf32)": Expected(refused=dict.fromkeys(BOTH, "NVIDIA")),
    "qlora": Expected(refused={"convnet": "lower rank"}),
    "selective_checkpoint(recompute=attention)": Expected(refused={"convnet": "no attention"}),
    "swap": Expected(not_on_cpu="CPU", samples=8),
    "swap(min_bytes=16777216)": Expected(not_on_cpu="CPU", no_effect=BOTH, samples=8),
}


def expected(setting: MethodSetting) -> Expected:
    """What is expected of one setting."""
    return EXPECTED.get(setting.label) or EXPECTED.get(setting.name) or Expected()


def unable(model: str, setting: MethodSetting) -> bool:
    """Whether a setting has nothing to show with a model: it is refused, or has no effect."""
    one = expected(setting)
    return model in (*one.refused, *one.no_effect)
