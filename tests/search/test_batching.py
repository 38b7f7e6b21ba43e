from __future__ import annotations

import pytest

from advisor.errors import OptionError
from advisor.hardware.mesh import Mesh
from advisor.search.sizing.batching import (
    Batch,
    choose_batch,
    dividing_gpu_counts,
    does_not_fit,
)
from advisor.workload.batch_layout import BatchLayout

MIB = 2**20


@pytest.mark.parametrize(
    ("largest", "fraction", "batch"),
    [(64, 1.0, Batch(64)), (64, 0.75, Batch(48)), (40, 0.5, Batch(20)), (3, 0.5, Batch(1)), (1, 0.25, Batch(1))],
)
def test_the_micro_batch_is_a_fraction_of_the_largest(largest: int, fraction: float, batch: Batch) -> None:
    assert choose_batch(largest=largest, fraction=fraction) == batch


@pytest.mark.parametrize(
    ("largest", "fraction", "batch"),
    [
        (10, 1.0, Batch(8, 3)),
        (10, 0.5, Batch(4, 6)),
        (24, 1.0, Batch(24, 1)),
        (1000, 1.0, Batch(24, 1)),
        (1, 1.0, Batch(1, 24)),
        (3, 0.25, Batch(1, 24)),
    ],
)
def test_a_global_batch_is_split_into_a_divisor_and_passes(largest: int, fraction: float, batch: Batch) -> None:
    chosen = choose_batch(largest=largest, fraction=fraction, global_batch=24)
    assert chosen == batch
    assert batch.micro_batch * batch.accumulation_steps == 24


@pytest.mark.parametrize("gpu_count", [1, 2, 3, 4, 6, 24])
@pytest.mark.parametrize("largest", [1, 5, 10, 1000])
def test_the_devices_share_a_global_batch_exactly(gpu_count: int, largest: int) -> None:
    batch = choose_batch(largest=largest, fraction=1.0, global_batch=24, gpu_count=gpu_count)
    assert batch is not None
    assert batch.micro_batch * batch.accumulation_steps * gpu_count == 24
    assert batch.micro_batch <= largest


def test_devices_that_do_not_divide_the_global_batch_are_left_out() -> None:
    assert dividing_gpu_counts(32, (1, 2, 3, 4)) == (1, 2, 4)


def test_a_global_batch_that_nothing_divides_names_the_nearest_that_work() -> None:
    with pytest.raises(OptionError) as raised:
        dividing_gpu_counts(32, (3,))
    assert str(raised.value) == (
        "--global-batch must be a multiple of the number of devices (3), but got 32. "
        "The nearest that work: 30 or 33; or ask for other --gpus."
    )
    with pytest.raises(OptionError, match=r"\(3 or 5\), but got 32. The nearest that work: 30 or 33;"):
        dividing_gpu_counts(32, (3, 5))


def test_the_nearest_global_batch_is_never_zero() -> None:
    with pytest.raises(OptionError, match="nearest that work: 4;"):
        dividing_gpu_counts(2, (4,))


@pytest.mark.parametrize(
    ("largest", "global_batch", "batch"),
    [
        (100, None, Batch(96)),
        (30, None, Batch(24)),
        (23, None, None),
        (100, 240, Batch(60, 4)),
        (30, 240, Batch(24, 10)),
        (24, 240, Batch(24, 10)),
        (30, 52, None),
    ],
)
def test_a_micro_batch_has_as_many_samples_as_one_may_have(
    largest: int, global_batch: int | None, batch: Batch | None
) -> None:
    layout = BatchLayout(dims={}, counted_by="", least_samples=24, multiple=12)
    assert choose_batch(largest=largest, fraction=1.0, global_batch=global_batch, layout=layout) == batch


@pytest.mark.parametrize(("least", "multiple"), [(17, 1), (25, 25), (33, 1), (100, 100)])
def test_rounding_never_ends_below_the_least(least: int, multiple: int) -> None:
    """Trap: 33 samples fit, were rounded to 32, and nothing fitted."""
    layout = BatchLayout(dims={}, counted_by="", least_samples=least, multiple=multiple)
    assert choose_batch(largest=least, fraction=0.5, layout=layout) == Batch(least)
    larger = choose_batch(largest=4 * least, fraction=1.0, layout=layout)
    assert larger is not None
    assert layout.fitted(larger.micro_batch) == larger.micro_batch > 7 / 8 * 4 * least


