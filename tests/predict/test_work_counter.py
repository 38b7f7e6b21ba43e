"""Floating-point operations, bytes and launches, against what they are by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from advisor.methods.setting import use
from advisor.phase import Phase
from advisor.predict.step_work import Kind, work_through
from advisor.predict.trace.operator_work import operator_work
from advisor.predict.trace.work_counter import WorkCounter
from tests.methods.tiny import adamw, convnet, gpt2, images, text
from tests.predict.steps import count_step, counted, fake_step, fake_work, flops, named, training_of

FLOAT = 4
"""Bytes of a float32."""


def two_layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, 32, bias=False), torch.nn.Linear(32, 8, bias=False))


def batch_of(samples: int) -> torch.Tensor:
    return torch.zeros(samples, 16)


# ---- floating-point operations


def test_a_linear_layer_computes_once_forward_and_twice_backward() -> None:
    works = fake_step(two_layers, lambda: batch_of(5))
    first, second = 2 * 5 * 16 * 32, 2 * 5 * 32 * 8
    assert flops(works, Phase.FORWARD) == first + second
    assert flops(works, Phase.BACKWARD) == first + 2 * second  # the batch needs no gradient
    assert flops(works, Phase.OPTIMIZER) == 0
    assert {one.kind for one in works if one.flops} == {Kind.MATRIX}


def test_a_convolution_computes_once_forward_and_twice_backward() -> None:
    def build() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Conv2d(3, 6, 3, padding=1), torch.nn.Conv2d(6, 4, 3, padding=1))

    works = fake_step(build, lambda: torch.zeros(2, 3, 8, 8))
    pixels = 2 * 2 * 8 * 8 * 9
    assert flops(works, Phase.FORWARD, Kind.CONVOLUTION) == pixels * (3 * 6 + 6 * 4)
    assert flops(works, Phase.BACKWARD, Kind.CONVOLUTION) == pixels * (3 * 6 + 2 * 6 * 4)


def test_a_grouped_convolution_computes_its_own_channels_only() -> None:
    def build() -> torch.nn.Module:
        return torch.nn.Sequential(
            torch.nn.Conv2d(4, 4, 1, bias=False), torch.nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False)
        )

    works = fake_step(build, lambda: torch.zeros(2, 4, 8, 8))
    pixels = 2 * 2 * 8 * 8
    assert flops(works, Phase.FORWARD) == pixels * (4 * 4 + 9 * 4)
    assert flops(works, Phase.BACKWARD) == pixels * (4 * 4 + 2 * 9 * 4)


def test_attention_computes_two_products_forward_and_five_backward() -> None:
    def attend() -> None:
        heads = [torch.zeros(2, 3, 10, 8, requires_grad=True) for _ in range(3)]
        torch.nn.functional.scaled_dot_product_attention(*heads).sum().backward()

    with FakeTensorMode():
        works = counted(attend)
    product = 2 * 2 * 3 * 10 * 10 * 8
    assert [one.flops for one in works if one.kind is Kind.ATTENTION] == [2 * product, 5 * product]


def test_checkpointing_adds_one_forward_pass_of_the_blocks_to_the_backward() -> None:
    """All products of a block: what it saves last is the mask of the dropout behind the last product."""
    plain, checkpointed = (
        fake_step(lambda: gpt2(layers=2), lambda: text(2), *methods, compute_loss=None)
        for methods in ((), (use("checkpoint", every=1),))
    )
    samples, tokens, width, vocabulary = 2, 64, 64, 512
    head = 2 * samples * tokens * width * vocabulary
    assert flops(plain, Phase.BACKWARD) == 2 * flops(plain, Phase.FORWARD)
    assert flops(checkpointed, Phase.FORWARD) == flops(plain, Phase.FORWARD)
    assert flops(checkpointed, Phase.BACKWARD) - flops(plain, Phase.BACKWARD) == flops(plain, Phase.FORWARD) - head


# ---- bytes


def test_the_bytes_of_a_matrix_product_are_its_three_matrices() -> None:
    (product,) = counted(lambda: torch.zeros(3, 5) @ torch.zeros(5, 7))[2:]
    assert (product.operator, product.read_bytes, product.fresh_bytes) == ("mm", FLOAT * (15 + 35), FLOAT * 21)
    assert product.written_bytes == 0


def test_views_and_empty_tensors_cost_nothing() -> None:
    tensor = torch.zeros(4, 6)

    def look() -> None:
        tensor.view(24).reshape(6, 4).t()[1:].detach().unsqueeze(0).expand(2, 3, 6).chunk(2, dim=1)
        torch.ops.aten._unsafe_view(tensor, [24])
        torch.empty(1000)
        torch.empty_like(tensor)
        torch.zeros(3).resize_(2)

    assert [one.operator for one in counted(look)] == ["zeros"]


def test_an_expanded_tensor_counts_the_elements_that_exist() -> None:
    row, matrix = torch.zeros(1, 100), torch.zeros(50, 100)
    (added,) = counted(lambda: matrix + row.expand(50, 100))
    assert added.read_bytes == FLOAT * (5000 + 100)
    assert added.fresh_bytes == FLOAT * 5000


def test_overlapping_windows_count_no_more_than_their_storage() -> None:
    signal = torch.zeros(100)
    (added,) = counted(lambda: signal.unfold(0, 10, 1) + 1.0)
    assert added.read_bytes == FLOAT * 100
    assert added.fresh_bytes == FLOAT * 91 * 10


def test_an_in_place_operator_reads_and_writes_its_tensor() -> None:
    target, other = torch.zeros(100), torch.zeros(100)
    added, filled, copied = counted(lambda: (target.add_(other), target.fill_(1.0), target.copy_(other)))
    assert (added.read_bytes, added.written_bytes, added.fresh_bytes) == (800, 400, 0)
    assert (filled.read_bytes, filled.written_bytes) == (0, 400)
    assert (copied.read_bytes, copied.written_bytes) == (400, 400)


def test_what_is_written_by_out_is_not_read() -> None:
    target, other = torch.zeros(100), torch.zeros(100)
    (added,) = counted(lambda: torch.add(other, 1.0, out=target))
    assert (added.read_bytes, added.written_bytes, added.fresh_bytes) == (400, 400, 0)


def test_a_tensor_given_twice_is_read_once() -> None:
    tensor = torch.zeros(100)
    (squared,) = counted(lambda: tensor * tensor)
    assert squared.read_bytes == 400


def test_of_a_table_as_much_is_read_as_is_picked() -> None:
    table, rows = torch.zeros(1000, 8), torch.zeros(3, dtype=torch.int64)
    (picked,) = counted(lambda: torch.nn.functional.embedding(rows, table))
    assert picked.read_bytes == 3 * 8 * FLOAT + 3 * 8
    assert picked.fresh_bytes == 3 * 8 * FLOAT


@pytest.mark.parametrize(("foreach", "launches"), [(True, 2), (False, 1)])
def test_an_optimizer_over_lists_moves_what_a_loop_moves(foreach: bool, launches: int) -> None:
    """The update of SGD with momentum, over two matrices: v *= m; v += g; w -= lr v."""
    works = fake_step(
        two_layers,
        lambda: batch_of(3),
        build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=foreach),
    )
    update = [one for one in works if one.phase is Phase.OPTIMIZER]
    weights = 16 * 32 + 32 * 8
    assert sum(one.read_bytes for one in update) == FLOAT * weights * (1 + 2 + 2)
    assert sum(one.written_bytes for one in update) == FLOAT * weights * 3
    assert sum(one.fresh_bytes for one in update) == 0
    assert {one.launches for one in update} == {launches}
    assert sum(one.launches for one in update) == 6


def test_adamw_over_lists() -> None:
    works = fake_step(two_layers, lambda: batch_of(3), build_optimizer=_adamw(foreach=True))
    weights, tensors = FLOAT * (16 * 32 + 32 * 8), 2
    update = {
        one.operator: (one.read_bytes / weights, one.written_bytes / weights, one.fresh_bytes / weights)
        for one in works
        if one.phase is Phase.OPTIMIZER and one.read_bytes >= weights
    }
    assert update == {
        "_foreach_lerp_": (2, 1, 0),  # the first moment
        "_foreach_mul_": (1, 1, 0),  # weight decay, and the second moment
        "_foreach_addcmul_": (2, 1, 0),  # the gradient, which is squared, and the second moment
        "_foreach_sqrt": (1, 0, 1),
        "_foreach_div_": (1, 1, 0),
        "_foreach_add_": (1, 1, 0),
        "_foreach_addcdiv_": (3, 1, 0),
    }
    assert len(named(works, "_foreach_mul_")) == 2
    assert all(one.launches == tensors for one in works if one.operator.startswith("_foreach"))


def test_a_fused_adamw_reads_four_tensors_and_writes_three() -> None:
    works = fake_step(two_layers, lambda: batch_of(3), build_optimizer=_adamw(fused=True))
    (update,) = named(works, "_fused_adamw_")
    weights, steps = FLOAT * (16 * 32 + 32 * 8), 2 * FLOAT
    assert update.read_bytes == 4 * weights + steps
    assert update.written_bytes == 3 * weights  # the schema lets the gradients be written; nothing unscales them here
    assert update.launches == 1


# ---- number formats


def test_products_under_autocast_count_in_its_format() -> None:
    works = fake_step(two_layers, lambda: batch_of(5), use("precision", dtype="bf16"))
    assert {one.number_format for one in works if one.flops} == {"bfloat16"}
    casts = named(works, "_to_copy", Phase.FORWARD)
    assert sum(one.fresh_bytes for one in casts) == 2 * (16 * 32 + 32 * 8 + 5 * 16)
    assert {one.number_format for one in works if one.phase is Phase.OPTIMIZER} == {"float32"}


def test_plain_products_count_in_float32() -> None:
    works = fake_step(two_layers, lambda: batch_of(5))
    assert {one.number_format for one in works if one.flops} == {"float32"}


# ---- copies between host and device


def test_copies_to_another_device_are_transfers() -> None:
    """No device is needed for it: tensors of the ``meta`` device are somewhere else, too."""
    here, there = torch.zeros(100), torch.zeros(100, device="meta")
    sent, copied, all_copied = counted(
        lambda: (here.to("meta"), there.copy_(here), torch._foreach_copy_([there, there], [here, here]))
    )
    assert (sent.kind, sent.read_bytes) == (Kind.TO_DEVICE, 400)
    assert (copied.kind, copied.read_bytes) == (Kind.TO_DEVICE, 400)
    assert (all_copied.kind, all_copied.read_bytes) == (Kind.TO_DEVICE, 400), "the same tensor is read once"
    with FakeTensorMode():
        on_gpu = counted(lambda: torch.zeros(100, device="meta").to("meta").add(1.0))
    assert {one.kind for one in on_gpu} == {Kind.OTHER}


def test_copies_on_one_device_are_none() -> None:
    (copied,) = counted(lambda: torch.ones(100, dtype=torch.bfloat16).float())[1:]
    assert copied.kind is Kind.OTHER


# ---- what is seen


class Wrapping(torch.Tensor):
    """A tensor that does everything on another that it wraps, as quantized optimizer states do."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapping:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)  # type: ignore[attr-defined]

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self):  # type: ignore[no-untyped-def]
        return ["inner"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):  # type: ignore[no-untyped-def]
        return Wrapping(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        inner = [arg.inner if isinstance(arg, cls) else arg for arg in args]
        return func(*inner, **(kwargs or {})) + 0.0


def test_what_a_wrapping_tensor_does_inside_is_counted() -> None:
    tensor = Wrapping(torch.zeros(10))
    assert [one.operator for one in counted(lambda: tensor * 2.0)] == ["mul", "add"]


def test_nothing_is_counted_outside_of_the_phases() -> None:
    with WorkCounter() as counter:
        torch.zeros(3) + 1
    assert counter.works == []


def test_a_step_of_real_tensors_has_the_same_work() -> None:
    fake = fake_step(two_layers, lambda: batch_of(5), build_optimizer=adamw)
    training = training_of(two_layers(), build_optimizer=adamw)
    training.step(batch_of(5))
    assert count_step(training, batch_of(5)) == fake
    assert training.phase_listener is None


# ---- the line in the batch


def test_the_operations_are_those_that_torch_counts() -> None:
    """Of a network without groups, whose operators torch's own counter all knows."""
    training = training_of(convnet(), compute_loss=lambda model, batch: model(*batch))
    with FlopCounterMode(display=False) as counter:
        training.step(images(3))
    assert flops(count_step(training, images(3))) == counter.get_total_flops()


@pytest.mark.parametrize("methods", [(), (use("checkpoint", every=1),)])
def test_the_work_at_a_third_batch_is_what_is_counted_there(methods) -> None:  # type: ignore[no-untyped-def]
    def build() -> torch.nn.Module:
        return gpt2(layers=2)

    work = fake_work(build, text, *methods, compute_loss=None, build_optimizer=adamw)
    direct = fake_step(build, lambda: text(9), *methods, compute_loss=None, build_optimizer=adamw)
    predicted = work.work_at(9)
    for phase, kind in itertools.product(Phase, Kind):
        for name in ("launches", "flops", "read_bytes", "written_bytes", "fresh_bytes"):
            counted_there = sum(getattr(one, name) for one in direct if (one.phase, one.kind) == (phase, kind))
            assert (
                sum(getattr(one, name) for one in predicted if (one.phase, one.kind) == (phase, kind)) == counted_there
            ), f"{name} of {kind} in {phase}"


def test_equal_blocks_are_one_group() -> None:
    few, many = (
        fake_work(lambda layers=layers: gpt2(layers=layers, dropout=0.0), text, compute_loss=None)  # type: ignore[misc]
        for layers in (2, 4)
    )
    assert len(few.groups) == len(many.groups)


def test_a_step_in_more_pieces_at_a_larger_batch_is_still_a_line() -> None:
    def step_of(samples: int) -> torch.Tensor:
        return batch_of(samples)

    with FakeTensorMode():
        training = training_of(two_layers())
        training.micro_batch = 2
        training.step(step_of(2))
        counts = {samples: count_step(training, step_of(samples)) for samples in (4, 8, 12)}
    work = work_through((4, counts[4]), (8, counts[8]))
    assert flops(work.work_at(12)) == flops(counts[12])
    assert sum(one.launches for one in work.work_at(12)) == sum(one.launches for one in counts[12])


def _adamw(**options: bool):  # type: ignore[no-untyped-def]
    return lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, **options)


def test_communication_is_no_work_of_the_device() -> None:
    """It takes the time of the links, and of those that it waits for."""
    sums = torch.ops._c10d_functional.all_reduce.default
    given = torch.ones(8)
    assert operator_work(sums, (given, "sum", "0"), {}, torch.ones(8), Phase.BACKWARD) is None
    assert operator_work(torch.ops.aten.neg.default, (given,), {}, torch.ones(8), Phase.BACKWARD) is not None
