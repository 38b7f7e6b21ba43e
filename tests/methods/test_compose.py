"""Settings, judgement and composition, as the parent process sees them: without torch and without a model."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.goal import Fidelity
from advisor.hardware.mesh import Mesh
from advisor.methods.catalogue import CATALOGUE, get_method
from advisor.methods.compose import (
    apply_settings,
    fidelity_of,
    judge,
    misplaced,
    settings_of,
    validate_setting,
    worst_fidelity,
)
from advisor.methods.setting import MethodSetting, use
from advisor.workload.facts import Facts
from tests.methods.tiny import cpu, facts_of, gpu, images, training_of

CHECKPOINT = use("checkpoint", every=1)
SELECTIVE = use("selective_checkpoint", recompute="elementwise")
BF16, FP16, TF32 = (use("precision", dtype=dtype) for dtype in ("bf16", "fp16", "tf32"))
IN_BACKWARD = use("optimizer_in_backward")
DDP = use("ddp", bucket_views=True, static_graph=False)
ZERO_1 = use("zero_1")
FSDP = use("fsdp", reshard=True, mixed_precision="none", offload=False)
POWERSGD = use("gradient_compression", hook="powersgd_rank_4")


@pytest.fixture(scope="module")
def facts() -> Facts:
    return facts_of("gpt2")


class TestNames:
    def test_every_method_is_found_by_its_name(self) -> None:
        assert len({method.name for method in CATALOGUE}) == len(CATALOGUE)
        assert all(get_method(method.name) is method for method in CATALOGUE)

    def test_an_unknown_name_gets_the_nearest_and_then_how_to_list_them(self) -> None:
        with pytest.raises(MethodRefusedError) as caught:
            get_method("checkpoints")
        assert str(caught.value) == (
            "There is no method 'checkpoints'. Did you mean 'checkpoint'? `momadvise methods` lists all of them."
        )
        with pytest.raises(MethodRefusedError) as caught:
            get_method("zzz")
        assert str(caught.value) == "There is no method 'zzz'. `momadvise methods` lists all of them."

    def test_settings_are_every_choice_of_every_parameter(self) -> None:
        assert [each.label for each in settings_of(get_method("checkpoint"))] == [
            f"checkpoint(every={every})" for every in (1, 2, 3, 4)
        ]
        assert settings_of(get_method("adam_8bit")) == (use("adam_8bit"),)

    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (use("checkpoint", every=1, deep=True), "checkpoint takes every, but got 'deep'"),
            (use("adam_8bit", bits=8), "takes no parameters, but got 'bits'"),
            (use("checkpoint"), "needs a value for every: one of 1, 2, 3, 4"),
            (use("checkpoint", every=7), "must be one of 1, 2, 3, 4, but got 7"),
            (use("checkpoint", every=True), "must be one of 1, 2, 3, 4, but got True"),
            (use("precision", dtype="fp32"), "must be one of 'bf16', 'fp16', 'tf32', but got 'fp32'"),
        ],
    )
    def test_a_wrong_parameter_lists_the_valid_ones(self, wrong: MethodSetting, message: str) -> None:
        with pytest.raises(MethodRefusedError, match=message):
            validate_setting(wrong)

    def test_the_parent_side_loads_no_torch(self) -> None:
        code = "import sys, advisor.methods.compose; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


class TestJudge:
    def test_no_methods_apply_everywhere(self) -> None:
        assert judge([], facts=None, hardware=cpu()).applicable

    def test_conflicts_hold_in_both_orders(self, facts: Facts) -> None:
        for pair in ([CHECKPOINT, SELECTIVE], [SELECTIVE, CHECKPOINT]):
            verdict = judge(pair, facts=facts, hardware=cpu())
            assert not verdict.applicable
            assert "cannot be combined" in verdict.reason

    def test_a_conflict_may_hold_for_some_values_only(self, facts: Facts) -> None:
        for pair in ([FP16, IN_BACKWARD], [IN_BACKWARD, FP16]):
            assert "float16 must look at all gradients" in judge(pair, facts=facts, hardware=cpu()).reason
        assert judge([BF16, IN_BACKWARD], facts=facts, hardware=cpu()).applicable

    def test_accumulation_is_refused_by_methods_that_need_the_whole_gradient(self, facts: Facts) -> None:
        verdict = judge([IN_BACKWARD], facts=facts, hardware=cpu(), accumulation_steps=2)
        assert "accumulates 2 micro-batches" in verdict.reason
        assert judge([CHECKPOINT], facts=facts, hardware=cpu(), accumulation_steps=2).applicable

    @pytest.mark.parametrize(
        ("changes", "candidate", "reason"),
        [
            ({"block_count": 0}, CHECKPOINT, r"BLOCKS = \(BlockClass,\)"),
            ({"block_count": 2}, use("checkpoint", every=3), "needs at least 3 blocks, but GPT2LMHeadModel has 2"),
            ({"attention_count": 0}, use("selective_checkpoint", recompute="attention"), "no attention modules"),
            ({"block_count": 0}, SELECTIVE, "no repeated blocks"),
            ({"max_grad_norm": 1.0}, IN_BACKWARD, r"clipping \(max_grad_norm=1.0\)"),
            ({"optimizer_class": "torch.optim.lbfgs.LBFGS"}, IN_BACKWARD, "torch.optim.lbfgs.LBFGS"),
            ({"optimizer_class": "mine.Lion"}, IN_BACKWARD, "the optimizer is mine.Lion"),
            ({"optimizer_class": "torch.optim.sgd.SGD"}, use("adam_8bit"), "the optimizer is torch.optim.sgd.SGD"),
            ({"optimizer_options": {"amsgrad": True}}, use("adam_8bit"), "amsgrad=True"),
            ({"libraries": {}}, use("adam_8bit"), r"pip install 'momadvise\[quant\]'"),
            (
                {"libraries": {"bitsandbytes": "error: OSError: libcuda.so\nmore"}},
                use("adam_8bit"),
                "cannot be imported: OSError: libcuda.so$",
            ),
            (
                {"linear_head": False, "linear_head_reason": "it caps its logits"},
                use("chunked_cross_entropy", chunks=8),
                "it caps its logits",
            ),
            (
                {"matmul_flops_per_second": {"float32": 1e11, "bfloat16": 5e9}},
                BF16,
                "only emulates bfloat16: its matrix products ran at 5 GFLOP/s, against 100 in float32",
            ),
        ],
    )
    def test_a_refusal_says_what_is_in_the_way(
        self, facts: Facts, changes: dict[str, Any], candidate: MethodSetting, reason: str
    ) -> None:
        import re

        import msgspec

        verdict = judge([candidate], facts=msgspec.structs.replace(facts, **changes), hardware=cpu())
        assert not verdict.applicable
        assert re.search(reason, verdict.reason), verdict.reason
        assert verdict.reason.startswith(candidate.words)

    def test_a_missing_library_is_noticed_without_facts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert "bitsandbytes is not installed" in judge([use("adam_8bit")], facts=None, hardware=cpu()).reason

    @pytest.mark.parametrize(("capability", "applicable"), [((7, 0), {"fp16"}), ((8, 0), {"fp16", "bf16", "tf32"})])
    def test_formats_follow_the_compute_capability(self, capability: tuple[int, int], applicable: set[str]) -> None:
        verdicts = {
            str(each.parameters["dtype"]): judge([each], facts=None, hardware=gpu(capability))
            for each in (BF16, FP16, TF32)
        }
        assert {dtype for dtype, verdict in verdicts.items() if verdict.applicable} == applicable
        assert all(
            "compute capability 8.0" in verdict.reason for verdict in verdicts.values() if not verdict.applicable
        )

    def test_swapping_applies_where_the_device_has_memory_of_its_own(self) -> None:
        swap = use("swap", min_bytes=2**20)
        assert judge([swap], facts=None, hardware=gpu((8, 0))).applicable
        assert not judge([swap], facts=None, hardware=cpu()).applicable


class TestSeveralDevices:
    @pytest.mark.parametrize("settings", [[DDP], [ZERO_1], [FSDP], [DDP, POWERSGD], [CHECKPOINT, FSDP]])
    def test_one_method_that_distributes_is_needed_there_and_refused_on_one(
        self, settings: list[MethodSetting], facts: Facts
    ) -> None:
        assert judge(settings, facts=facts, hardware=cpu(), gpu_count=2).applicable
        assert "the policy uses one" in judge(settings, facts=facts, hardware=cpu()).reason

    @pytest.mark.parametrize(
        ("settings", "reason"),
        [
            ([CHECKPOINT], "exactly one of ddp, zero_1, fsdp must be in use, but got none"),
            ([DDP, FSDP], "but got ddp.* and fsdp"),
            ([FSDP, POWERSGD], "it works on top of ddp or zero_1"),
            ([DDP, IN_BACKWARD], "optimizer_in_backward: it cannot be used on 2 devices: .*not yet averaged"),
            ([ZERO_1, use("adam_8bit")], "zero_1 cannot be combined with adam_8bit"),
            ([FSDP, use("adam_8bit")], "bitsandbytes' kernels"),
            ([FSDP, use("swap", min_bytes=2**20)], "a CPU|would move both"),
            ([DDP, FP16, POWERSGD], "PowerSGD would carry the overflow on"),
            ([DDP, use("gradient_compression", hook="bf16")], "only NCCL sums bf16"),
            ([use("fsdp", reshard=True, mixed_precision="bf16", offload=False), BF16], "choose one of them"),
            ([use("fsdp", reshard=True, mixed_precision="none", offload=True)], "nowhere to offload to"),
        ],
    )
    def test_what_does_not_work_together_says_why(
        self, settings: list[MethodSetting], reason: str, facts: Facts
    ) -> None:
        import re

        verdict = judge(settings, facts=facts, hardware=cpu(), gpu_count=2)
        assert not verdict.applicable
        assert re.search(reason, verdict.reason), verdict.reason

    @pytest.mark.parametrize(
        ("settings", "mesh", "reason"),
        [
            ([], Mesh(tensor=4), "with 4 devices on the tensor axis"),
            (
                [DDP],
                Mesh(tensor=4),
                "it divides the data axis, which has one device in a mesh of 4 tensor; leave it out",
            ),
            ([], Mesh(pipeline=2), "with 2 devices on the data axis exactly one of ddp, zero_1, fsdp must be in use"),
        ],
    )
    def test_a_mesh_needs_a_method_for_each_axis_and_none_for_others(
        self, settings: list[MethodSetting], mesh: Mesh, reason: str
    ) -> None:
        import re

        verdict = judge(settings, facts=None, hardware=cpu(), gpu_count=4, mesh=mesh)
        assert not verdict.applicable
        assert re.search(reason, verdict.reason), verdict.reason

    @pytest.mark.parametrize(
        ("changes", "candidate", "reason"),
        [
            ({"block_count": 0}, FSDP, "BLOCKS"),
            ({"has_batchnorm": True}, use("fsdp", reshard=True, mixed_precision="bf16", offload=False), "BatchNorm"),
            ({"optimizer_class": "torch.optim.lbfgs.LBFGS"}, ZERO_1, "the optimizer is torch.optim.lbfgs.LBFGS"),
            ({"optimizer_class": "mine.Lion"}, ZERO_1, "the optimizer is mine.Lion"),
        ],
    )
    def test_a_refusal_says_what_is_in_the_way(
        self, facts: Facts, changes: dict[str, Any], candidate: MethodSetting, reason: str
    ) -> None:
        import msgspec

        changed = msgspec.structs.replace(facts, **changes)
        assert reason in judge([candidate], facts=changed, hardware=cpu(), gpu_count=2).reason
        assert judge([candidate], facts=facts, hardware=cpu(), gpu_count=2).applicable

    def test_every_setting_is_refused_on_one_device_with_the_same_words(self) -> None:
        """Eight reasons for eight settings of one method would drown the others."""
        for method in CATALOGUE:
            if method.distributes or method.builds_on:
                verdicts = {each.words: judge([each], facts=None, hardware=cpu()) for each in settings_of(method)}
                assert len({verdict.reason.removeprefix(words) for words, verdict in verdicts.items()}) == 1

    def test_offloading_applies_where_the_device_has_memory_of_its_own(self) -> None:
        offload = use("fsdp", reshard=True, mixed_precision="none", offload=True)
        assert judge([offload], facts=None, hardware=gpu((8, 0)), gpu_count=2).applicable

    def test_a_distributing_method_is_not_applied_to_a_training_of_one_process(self) -> None:
        with pytest.raises(MethodRefusedError, match="the policy uses one"):
            apply_settings(training_of("gpt2"), [DDP])


class TestFidelity:
    def test_a_setting_may_be_worse_than_its_method(self) -> None:
        assert fidelity_of(FSDP) is Fidelity.ROUNDING
        assert fidelity_of(use("fsdp", reshard=True, mixed_precision="bf16", offload=False)) is Fidelity.PRECISION
        assert fidelity_of(use("gradient_compression", hook="fp16")) is Fidelity.PRECISION
        assert worst_fidelity([DDP, POWERSGD], accumulation_steps=1, facts=None) is Fidelity.LOSSY

    def test_the_worst_method_counts(self) -> None:
        assert worst_fidelity([], accumulation_steps=1, facts=None) is Fidelity.EXACT
        assert worst_fidelity([CHECKPOINT, BF16], accumulation_steps=1, facts=None) is Fidelity.PRECISION
        assert worst_fidelity([BF16, use("adam_8bit")], accumulation_steps=1, facts=None) is Fidelity.LOSSY

    def test_micro_batching_rounds_and_changes_batchnorm(self, facts: Facts) -> None:
        assert worst_fidelity([], accumulation_steps=2, facts=facts) is Fidelity.ROUNDING
        assert worst_fidelity([], accumulation_steps=2, facts=facts_of("convnet")) is Fidelity.MODEL
        assert worst_fidelity([], accumulation_steps=1, facts=facts_of("convnet")) is Fidelity.EXACT

    def test_sharing_a_batch_between_devices_does_the_same(self, facts: Facts) -> None:
        assert worst_fidelity([DDP], accumulation_steps=1, facts=facts, gpu_count=2) is Fidelity.ROUNDING
        assert worst_fidelity([DDP], accumulation_steps=1, facts=facts_of("convnet"), gpu_count=2) is Fidelity.MODEL


class TestApply:
    def test_a_training_without_methods_is_completed_too(self) -> None:
        built = []
        training = training_of("convnet", build_optimizer=lambda p: built.append(1) or torch.optim.SGD(p, lr=0.1))
        apply_settings(training, [])
        assert built == [1]
        training.step(images(2))
        assert built == [1]

    def test_methods_are_applied_in_the_order_of_their_stages(self, monkeypatch: pytest.MonkeyPatch) -> None:
        order: list[str] = []
        for method in CATALOGUE:
            monkeypatch.setattr(type(method), "apply", lambda self, training, **_: order.append(self.name))
        settings = [
            use("precision", dtype="bf16"),
            use("adam_8bit"),
            CHECKPOINT,
            use("chunked_cross_entropy", chunks=8),
        ]
        apply_settings(training_of("convnet"), settings)
        assert order == ["chunked_cross_entropy", "checkpoint", "adam_8bit", "precision"]

    def test_a_conflict_is_refused_before_anything_is_changed(self) -> None:
        training = training_of("convnet")
        modules = [type(module) for module in training.model.modules()]
        with pytest.raises(MethodRefusedError, match="cannot be combined"):
            apply_settings(training, [CHECKPOINT, SELECTIVE])
        assert [type(module) for module in training.model.modules()] == modules

    def test_a_method_that_fails_leaves_no_process_wide_setting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        undone = []

        def fail(self: Any, training: Any, **_: Any) -> None:
            training.on_close(lambda: undone.append(1))
            raise MethodRefusedError("no")

        monkeypatch.setattr(type(get_method("precision")), "apply", fail)
        with pytest.raises(MethodRefusedError):
            apply_settings(training_of("convnet"), [BF16])
        assert undone == [1]

    def test_a_method_that_cannot_accumulate_marks_the_training(self) -> None:
        training = training_of("convnet", micro_batch=1)
        apply_settings(training, [IN_BACKWARD])
        with pytest.raises(MethodRefusedError, match="2 micro-batches"):
            training.step(images(2))


def test_a_method_whose_axis_has_one_device_is_named_before_the_axis_that_lacks_one() -> None:
    reason = misplaced([use("tensor_parallel", sequence=True, vocabulary=False)], gpu_count=2)
    assert reason is not None
    assert "tensor_parallel" in reason
    assert "mesh: {tensor: 2}" in reason
