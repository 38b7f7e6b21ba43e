"""What a pipeline declares and refuses before anything runs; how stages train is in ``tests/pipeline_parallel``."""

from __future__ import annotations

import msgspec
import pytest

from advisor.hardware.mesh import Mesh
from advisor.methods.compose import conflict_between, judge
from advisor.methods.pipeline.schedule_rules import SCHEDULES
from advisor.methods.setting import MethodSetting, use
from tests.methods.tiny import cpu, facts_of

DDP = use("ddp", bucket_views=True, static_graph=False)


def piped(schedule: str = "1f1b") -> MethodSetting:
    return use("pipeline", schedule=schedule)


def judged(schedule: str, ranks: int = 2, blocks: int = 8, **changes: object) -> str:
    facts = facts_of("gpt2", block_count=blocks, staged_blocks=blocks, staged_reason="", **changes)
    verdict = judge(
        [piped(schedule)], facts=facts, hardware=cpu(), accumulation_steps=8, gpu_count=ranks, mesh=Mesh(pipeline=ranks)
    )
    return "" if verdict.applicable else verdict.reason


def test_it_divides_the_pipeline_axis_alone() -> None:
    assert judged("1f1b") == ""
    verdict = judge([piped(), DDP], facts=None, hardware=cpu(), gpu_count=2, mesh=Mesh(pipeline=2))
    assert "divides the data axis, which has one device" in verdict.reason
    assert judge([piped(), DDP], facts=None, hardware=cpu(), gpu_count=4, mesh=Mesh(pipeline=2)).applicable


def test_every_stage_needs_a_block() -> None:
    assert judged("1f1b", ranks=8) == ""
    assert "the model has 8 for 16 stages" in judged("zero_bubble", ranks=8)


def test_blocks_that_are_no_chain_are_refused_with_what_was_seen() -> None:
    facts = msgspec.structs.replace(facts_of("gpt2"), staged_blocks=0, staged_reason="it skips some")
    verdict = judge([piped()], facts=facts, hardware=cpu(), gpu_count=2, mesh=Mesh(pipeline=2))
    assert "it skips some" in verdict.reason


@pytest.mark.parametrize(
    ("other", "schedules"),
    [
        (use("optimizer_in_backward"), SCHEDULES),
        (use("fsdp", reshard=True, mixed_precision="none", offload=False), ("zero_bubble",)),
        (use("compile", scope="blocks"), ("zero_bubble",)),
        (use("sqrt_checkpoint"), ("interleaved", "zero_bubble")),
        (use("checkpoint", every=1), ()),
        (DDP, ()),
    ],
    ids=lambda one: one.name if isinstance(one, MethodSetting) else "",
)
def test_what_a_schedule_cannot_do_is_a_conflict_with_its_reason(
    other: MethodSetting, schedules: tuple[str, ...]
) -> None:
    found = {schedule: conflict_between([piped(schedule), other]) for schedule in SCHEDULES}
    assert {schedule for schedule, reason in found.items() if reason} == set(schedules)
