"""Several blocks run as one, although the model calls them one by one; and refused where that would not be the same."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from advisor.errors import MethodRefusedError
from advisor.training.block_call import BlockCall
from advisor.training.chain import Chain, Runner, Segment
from advisor.training.recompute import recompute_modules
from advisor.training.structure import find_blocks
from advisor.training.training import Training
from tests.methods.test_out_of_memory import ON_A_MIG_INSTANCE
from tests.methods.tiny import MODELS, adamw, images, training_of

both = pytest.mark.parametrize("name", MODELS)


class Block(nn.Module):
    """Takes a further argument; returns a tuple of so many values, all but the first ``None``, or the first alone."""

    def __init__(self, *, values: int = 0, dropout: float = 0.0) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.dropout = nn.Dropout(dropout)
        self.values = values

    def forward(self, hidden_states: torch.Tensor, mask: Any = None, flags: Any = ()) -> Any:
        hidden = hidden_states + self.dropout(self.inner(hidden_states))
        return (hidden, None, None)[: self.values] if self.values else hidden


Loop = Callable[["Looping", torch.Tensor], torch.Tensor]


class Looping(nn.Module):
    """Four blocks, called by a loop that is given."""

    def __init__(self, loop: Loop, **options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(**options) for _ in range(4))
        self.mask = torch.ones(8)
        self.loop = loop

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.loop(self, hidden).square().mean()


def plain_loop(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        hidden = block(hidden)
    return hidden


def one_by_one(blocks: Sequence[nn.Module], hidden: torch.Tensor, call: BlockCall) -> torch.Tensor:
    for block in blocks:
        hidden = call.run(block, hidden)
    return hidden


def counting(ran: list[int]) -> Runner:
    def run(blocks: Sequence[nn.Module], hidden: torch.Tensor, call: BlockCall) -> torch.Tensor:
        ran.append(len(blocks))
        return one_by_one(blocks, hidden, call)

    return run


def looping(loop: Loop, **options: Any) -> Training:
    torch.manual_seed(0)
    return Training(Looping(loop, **options), build_optimizer=adamw)


def chained(training: Training, run: Runner = one_by_one, size: int = 2, **options: Any) -> Chain:
    blocks = find_blocks(training.model)
    chain = Chain(training, blocks)
    chain.segments = tuple(Segment(start, start + size, run, **options) for start in range(0, len(blocks), size))
    return chain


def hidden_batch() -> torch.Tensor:
    return torch.ones(2, 8)


def stepped(training: Training, batch: Any) -> dict[str, torch.Tensor]:
    torch.manual_seed(1)
    training.step(batch)
    return dict(training.state_dict()["model"])


def equal(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


class TestWhatRuns:
    @both
    def test_segments_in_place_of_blocks_train_the_same(self, name: str) -> None:
        plain, changed = training_of(name), training_of(name)
        ran: list[int] = []
        chained(changed, counting(ran))
        batch = MODELS[name][1](2)
        assert equal(stepped(changed, batch), stepped(plain, batch))
        assert ran == [2, 2]

    def test_blocks_outside_of_all_segments_run_as_they_did(self) -> None:
        plain, changed = looping(plain_loop), looping(plain_loop)
        ran: list[int] = []
        Chain(changed, find_blocks(changed.model)).segments = (Segment(1, 3, counting(ran)),)
        assert equal(stepped(changed, hidden_batch()), stepped(plain, hidden_batch()))
        assert ran == [2]

    def test_segments_can_be_replaced_between_steps(self) -> None:
        training = looping(plain_loop)
        ran: list[int] = []
        chain = chained(training, counting(ran), 1)
        training.step(hidden_batch())
        chain.segments = (Segment(0, 4, counting(ran)),)
        training.step(hidden_batch())
        assert ran == [1, 1, 1, 1, 4]

    def test_without_gradients_every_block_runs_for_itself(self) -> None:
        training = looping(plain_loop)
        ran: list[int] = []
        chained(training, counting(ran))
        training.evaluate(lambda model: model(hidden_batch()))
        assert not ran

    def test_what_changes_the_outcome_runs_without_gradients_too(self) -> None:
        training = looping(plain_loop)
        ran: list[int] = []
        chained(training, counting(ran), always=True)
        training.evaluate(lambda model: model(hidden_batch()))
        assert ran == [2, 2]

    def test_a_model_called_twice_before_its_backward_pass(self) -> None:
        def twice(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            return model(batch) + 2.0 * model(-batch)  # type: ignore[no-any-return]

        plain, changed = looping(plain_loop), looping(plain_loop)
        chained(changed)
        for training in (plain, changed):
            training.compute_loss = twice
        assert equal(stepped(changed, hidden_batch()), stepped(plain, hidden_batch()))

    def test_a_sequential_model_is_a_chain_too(self) -> None:
        def training() -> Training:
            torch.manual_seed(0)
            model = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4)])
            return Training(model, compute_loss=lambda model, batch: model(batch).sum(), build_optimizer=adamw)

        plain, changed = training(), training()
        chained(changed, size=4)
        assert equal(stepped(changed, hidden_batch()), stepped(plain, hidden_batch()))


class TestCalls:
    @pytest.mark.parametrize("values", [1, 2, 3])
    def test_blocks_that_return_a_tuple_of_one_and_nothing_else(self, values: int) -> None:
        def unpacking(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
            for block in model.blocks:
                hidden, *nothing = block(hidden)
                assert nothing == [None] * (values - 1)
            return hidden

        plain, changed = looping(unpacking, values=values), looping(unpacking, values=values)
        chained(changed, size=2)
        assert equal(stepped(changed, hidden_batch()), stepped(plain, hidden_batch()))

    def test_the_hidden_state_by_keyword_and_further_arguments(self) -> None:
        def by_keyword(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
            for block in model.blocks:
                hidden = block(flags=[True, (model.mask, 1.5)], hidden_states=hidden, mask=None)
            return hidden

        plain, changed = looping(by_keyword), looping(by_keyword)
        ran: list[int] = []
        chained(changed, counting(ran), 4)
        assert equal(stepped(changed, hidden_batch()), stepped(plain, hidden_batch()))
        assert ran == [4]

    def test_the_further_tensors_of_a_call_are_known(self) -> None:
        mask, other, hidden = torch.ones(1), torch.ones(2), torch.ones(3)
        read = BlockCall.read(Block(), (hidden, mask), {"flags": [{"one": other}]})
        assert read is not None
        assert read[0] is hidden
        assert [id(tensor) for tensor in read[1].tensors()] == [id(mask), id(other)]


def skipping_second(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for number in (0, 2, 3):
        hidden = model.blocks[number](hidden)
    return hidden


def skipping_first(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for block in model.blocks[1:]:
        hidden = block(hidden)
    return hidden


def skipping_last(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for block in model.blocks[:3]:
        hidden = block(hidden)
    return hidden


def scaling_between(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        hidden = 0.5 * block(hidden)
    return hidden


def adding_in_place_between(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        hidden = block(hidden)
        hidden += 0.5
    return hidden


def summing_all(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    total = torch.zeros(8)
    for block in model.blocks:
        hidden = block(hidden)
        total = total + hidden
    return total


def using_first_twice(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    first = model.blocks[0](hidden)
    hidden = first
    for block in model.blocks[1:]:
        hidden = block(hidden)
    return hidden + first.tanh()


def leaving_early(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    early = [hidden := block(hidden) for block in model.blocks]
    return early[0] + 0 * early[-1].detach()


def logging_between(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        hidden = block(hidden)
        with torch.no_grad():
            model.logged = [float(torch.cat([hidden, hidden]).mean())]
    return hidden


def halting_on_a_copy(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        hidden = block(hidden)
        if hidden.detach().isnan().any():
            break
    return hidden


def asking_for_shapes_and_moving_nowhere(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    kept = []
    for block in model.blocks:
        hidden = block(hidden).to("cpu").contiguous()
        assert hidden.shape[0] == hidden.size(0) == len(hidden)
        assert hidden.dtype is torch.float32
        kept.append(hidden)
    return kept[-1]


def writing_to_mask_between(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        hidden = block(hidden, model.mask)
        model.mask.mul_(0.5)
    return hidden


def another_mask_each(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        hidden = block(hidden, torch.ones(8))
    return hidden


def numbering(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for number, block in enumerate(model.blocks):
        hidden = block(hidden, None, (number,))
    return hidden


def drawing_between(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
    for block in model.blocks:
        torch.rand(())  # As models do that skip layers at random.
        hidden = block(hidden)
    return hidden


class TestRefusals:
    @pytest.mark.parametrize(
        ("loop", "seen"),
        [
            (skipping_second, "block 1 is not called after the block before it"),
            (skipping_first, "block 1 is called before the first of its segment"),
            (skipping_last, "block 3 is not called after"),
            (scaling_between, "block 1 is not called on what the block before it returned"),
            (adding_in_place_between, "block 1 is not called on what the block before it returned, unchanged"),
            (writing_to_mask_between, "block 1 is called with other arguments"),
            (summing_all, "what a block returns is also used by something else"),
            (using_first_twice, "what a block returns is also used by something else"),
            (logging_between, r"what a block returns is also used by something else .*\(cat\)"),
            (halting_on_a_copy, r"what a block returns is also used by something else .*\(detach\)"),
            (another_mask_each, "block 1 is called with other arguments"),
            (numbering, "block 1 is called with other arguments"),
        ],
    )
    def test_what_is_no_chain_is_refused_when_it_is_seen(self, loop: Loop, seen: str) -> None:
        training = looping(loop)
        chained(training)
        for _ in range(2):  # In every step: nothing is left over from the one before.
            with pytest.raises(MethodRefusedError, match=f"must take one tensor.*{seen}"):
                training.step(hidden_batch())

    def test_memory_that_runs_out_in_a_segment_is_no_reason_to_refuse_the_model(self) -> None:
        def run(blocks: Sequence[nn.Module], hidden: torch.Tensor, call: BlockCall) -> torch.Tensor:
            raise ON_A_MIG_INSTANCE

        training = looping(plain_loop)
        chained(training, run)
        with pytest.raises(RuntimeError) as caught:
            training.forward(hidden_batch())
        assert caught.value is ON_A_MIG_INSTANCE

    def test_blocks_that_cannot_be_called_alike_are_refused_with_what_they_raised(self) -> None:
        """Such as those of a U-Net's decoder, each of which is joined to an image of its own size."""

        class Joining(nn.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.inner = nn.Linear(width, width)

            def forward(self, hidden: torch.Tensor, beside: torch.Tensor) -> torch.Tensor:
                return torch.cat([self.inner(hidden) + beside, beside], dim=1)

        class Decoder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.blocks = nn.ModuleList([Joining(8), Joining(16)])

            def forward(self, hidden: torch.Tensor) -> torch.Tensor:
                for block in self.blocks:
                    hidden = block(hidden, hidden)
                return hidden.square().mean()

        model = Decoder()
        training = Training(model, build_optimizer=adamw)
        Chain(training, list(model.blocks)).segments = (Segment(0, 2, one_by_one),)
        with pytest.raises(
            MethodRefusedError, match=r"must take one tensor.*blocks 0 to 1 raised RuntimeError: .* size"
        ):
            training.step(hidden_batch())

    def test_what_a_whole_segment_returns_may_be_used_and_written_to(self) -> None:
        def writing_between_segments(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
            middle = model.blocks[1](model.blocks[0](hidden))
            middle += 0.5
            return model.blocks[3](model.blocks[2](middle)) + middle.tanh()  # type: ignore[no-any-return]

        plain, changed = looping(writing_between_segments), looping(writing_between_segments)
        chained(changed)
        assert equal(stepped(changed, hidden_batch()), stepped(plain, hidden_batch()))

    def test_what_is_no_use_of_values_is_allowed(self) -> None:
        plain, changed = (looping(asking_for_shapes_and_moving_nowhere) for _ in range(2))
        chained(changed)
        assert equal(stepped(changed, hidden_batch()), stepped(plain, hidden_batch()))

    def test_numbers_drawn_between_blocks_that_draw_too(self) -> None:
        drawing = looping(drawing_between, dropout=0.1)
        chained(drawing)
        with pytest.raises(MethodRefusedError, match="draws random numbers between its blocks"):
            drawing.step(hidden_batch())
        plain, harmless = looping(drawing_between), looping(drawing_between)
        chained(harmless)
        assert equal(stepped(harmless, hidden_batch()), stepped(plain, hidden_batch()))

    def test_a_block_that_returns_several_tensors(self) -> None:
        training = looping(plain_loop)
        for block in training.model.blocks:  # type: ignore[union-attr]
            block.register_forward_hook(lambda _module, _args, output: (output, output))
        chained(training)
        with pytest.raises(MethodRefusedError, match="but Block returns 2 values"):
            training.step(hidden_batch())

    def test_a_block_that_takes_no_tensor_first(self) -> None:
        training = looping(lambda model, hidden: model.blocks[0](None, hidden))
        chained(training)
        with pytest.raises(MethodRefusedError, match="block 0 takes no tensor as its first argument"):
            training.step(hidden_batch())

    def test_a_model_that_calls_its_blocks_past_the_links(self) -> None:
        training = looping(plain_loop)
        held = list(training.model.blocks)  # type: ignore[arg-type]
        training.model.loop = lambda _, hidden: nn.Sequential(*held)(hidden)
        chained(training)
        with pytest.raises(MethodRefusedError, match="list of its own"):
            training.step(hidden_batch())

    def test_a_copy_of_the_model_evaluates_itself_and_is_not_trained(self) -> None:
        training = looping(plain_loop)
        chained(training)
        twin = copy.deepcopy(training.model)
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.zero_()
            assert float(twin(hidden_batch())) == 1.0 != float(training.model(hidden_batch()))
        with pytest.raises(MethodRefusedError, match="copy of the model"):
            twin(hidden_batch())

    def test_a_pass_that_failed_leaves_nothing_behind(self) -> None:
        def failing_once(model: Looping, hidden: torch.Tensor) -> torch.Tensor:
            hidden = model.blocks[0](hidden)
            if not failed:
                failed.append(True)
                raise MemoryError
            for block in model.blocks[1:]:
                hidden = block(hidden)
            return hidden

        failed: list[bool] = []
        training = looping(failing_once)
        chained(training)
        with pytest.raises(MemoryError):
            training.step(hidden_batch())
        training.step(hidden_batch())


class TestTheModelItself:
    @both
    def test_names_and_blocks_stay_what_they_were(self, name: str) -> None:
        training = training_of(name)
        names, blocks = list(training.model.state_dict()), find_blocks(training.model)
        parameters = [parameter_name for parameter_name, _ in training.model.named_parameters()]
        chained(training)
        assert list(training.state_dict()["model"]) == names
        assert list(training.model.state_dict()) == names
        assert [plain.replace("_checkpoint_wrapped_module.", "") for plain, _ in training.model.named_parameters()] == (
            parameters
        )
        assert list(map(id, find_blocks(training.model))) == list(map(id, blocks))
        assert list(map(id, find_blocks(training.model, (type(blocks[0]),)))) == list(map(id, blocks))
        MODELS[name][0]().load_state_dict(training.model.state_dict())

    def test_a_later_step_may_leave_the_blocks_out(self) -> None:
        """The trap: a batch without targets ended training after hours, and the reason was untrue."""
        training = training_of("convnet", dropout=0.0)
        chained(training)
        training.step(images(2))
        whole = training.compute_loss
        training.compute_loss = lambda model, batch: sum(one.sum() for one in model.parameters()) * 0.0
        training.step(images(2))
        training.compute_loss = whole
        assert torch.isfinite(training.step(images(2)))

    @pytest.mark.parametrize("loop", [summing_all, using_first_twice, leaving_early], ids=lambda loop: loop.__name__)
    def test_a_loss_that_uses_every_blocks_output_from_a_later_epoch_on_is_refused_then(self, loop: Loop) -> None:
        training = looping(plain_loop)
        chained(training)
        for _ in range(2):
            training.step(hidden_batch())
        training.model.loop = loop
        with pytest.raises(MethodRefusedError, match="what a block returns is also used by something else"):
            training.step(hidden_batch())

    def test_gradients_of_a_graph_that_is_kept_or_differentiated_again_are_no_other_use(self) -> None:
        training = looping(plain_loop)
        chained(training)
        parameters = list(training.model.parameters())
        for _ in range(2):
            loss = training.forward(hidden_batch())
            loss.backward(retain_graph=True)
            gradients = torch.autograd.grad(loss, parameters, create_graph=True)
            sum(one.square().sum() for one in gradients).backward()

    def test_wrappers_inside_and_around_are_kept(self) -> None:
        inside, around = training_of("convnet"), training_of("convnet")
        plain = stepped(training_of("convnet"), images(2))
        recompute_modules(inside.model, find_blocks(inside.model))
        chained(inside)
        chained(around)
        recompute_modules(around.model, find_blocks(around.model))
        for training in (inside, around):
            assert equal(stepped(training, images(2)), plain)
            assert list(training.model.state_dict()) == list(plain)

    def test_no_hidden_state_outlives_its_use(self) -> None:
        held: list[weakref.ref[torch.Tensor]] = []

        def run(blocks: Sequence[nn.Module], hidden: torch.Tensor, call: BlockCall) -> torch.Tensor:
            held.append(weakref.ref(hidden))
            output = one_by_one(blocks, hidden, call)
            held.append(weakref.ref(output))
            return output

        training = looping(plain_loop)
        chained(training, run)
        loss = training.forward(hidden_batch())
        assert len(held) == 4
        del loss  # And with it the graph, which holds them for the backward pass.
        assert [reference() for reference in held[1:]] == [None, None, None]  # The first is the batch itself.

    def test_a_dropped_model_is_freed_at_once(self) -> None:
        gc.disable()  # A cycle would keep its memory until the next collection.
        try:
            training = looping(plain_loop)
            chained(training)
            training.step(hidden_batch())
            weight = weakref.ref(training.model.blocks[0].inner.weight)  # type: ignore[index,union-attr,arg-type]
            del training
            assert weight() is None
        finally:
            gc.enable()

    @both
    def test_evaluation_is_that_of_the_plain_model(self, name: str) -> None:
        training, batch = training_of(name), MODELS[name][1](2)
        plain = training.evaluate(lambda model: training.compute_loss(model, batch))
        chained(training)
        assert torch.equal(training.evaluate(lambda model: training.compute_loss(model, batch)), plain)
