from __future__ import annotations

from advisor.decide.effects import saved_nothing
from advisor.measure.measurement import SizePoint, Sizing
from advisor.methods.catalogue import get_method

from .examples import GIB, memory

CHECKPOINT, IN_BACKWARD = get_method("checkpoint"), get_method("optimizer_in_backward")
CHUNKED = get_method("chunked_cross_entropy")


def sizing(
    *, batches: tuple[int, ...] = (2, 4), activations: int = GIB, gradients: int = GIB // 4, peak: int = 4 * GIB
) -> Sizing:
    points = tuple(
        SizePoint(
            micro_batch=batch,
            memory=memory(peak, activations=activations * batch, gradients=gradients),
            step_seconds=1.0,
        )
        for batch in batches
    )
    return Sizing(points=points, out_of_memory_at=None, loss_trace=(1.0,))


def test_a_method_that_lowered_what_it_declares_is_not_mentioned() -> None:
    assert saved_nothing([CHECKPOINT], sizing(activations=GIB // 2), sizing()) == ()
    assert saved_nothing([IN_BACKWARD], sizing(gradients=0), sizing()) == ()


def test_a_method_that_lowered_nothing_says_so_with_the_figures() -> None:
    (note,) = saved_nothing([CHECKPOINT], sizing(), sizing())
    assert note == (
        "checkpoint saved none of the memory it targets at micro-batch 4: "
        "activations 4.00 GiB with it, 4.00 GiB without"
    )


def test_more_memory_than_without_it_is_no_saving() -> None:
    assert len(saved_nothing([CHECKPOINT], sizing(activations=2 * GIB), sizing())) == 1


def test_only_the_method_without_an_effect_is_named() -> None:
    notes = saved_nothing([CHECKPOINT, IN_BACKWARD], sizing(activations=GIB // 2), sizing())
    assert [note.split()[0] for note in notes] == ["optimizer_in_backward"]


def test_what_lives_only_within_a_phase_is_judged_by_its_peak() -> None:
    assert saved_nothing([CHUNKED], sizing(peak=3 * GIB), sizing()) == ()
    assert "peak of the passes" in saved_nothing([CHUNKED], sizing(), sizing())[0]


def test_without_a_common_batch_nothing_is_said() -> None:
    assert saved_nothing([CHECKPOINT], sizing(batches=(1, 3)), sizing()) == ()