def test_a_pipeline_gets_its_passes_or_no_batch() -> None:
    layout = BatchLayout(dims={}, counted_by="", least_samples=8)
    mesh = Mesh(pipeline=2)
    chosen = choose_batch(largest=16, fraction=1.0, global_batch=16, gpu_count=2, mesh=mesh, layout=layout)
    assert chosen == Batch(8, 2)
    wider = Mesh(pipeline=4)
    assert choose_batch(largest=16, fraction=1.0, global_batch=16, gpu_count=4, mesh=wider, layout=layout) is None


def test_no_batch_is_chosen_when_nothing_fits() -> None:
    assert choose_batch(largest=0, fraction=1.0) is None
    assert choose_batch(largest=0, fraction=1.0, global_batch=8) is None


def test_a_screened_combination_says_what_it_needs_and_what_there_is() -> None:
    assert does_not_fit(need_bytes=150 * MIB, limit_bytes=100 * MIB) == (
        "one sample is predicted to need 150 MiB; the limit is 100 MiB"
    )
    assert does_not_fit(need_bytes=None, limit_bytes=100 * MIB, micro_batch=2) == (
        "a micro-batch of 2 does not fit below 100 MiB"
    )


class TestMeshes:
    @pytest.mark.parametrize(
        ("mesh", "batch"),
        [
            (Mesh(tensor=2), Batch(8, 3)),  # 8 devices, 4 shares of 24 samples
            (Mesh(tensor=4), Batch(8, 6)),
            (Mesh(pipeline=2), Batch(6, 4)),  # twice as many micro-batches as stages
            (Mesh(tensor=2, pipeline=2), Batch(8, 6)),
            (Mesh(pipeline=4), Batch(6, 8)),
            (Mesh(tensor=2, pipeline=4), Batch(8, 12)),
        ],
    )
    def test_the_shares_of_the_data_divide_a_global_batch_not_the_devices(self, mesh: Mesh, batch: Batch) -> None:
        chosen = choose_batch(largest=8, fraction=1.0, global_batch=96, gpu_count=8, mesh=mesh)
        assert chosen == batch
        assert batch.micro_batch * batch.accumulation_steps * 8 // mesh.model_degree == 96

    @pytest.mark.parametrize(
        ("global_batch", "batch"),
        [
            (16, Batch(2, 8)),
            (12, Batch(1, 12)),
            (10, Batch(1, 10)),
            (8, Batch(1, 8)),
            (7, Batch(1, 7)),
            (4, Batch(1, 4)),
        ],
    )
    def test_a_pipeline_gets_as_many_micro_batches_as_a_small_global_batch_has(
        self, global_batch: int, batch: Batch
    ) -> None:
        mesh = Mesh(pipeline=4)
        assert choose_batch(largest=8, fraction=1.0, global_batch=global_batch, gpu_count=4, mesh=mesh) == batch

    def test_without_a_global_batch_a_pipeline_gets_four_micro_batches_for_each_stage(self) -> None:
        assert choose_batch(largest=40, fraction=0.5, gpu_count=2, mesh=Mesh(pipeline=2)) == Batch(20, 8)
        assert choose_batch(largest=40, fraction=0.5, gpu_count=2, mesh=Mesh(tensor=2)) == Batch(20, 1)

    def test_micro_batches_are_a_multiple_of_the_stages_if_they_can_be(self) -> None:
        chosen = choose_batch(largest=100, fraction=1.0, global_batch=30, gpu_count=3, mesh=Mesh(pipeline=3))
        assert chosen == Batch(5, 6)
        chosen = choose_batch(largest=100, fraction=1.0, global_batch=35, gpu_count=3, mesh=Mesh(pipeline=3))
        assert chosen == Batch(5, 7), "35 has no divisor that is a multiple of 3"
