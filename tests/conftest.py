"""What holds for every test."""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from advisor.hardware import contention
from advisor.trial.process import fork_client
from advisor.trial.process.fork_client import servers_are_kept
from tests import quick_workers

if TYPE_CHECKING:
    from tests.distributed.ranks import Launcher

_USUAL_SERVER = fork_client._COMMAND

_READ_BY_MODELS = {"LOSS_SCALE", "MODEL_HIDDEN", "MODEL_LAYERS", "NOBODY_READS_THIS"}
"""Variables of tests that no library looks at: one process forks the workers of all of them."""

# Test processes share the cores, and every worker that they start inherits this: threads that wait for each other
# on a busy machine make small steps a hundred times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

os.environ["HF_HUB_OFFLINE"] = "1"  # Libraries read it when they are imported. No test asks the network.


@pytest.fixture(autouse=True, scope="session")
def nothing_is_kept_for_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Predictions go to a folder of the tests."""
    before = os.environ.get("MOMADVISE_CACHE")
    os.environ["MOMADVISE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["MOMADVISE_CACHE"]
    else:
        os.environ["MOMADVISE_CACHE"] = before


@pytest.fixture(autouse=True, scope="session")
def trials_take_short_turns() -> Iterator[dict[str, int]]:
    """Those of this process and of its workers; a command that a test starts takes as long as a user's.

    A vague promise is confirmed in two pairs of processes instead of up to five, and others are watched for a moment.
    Yields how many it is for a user.
    """
    from advisor.session.answer import wrapper_runs
    from advisor.session.setup import other_load

    quick_workers.hurry()
    usual = {name: getattr(wrapper_runs, name) for name in ("_MOST_PAIRS", "_PROCESSES")}
    with pytest.MonkeyPatch.context() as patch:
        for name in usual:
            patch.setattr(wrapper_runs, name, 2)
        patch.setattr(wrapper_runs, "other_load", functools.partial(contention.other_load, seconds=0.05))
        patch.setattr(other_load, "_SECONDS", 0.05)
        patch.setattr(fork_client, "_COMMAND", quick_workers.COMMAND)
        patch.setattr(fork_client, "_READ_LATE", fork_client._READ_LATE | _READ_BY_MODELS)
        yield usual


@pytest.fixture
def at_usual_speed() -> Iterator[None]:
    """Measurements of this process take the time that they take for a user."""
    with quick_workers.usual_speed():
        yield


@pytest.fixture
def as_many_pairs_as_usual(trials_take_short_turns: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A vague promise is confirmed in as many pairs of processes as for a user."""
    from advisor.session.answer import wrapper_runs

    for name, value in trials_take_short_turns.items():
        monkeypatch.setattr(wrapper_runs, name, value)


@pytest.fixture
def workers_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers come from the product's own server, and take the time that they take for a user."""
    monkeypatch.setattr(fork_client, "_COMMAND", _USUAL_SERVER)
    monkeypatch.setenv("MOMADVISE_TEST", "as usual")  # what serves the others does not serve these


@pytest.fixture(autouse=True, scope="session")
def libraries_are_loaded_once() -> Iterator[None]:
    """Workers of all tests of this process are forked from one that has loaded torch."""
    with servers_are_kept():
        yield


@pytest.fixture(scope="session")
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    """Ranks of all tests of this process are forked from one that has loaded what they need."""
    from tests.distributed.ranks import Launcher

    with Launcher(tmp_path_factory.mktemp("launcher")) as launcher:
        yield launcher


_LONGEST = (
    "cuda_device/test_predicted_images.py",
    "cuda_device/test_predicted_sequences.py",
    "contract/test_pairs.py",
    "pipeline_parallel/test_policies_in_stages.py",
    "tensor_parallel/test_policies_on_ranks.py",
    "faults/test_matrix.py",
    "distributed/test_equals_single_process.py",
    "contract/test_each_method.py",
    "session/test_main_job.py",
    "session/test_library_call.py",
    "session/test_verify.py",
    "trial/test_fidelity.py",
    "truth/test_policies.py",
    "truth/test_splitting.py",
    "methods/test_retain_freed_memory.py",
    "methods/test_optimal_checkpoint.py",
    "trial/test_run_trial.py",
)
"""Files that take half a minute, or nearly, on one busy core."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files go first, then others with slow tests, and those that take moments last.

    At the end, a process would run one of the long ones while the other has nothing to do.
    """
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> int:
        return 0 if item.path.as_posix().endswith(_LONGEST) else 1 if item.path in slow else 2

    items.sort(key=place)


def pytest_collection() -> None:
    """Nothing that is imported goes again: it need not be looked for."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What the tests are made of lives to their end, and need not be gone through by every garbage collection."""
    gc.enable()
    _exempt_what_is_left()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """What a file has imported lives on too. What its fixtures held is gone by now."""
    if nextitem is not None and nextitem.path != item.path:
        _exempt_what_is_left()


def _exempt_what_is_left() -> None:
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()
