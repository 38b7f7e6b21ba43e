from __future__ import annotations

import random
from pathlib import Path

import msgspec
import pytest

from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.hardware.rates import Bandwidth, DeviceRates
from advisor.methods.compose import judge, worst_fidelity
from advisor.methods.process.glibc import why_no_mallopt
from advisor.methods.setting import use
from advisor.search.propose.initial_trials import seeds_of
from advisor.search.space.build_space import build_space
from advisor.search.space.requested_methods import only_methods
from advisor.search.space.space import Combination, ResolvedSpace
from advisor.search.space.space_file import SearchSpace, load_space
from advisor.workload.facts import Facts
from tests.methods.tiny import facts_of

GIB = 2**30

FACTS = Facts(
    model_class="GPT2LMHeadModel",
    parameter_count=124_000_000,
    parameter_bytes=496_000_000,
    trainable_parameter_count=124_000_000,
    buffer_bytes=0,
    block_class="GPT2Block",
    block_count=12,
    attention_count=12,
    has_batchnorm=False,
    has_dropout=True,
    optimizer_class="torch.optim.adamw.AdamW",
    optimizer_options={"amsgrad": False},
    max_grad_norm=None,
    custom_loss=False,
    linear_head=True,
    linear_head_reason="the model's own output layer",
    tokens_per_sample=1024,
    default_batch=8,
    first_loss=10.8,
    torch_version="2.13.0",
    libraries={"bitsandbytes": "0.50.0"},
)

CPU = Hardware(
    kind=DeviceKind.CPU,
    device="cpu",
    name="a CPU",
    memory_bytes=16 * GIB,
    free_bytes=12 * GIB,
    host_memory_bytes=16 * GIB,
    host_free_bytes=12 * GIB,
    host_cores=2,
)

H100 = msgspec.structs.replace(
    CPU, kind=DeviceKind.CUDA, device="cuda:0", name="NVIDIA H100", compute_capability=(9, 0), free_bytes=79 * GIB
)

V100 = msgspec.structs.replace(H100, name="Tesla V100", compute_capability=(7, 0))


needs_glibc = pytest.mark.skipif(bool(why_no_mallopt()), reason="freed memory is kept by glibc's mallopt")


def space(folder: Path, methods: str, recipes: str = "[]", fidelity: str = "lossy") -> SearchSpace:
    path = folder / "mine.yaml"
    path.write_text(f"schema: 1\nname: mine\nfidelity: {fidelity}\nmethods: {methods}\nrecipes: {recipes}\n")
    return load_space(str(path))


def axes(resolved: ResolvedSpace) -> dict[str, list[str]]:
    return {axis.method: [setting.label for setting in axis.settings] for axis in resolved.axes}


def test_only_listed_methods_and_values_become_axes(tmp_path: Path) -> None:
    resolved = build_space(space(tmp_path, "{checkpoint: {every: [1, 4]}, optimizer_in_backward: {}}"), FACTS, CPU)
    assert axes(resolved) == {
        "checkpoint": ["checkpoint(every=1)", "checkpoint(every=4)"],
        "optimizer_in_backward": ["optimizer_in_backward"],
    }
    assert resolved.count == 6
    assert resolved.refused == {}


def test_a_refused_setting_is_listed_with_its_reason_and_the_others_stay(tmp_path: Path) -> None:
    resolved = build_space(space(tmp_path, "{precision: {}}"), FACTS, V100)
    assert axes(resolved) == {"precision": ["precision(dtype=fp16)"]}
    assert set(resolved.refused) == {"precision(dtype=bf16)", "precision(dtype=tf32)"}
    assert resolved.refused["precision(dtype=bf16)"].startswith("bf16 needs compute capability 8.0")


def test_a_method_of_which_every_setting_is_refused_is_listed_once(tmp_path: Path) -> None:
    without_blocks = msgspec.structs.replace(FACTS, block_class=None, block_count=0)
    resolved = build_space(space(tmp_path, "{checkpoint: {}}"), without_blocks, CPU)
    assert axes(resolved) == {}
    assert list(resolved.refused) == ["checkpoint"]
    assert resolved.count == 1


def test_what_is_beyond_the_fidelity_ceiling_is_refused(tmp_path: Path) -> None:
    wide = space(tmp_path, "{precision: {}, checkpoint: {every: [1]}}")
    assert set(axes(build_space(wide, FACTS, H100))) == {"precision", "checkpoint"}
    exact = build_space(wide, FACTS, H100, Fidelity.EXACT)
    assert set(axes(exact)) == {"checkpoint"}
    assert exact.refused == {"precision": "its fidelity is precision, and at most exact is allowed"}
    assert exact.fidelity is Fidelity.EXACT


