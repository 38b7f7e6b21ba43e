"""The benchmark of predicted step times runs on a small model, and its errors match a calculation by hand."""

from __future__ import annotations

import time

import torch

from advisor.workload._user_functions import Workload
from benchmarks.time_prediction import Row, rows_of, table


def row(batch: int, *, measured: float, roofline: float, two_batches: float | None = None) -> Row:
    return Row(
        model="a model",
        setting="plain",
        batch=batch,
        measured=measured,
        roofline=roofline,
        bound="forward: compute",
        plain_factor=None,
        one_batch=None,
        two_batches=two_batches,
    )


def test_the_table_shows_every_prediction_with_its_error() -> None:
    text = table([row(4, measured=0.1, roofline=0.08), row(24, measured=0.5, roofline=0.6, two_batches=0.45)])
    assert "| a model | plain | 4 | 100.0 ms | 80.0 ms (-20%) |  |  |  | forward: compute |" in text
    assert "| a model | plain | 24 | 500.0 ms | 600.0 ms (+20%) |  |  | 450.0 ms (-10%) | forward: compute |" in text
    assert "roofline 20.0% (largest 20.0%), two batches 10.0% (largest 10.0%)." in text


def test_no_prediction_is_compared_with_its_own_input() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(8, 8)

        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.inner(values))

    workload = Workload(
        build_model=lambda: torch.nn.Sequential(Block(), Block(), Block()),
        make_batch=lambda samples: torch.zeros(samples, 8),
        compute_loss=lambda model, batch: model(batch).square().mean(),
        blocks=(Block,),
    )
    rows = list(rows_of("tiny", workload, (2, 4, 8), torch.device("cpu"), time.perf_counter, 0.01))
    assert [(one.setting, one.batch) for one in rows] == [
        (setting, batch) for setting in ("plain", "checkpoint every=1") for batch in (2, 4, 8)
    ]
    assert [one.one_batch is None for one in rows] == [True, False, False] * 2
    assert [one.two_batches is None for one in rows] == [True, True, False] * 2
    assert [one.plain_factor is None for one in rows] == [True, False, False, False, False, False]
    assert all(one.roofline > 0 and one.measured > 0 for one in rows)
