"""Before its first step, a forked trial has pages of its own of everything that the optimizer writes to."""

from __future__ import annotations

import mmap
import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch

from advisor.measure.page_faults import page_faults
from advisor.trial.spec import SizeTrial
from advisor.trial.worker import bench, prepared
from advisor.trial.worker.failure import AllocatorRefusals
from advisor.trial.worker.own_pages import own_pages
from advisor.workload._loading import load_workload
from tests.trial.specs import spec


def _is_advised() -> bool:
    some = mmap.mmap(-1, mmap.PAGESIZE)
    try:
        some.madvise(23)
    except (AttributeError, OSError):
        return False
    return True


pytestmark = pytest.mark.skipif(not _is_advised(), reason="needs Linux 5.14 or newer")

PAGES = 4096
"""Of the trained parameter below."""


def model(*, trained: bool = True) -> torch.nn.Module:
    layer = torch.nn.Linear(1024, PAGES * mmap.PAGESIZE // 4 // 1024, bias=False)
    return layer.requires_grad_(trained)


def faults_of_writing(shared: torch.nn.Module, *, owned: bool) -> tuple[float, float]:
    """Page faults of a first write to a model's parameters in a forked process, and of a second."""

    def child(end: Connection) -> None:
        if owned:
            own_pages(shared)
        counts = []
        for _ in range(2):
            before = page_faults()
            for parameter in shared.parameters():
                parameter.detach().numpy().fill(1.0)
            after = page_faults()
            assert before is not None
            assert after is not None
            counts.append(after - before)
        end.send(counts)

    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=child, args=(theirs,))
    process.start()
    theirs.close()
    first, second = ours.recv()
    process.join()
    return first, second


def test_the_first_write_copies_no_page() -> None:
    shared = model()
    shared_faults, _ = faults_of_writing(shared, owned=False)
    assert shared_faults > PAGES / 2, "otherwise there is nothing to spare it"
    assert faults_of_writing(shared, owned=True)[0] < PAGES / 10


def test_nothing_else_than_pages_changes() -> None:
    one = model()
    before = {name: parameter.clone() for name, parameter in one.named_parameters()}
    versions = [parameter._version for parameter in one.parameters()]
    addresses = [parameter.data_ptr() for parameter in one.parameters()]
    own_pages(one)
    assert all(torch.equal(parameter, before[name]) for name, parameter in one.named_parameters())
    assert [parameter._version for parameter in one.parameters()] == versions
    assert [parameter.data_ptr() for parameter in one.parameters()] == addresses


def test_what_is_not_trained_stays_shared() -> None:
    assert faults_of_writing(model(trained=False), owned=True)[0] > PAGES / 2


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # torch says so once in a process
def test_weights_in_a_file_that_is_mapped_for_reading_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    np.ones(2 * mmap.PAGESIZE, dtype=np.float32).tofile(path)
    mapped = np.memmap(path, dtype=np.float32, mode="r")
    one = torch.nn.Module()
    one.register_parameter("weight", torch.nn.Parameter(torch.from_numpy(mapped)))
    own_pages(one)
    assert torch.equal(one.weight, torch.ones(2 * mmap.PAGESIZE))  # type: ignore[arg-type]


def test_lazy_parameters_have_no_pages_yet() -> None:
    own_pages(torch.nn.LazyLinear(4))


@pytest.mark.parametrize("is_prepared", [False, True])
def test_a_trial_owns_the_pages_of_a_prepared_model_once_its_policy_is_applied(
    monkeypatch: pytest.MonkeyPatch, is_prepared: bool
) -> None:
    owned: list[int] = []
    monkeypatch.setattr(bench, "own_pages", lambda model: owned.append(sum(one.numel() for one in model.parameters())))
    asked = spec(kind=SizeTrial)
    state = None
    if is_prepared:
        state = prepared.Prepared(identity=(asked.workload.fingerprint, asked.seed), threads=1)
        state.workload = load_workload(asked.workload)
        state.model, state.built = prepared._built(state.workload, asked.seed, state.host_data)
        state.random_state = torch.get_rng_state()
    found = bench.Bench(asked, lambda _: None, AllocatorRefusals(torch.device("cpu")), prepared=state)
    with found.training(asked.policy) as training:
        parameters = sum(one.numel() for one in training.model.parameters())
    assert owned == ([parameters] if is_prepared else [])