def test_the_users_ceiling_may_also_raise_the_spaces_own(tmp_path: Path) -> None:
    narrow = space(tmp_path, "{precision: {dtype: [bf16]}}", fidelity="exact")
    assert axes(build_space(narrow, FACTS, H100)) == {}
    assert set(axes(build_space(narrow, FACTS, H100, Fidelity.PRECISION))) == {"precision"}


@pytest.mark.parametrize("hardware", [CPU, V100, H100], ids=lambda hardware: hardware.name)
def test_every_combination_is_one_that_its_methods_accept_and_no_other_is_missing(hardware: Hardware) -> None:
    """Conflicts are asked pair by pair; this holds them against the judgement of whole combinations."""
    resolved = build_space(load_space("default"), FACTS, hardware)
    assert next(iter(resolved.combinations())).settings == ()
    generator = random.Random(0)
    axes = [(None, *axis.settings) for axis in resolved.axes]
    drawn = [one.settings for one in (resolved.draw(generator) for _ in range(75)) if one is not None]
    found = set()
    for chosen in (*([generator.choice(axis) for axis in axes] for _ in range(75)), *drawn):
        settings = tuple(sorted((one for one in chosen if one is not None), key=lambda one: one.name))
        accepted = judge(settings, facts=FACTS, hardware=hardware).applicable
        assert accepted == resolved.accepts(Combination(settings))
        assert accepted == (resolved.conflict_in(settings) is None)
        assert accepted or settings not in drawn
        assert Fidelity.LOSSY.allows(worst_fidelity(settings, accumulation_steps=1, facts=FACTS))
        found.add(accepted)
    assert found == {True, False}


def test_a_recipe_is_filled_in_with_the_first_value_of_the_space(tmp_path: Path) -> None:
    recipes = "[{name: block by block, methods: {checkpoint: {}, precision: {dtype: bf16}}}]"
    resolved = build_space(space(tmp_path, "{checkpoint: {every: [4, 2]}, precision: {}}", recipes), FACTS, H100)
    assert resolved.recipes[0].settings == (use("checkpoint", every=2), use("precision", dtype="bf16"))
    assert resolved.recipes[0].notes == ()


def test_a_recipe_with_a_refused_part_is_dropped_with_the_reason(tmp_path: Path) -> None:
    recipes = "[{name: lower, methods: {precision: {dtype: bf16}, checkpoint: {every: 1}}}]"
    resolved = build_space(space(tmp_path, "{checkpoint: {}, precision: {}}", recipes), FACTS, V100)
    assert resolved.recipes == ()
    assert resolved.dropped_recipes["lower"].startswith("precision: bf16 needs compute capability 8.0")


def test_the_hand_tuned_recipe_keeps_what_applies_and_says_what_it_left_out(tmp_path: Path) -> None:
    recipes = "[{name: tuned, hand_tuned: true, methods: {precision: {dtype: bf16}, checkpoint: {every: 1}}}]"
    resolved = build_space(space(tmp_path, "{checkpoint: {}, precision: {}}", recipes), FACTS, V100)
    assert resolved.recipes[0].settings == (use("checkpoint", every=1),)
    assert resolved.recipes[0].hand_tuned
    assert resolved.recipes[0].notes[0].startswith("without precision: bf16 needs")


def test_an_optional_part_is_left_out_where_it_is_refused(tmp_path: Path) -> None:
    recipes = "[{name: r, methods: {precision: {dtype: bf16}, checkpoint: {every: 1}}, optional: [precision]}]"
    mine = space(tmp_path, "{checkpoint: {}, precision: {}}", recipes)
    both = (use("checkpoint", every=1), use("precision", dtype="bf16"))
    assert [build_space(mine, FACTS, one).recipes[0].settings for one in (H100, V100)] == [both, both[:1]]
    assert build_space(mine, FACTS, V100).recipes[0].notes == ()


def test_compiled_blocks_are_tried_early_on_a_gpu_and_last_of_all_recipes_on_a_cpu() -> None:
    """Also where half precision is not for the device. On a CPU compiling takes the time of several other recipes."""
    on_gpu, on_cpu = (
        [
            [setting.name for setting in one.settings]
            for one in build_space(load_space("default"), facts, device).recipes
        ]
        for facts, device in ((FACTS, H100), (at(bfloat16=1e9, float16=1e9), CPU))
    )
    assert ["compile", "fused_optimizer", "precision"] in on_gpu[:6]
    assert on_cpu[-1] == ["compile", "fused_optimizer", "retain_freed_memory"]
    assert not any("compile" in names for names in on_cpu[:10])


