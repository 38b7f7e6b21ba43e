"""Methods asked for by name: nothing else is tried, and one that cannot apply is refused with its reason."""

from __future__ import annotations

import pytest

from advisor.errors import MethodRefusedError, SearchSpaceError
from advisor.goal import Fidelity
from advisor.search.space.build_space import build_space
from advisor.search.space.requested_methods import check_requested, check_requested_on, only_methods
from advisor.search.space.space_file import load_space
from tests.methods.tiny import cpu, facts_of

DEFAULT = load_space("default")


def test_the_space_holds_what_was_asked_for_and_what_several_devices_need() -> None:
    space = only_methods(DEFAULT, ["checkpoint", "optimizer_in_backward"])
    assert set(space.methods) == {
        "checkpoint",
        "optimizer_in_backward",
        "ddp",
        "zero_1",
        "fsdp",
        "gradient_compression",
    }
    assert space.methods["checkpoint"] == DEFAULT.methods["checkpoint"]
    assert set(only_methods(DEFAULT, ["ddp"]).methods) == {"ddp"}


def test_a_method_that_the_space_lacks_is_tried_at_all_that_it_declares() -> None:
    exact = load_space("exact")
    assert "adam_8bit" not in exact.methods
    space = only_methods(exact, ["adam_8bit"])
    resolved = build_space(space, facts_of("gpt2"), cpu(), Fidelity.LOSSY)
    assert [axis.method for axis in resolved.axes] == ["adam_8bit"]


def test_all_of_them_together_are_tried_first() -> None:
    space = only_methods(DEFAULT, ["optimizer_in_backward", "checkpoint"])
    resolved = build_space(space, facts_of("gpt2"), cpu())
    first = resolved.recipes[0]
    assert first.name == "asked for"
    assert [setting.name for setting in first.settings] == ["checkpoint", "optimizer_in_backward"]
    alone = [
        [setting.name for setting in recipe.settings] for recipe in resolved.recipes[1:] if len(recipe.settings) == 1
    ]
    assert ["checkpoint"] in alone
    assert ["optimizer_in_backward"] in alone


def test_recipes_are_tried_without_what_they_can_do_without() -> None:
    """Seen: all recipes for CPUs may set threads, so that none was tried, and what goes together was not found."""

    def recipes(*names: str) -> dict[tuple[str, ...], bool]:
        resolved = build_space(only_methods(DEFAULT, names), facts_of("gpt2"), cpu())
        return {tuple(setting.name for setting in one.settings): one.hand_tuned for one in resolved.recipes}

    tried = recipes("compress_activations", "precision", "fused_optimizer", "retain_freed_memory")
    assert tried["fused_optimizer", "precision", "retain_freed_memory"], "the hand-tuned default"
    assert not tried["fused_optimizer", "retain_freed_memory"]
    part = recipes("compress_activations", "fused_optimizer", "retain_freed_memory", "optimizer_in_backward")
    assert not any(part.values()), "a part of the hand-tuned default is not that default"
    assert ("fused_optimizer", "retain_freed_memory") in part
    assert ("precision", "retain_freed_memory") in recipes("precision", "retain_freed_memory", "muon")
    assert ("optimizer_in_backward", "retain_freed_memory") in part


def test_what_no_mesh_has_a_place_for_is_refused_with_the_reason_of_the_mesh() -> None:
    facts = facts_of("gpt2", staged_blocks=3)
    resolved = build_space(only_methods(DEFAULT, ["pipeline"]), facts, cpu(), gpu_counts=(1, 2))
    reason = "pipeline axis of 2: each of 2 stages must have 2 blocks or more, and the model has 3"
    with pytest.raises(SearchSpaceError, match=f"pipeline does not: {reason}"):
        check_requested(["pipeline"], resolved)


def test_a_name_that_does_not_exist_is_told_with_those_that_do() -> None:
    with pytest.raises(MethodRefusedError, match="Did you mean 'checkpoint'"):
        only_methods(DEFAULT, ["chekpoint"])


def test_what_the_machine_cannot_do_is_refused_before_anything_runs() -> None:
    check_requested_on(["checkpoint"], cpu())
    with pytest.raises(SearchSpaceError, match=r"swap does not: the device is a CPU.*momadvise methods swap"):
        check_requested_on(["checkpoint", "swap"], cpu())


@pytest.mark.parametrize(
    ("name", "ceiling", "reason"),
    [
        ("chunked_cross_entropy", None, "linear_head"),
        ("adam_8bit", Fidelity.EXACT, "at most exact is allowed"),
        ("ddp", None, "for several devices"),
    ],
)
def test_what_the_model_does_not_allow_is_refused_before_any_trial(
    name: str, ceiling: Fidelity | None, reason: str
) -> None:
    resolved = build_space(only_methods(DEFAULT, [name]), facts_of("convnet"), cpu(), ceiling)
    with pytest.raises(SearchSpaceError, match=reason):
        check_requested([name], resolved)