def at(*, float32: float = 163e9, bfloat16: float, float16: float) -> Facts:
    """The facts of a device with these rates of matrix products."""
    rates = {"float32": float32, "bfloat16": bfloat16, "float16": float16}
    return msgspec.structs.replace(FACTS, matmul_flops_per_second=rates)


SLOW_IN_HALF = at(bfloat16=50e9, float16=1e9)
"""A CPU that emulates both: bfloat16 at three tenths of the rate, float16 at less than a hundredth."""

NATIVE_BF16 = at(bfloat16=320e9, float16=1e9)


@needs_glibc
def test_the_hand_tuned_setting_is_what_an_experienced_person_has_on_this_device() -> None:
    def tuned(facts: Facts, hardware: Hardware) -> list[str]:
        (found,) = (one for one in build_space(load_space("default"), facts, hardware).recipes if one.hand_tuned)
        return [setting.label for setting in found.settings]

    assert tuned(SLOW_IN_HALF, CPU) == ["fused_optimizer", "retain_freed_memory"]
    assert tuned(NATIVE_BF16, CPU) == ["fused_optimizer", "precision(dtype=bf16)", "retain_freed_memory"]
    assert tuned(FACTS, H100) == ["compile(scope=blocks)", "fused_optimizer", "precision(dtype=bf16)"]
    assert tuned(FACTS, V100) == ["compile(scope=blocks)", "fused_optimizer", "precision(dtype=fp16)"]


@needs_glibc
def test_the_layout_of_images_is_tried_in_half_precision_and_in_float32() -> None:
    """Kernels differ by both at once: depthwise convolutions gained half in float32, and lost in bf16."""
    facts = msgspec.structs.replace(NATIVE_BF16, module_counts={"torch.nn.Conv2d": 9})
    recipes = [
        {setting.name for setting in one.settings} for one in build_space(load_space("default"), facts, CPU).recipes
    ]
    float32 = {"channels_last", "fused_optimizer", "retain_freed_memory"}
    assert recipes.index(float32) == recipes.index(float32 | {"precision"}) + 1
    assert recipes.index(float32) < 6


@needs_glibc
def test_beside_programs_that_keep_cores_busy_every_recipe_has_the_threads_that_were_fastest() -> None:
    """Trap: with all of two threads a step took ten times as long beside one busy core, whatever else was tried."""

    def threads(**rates: float) -> list[str]:
        numbers = {int(name[1:]): rate for name, rate in rates.items()}
        measured = DeviceRates(
            matmul_flops_per_second={"float32": 1e11},
            bandwidth=Bandwidth.constant(1e10),
            fresh_bandwidth=Bandwidth.constant(1e10),
            thread_rates=numbers,
            measured=True,
        )
        facts = msgspec.structs.replace(NATIVE_BF16, device_rates=measured)
        recipes = build_space(load_space("default"), facts, CPU).recipes
        labels = [[setting.label for setting in one.settings if setting.name == "intraop_threads"] for one in recipes]
        assert all(one == labels[0] for one in labels)
        return labels[0]

    assert threads(_1=7e3, _2=12e3, _4=1e2) == ["intraop_threads(count=2)"]
    assert threads(_1=7e3, _2=12e3, _4=20e3) == [], "on an idle machine all of them"


@pytest.mark.parametrize("name", ["default", "all"])
def test_no_recipe_computes_in_a_format_that_is_slower_than_float32_here(name: str) -> None:
    """Trap: bf16, at three tenths of the rate, was the hand-tuned default, and half of the recipes had it."""
    resolved = build_space(load_space(name), SLOW_IN_HALF, CPU, Fidelity.LOSSY)
    assert not {"precision", "pure_bf16", "half_weights"} & {
        setting.name for one in resolved.recipes for setting in one.settings
    }
    (tuned,) = (one for one in resolved.recipes if one.hand_tuned)
    (note,) = (note for note in tuned.notes if "precision" in note)
    assert "more slowly in bfloat16: 50 GFLOP/s, against 163 in float32" in note
    assert "only emulates float16" in note


def test_such_a_format_stays_in_the_search_for_its_memory_and_is_expected_to_take_longest() -> None:
    resolved = build_space(load_space("default"), SLOW_IN_HALF, CPU)
    assert axes(resolved)["precision"] == ["precision(dtype=bf16)"]
    assert "precision(dtype=fp16)" in resolved.refused
    assert max(resolved.time_ratios, key=resolved.time_ratios.__getitem__) == "precision(dtype=bf16)"
    assert resolved.time_ratios["precision(dtype=bf16)"] > 2


def test_such_a_format_is_tried_first_by_whoever_asks_for_it() -> None:
    asked = only_methods(load_space("default"), ["precision"])
    assert build_space(asked, SLOW_IN_HALF, CPU).recipes[0].settings == (use("precision", dtype="bf16"),)


def test_a_recipe_that_a_dropped_part_makes_equal_to_another_is_not_there_twice(tmp_path: Path) -> None:
    recipes = (
        "[{name: first, methods: {checkpoint: {every: 1}}}, "
        "{name: second, methods: {precision: {dtype: bf16}, checkpoint: {every: 1}}, optional: [precision]}]"
    )
    resolved = build_space(space(tmp_path, "{checkpoint: {}, precision: {}}", recipes), FACTS, V100)
    assert [one.name for one in resolved.recipes] == ["first"]
    assert resolved.dropped_recipes == {"second": "it is the same as 'first' here"}


def test_a_recipe_may_be_for_one_kind_of_device(tmp_path: Path) -> None:
    recipes = (
        "[{name: tuned, device: cuda, hand_tuned: true, methods: {checkpoint: {every: 1}}}, "
        "{name: tuned, device: cpu, hand_tuned: true, methods: {optimizer_in_backward: {}}}]"
    )
    mine = space(tmp_path, "{checkpoint: {}, optimizer_in_backward: {}}", recipes)
    assert [one.settings for one in build_space(mine, FACTS, H100).recipes] == [(use("checkpoint", every=1),)]
    on_cpu = build_space(mine, FACTS, CPU)
    assert [one.settings for one in on_cpu.recipes] == [(use("optimizer_in_backward"),)]
    assert on_cpu.dropped_recipes == {}


@needs_glibc
@pytest.mark.parametrize("model", ["gpt2", "convnet"])
def test_a_dozen_combinations_of_an_ordinary_model_are_tried_on_a_cpu_before_any_is_proposed(model: str) -> None:
    rates = SLOW_IN_HALF.matmul_flops_per_second
    resolved = build_space(load_space("default"), facts_of(model, matmul_flops_per_second=rates), CPU)
    seeds = [combination for _, combination in seeds_of(resolved)]
    assert len({one.label for one in seeds}) == len(seeds) >= 12
    kept = [any(setting.name == "retain_freed_memory" for setting in one.settings) for one in seeds]
    assert kept[1:9] == [True] * 8, "what pays most on a CPU comes first"


def test_a_list_in_a_recipe_means_the_first_that_applies(tmp_path: Path) -> None:
    recipes = "[{name: tuned, methods: {precision: {dtype: [bf16, fp16]}}}]"
    mine = space(tmp_path, "{precision: {}}", recipes)
    assert build_space(mine, FACTS, H100).recipes[0].settings == (use("precision", dtype="bf16"),)
    assert build_space(mine, FACTS, V100).recipes[0].settings == (use("precision", dtype="fp16"),)


def test_methods_of_a_recipe_that_exclude_each_other_drop_it(tmp_path: Path) -> None:
    recipes = "[{name: both, methods: {optimizer_in_backward: {}, precision: {dtype: fp16}}}]"
    resolved = build_space(space(tmp_path, "{precision: {}, optimizer_in_backward: {}}", recipes), FACTS, H100)
    assert resolved.recipes == ()
    assert "cannot be combined" in resolved.dropped_recipes["both"]


def test_settings_that_one_value_rules_out_are_listed_once() -> None:
    resolved = build_space(load_space("default"), FACTS, CPU, gpu_counts=(1, 2))
    sharded = [label for label in resolved.refused if label.startswith("fsdp")]
    assert sharded == ["fsdp(offload=True)"]
    assert "nowhere to offload to" in resolved.refused["fsdp(offload=True)"]


def test_methods_for_several_devices_are_no_part_of_the_question_on_one() -> None:
    resolved = build_space(load_space("default"), FACTS, CPU)
    assert not {"ddp", "zero_1", "fsdp", "gradient_compression"} & ({*resolved.refused, *axes(resolved)})


@needs_glibc
def test_of_a_slow_format_that_was_asked_for_only_the_recipe_that_asks_has_any() -> None:
    """The hand-tuned default stays what an experienced person has here."""
    space = only_methods(load_space("default"), ["precision", "fused_optimizer", "retain_freed_memory"])
    recipes = build_space(space, SLOW_IN_HALF, CPU).recipes
    tuned = next(one for one in recipes if one.hand_tuned)
    assert [setting.label for setting in tuned.settings] == ["fused_optimizer", "retain_freed_memory"]
    assert "precision" in {setting.name for setting in recipes[0].settings}
    assert recipes[0].name == "asked for"
