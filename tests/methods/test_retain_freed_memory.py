"""Freed memory that a CPU's training keeps, each in a process of its own: the setting is the whole process's.

Processes are forked from one that has loaded torch, which takes seconds, and has done nothing else.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from advisor.errors import MethodRefusedError
from advisor.methods.compose import apply_settings, judge
from advisor.methods.process import glibc, retain_freed_memory
from advisor.methods.process.glibc import why_no_mallopt
from advisor.methods.setting import use
from tests.methods.tiny import cpu, gpu, training_of

KEEP = use("retain_freed_memory")

needs_glibc = pytest.mark.skipif(bool(why_no_mallopt()), reason="mallopt is glibc's")

_PRELUDE = """
import json, resource, statistics, threading
import torch
from advisor.methods.compose import apply_settings
from advisor.training.training import Training
from advisor.methods.setting import use

torch.manual_seed(0)
KEEP = use("retain_freed_memory")
SAMPLES = 9216  # blocks of 36 MiB, more than glibc ever keeps by itself, and of a quarter of one

def model():
    # Large tensors between small ones, of operators that take no time: what is looked at is memory.
    blocks = [(torch.nn.Linear(8, 1024), torch.nn.LeakyReLU(), torch.nn.Linear(1024, 8)) for _ in range(2)]
    return torch.nn.Sequential(*(layer for block in blocks for layer in block))

def loss(model, batch):
    return model(batch).square().mean()

def faults_of_a_step(training):
    batch = torch.randn(SAMPLES, 8)
    for _ in range(4):
        training.step(batch)
    faults = []
    for _ in range(3):  # one of them may find a gap too small, and take another block
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        training.step(batch)
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return statistics.median(faults)

def keeps():
    block = torch.ones(2**26)  # 256 MiB, more than is free between other blocks
    held = resident_bytes()
    del block
    return held - resident_bytes() < 2**27

def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()
"""


_FORKING = (
    _PRELUDE
    + """
import os, sys, traceback

for path in iter(sys.stdin.readline, ""):
    process = os.fork()
    if process == 0:
        status = 1
        try:
            with open(path.strip()) as program, open(path.strip() + ".told", "w") as sys.stdout:
                exec(program.read())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""
)

InAProcess = Callable[[str], Any]


@pytest.fixture(scope="module")
def in_a_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InAProcess]:
    """What a program says last, in a process of its own."""
    folder = tmp_path_factory.mktemp("forked")
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-c", _FORKING],
            env=_environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            bufsize=1,
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None

        def told(program: str) -> Any:
            path = folder / "program"
            path.write_text(textwrap.dedent(program))
            server.stdin.write(f"{path}\n")
            assert server.stdout.readline() == "0\n", (folder / "errors").read_text()
            return json.loads((folder / "program.told").read_text().splitlines()[-1])

        yield told


def executed(program: str, **environment: str) -> Any:
    """The same in a process that starts with variables of its own."""
    done = subprocess.run(
        [sys.executable, "-c", _PRELUDE + textwrap.dedent(program)],
        env=_environment(environment),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def _environment(further: dict[str, str]) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    return own | {"OMP_NUM_THREADS": "1"} | further


@needs_glibc
def test_a_step_takes_no_page_from_the_system_anew_although_the_model_was_built_before(
    in_a_process: InAProcess,
) -> None:
    plain, kept, closed, notes = in_a_process(
        """
        training = Training(model(), compute_loss=loss)
        plain = faults_of_a_step(training)
        training.close()
        training = Training(model(), compute_loss=loss)
        apply_settings(training, [KEEP])
        kept = faults_of_a_step(training)
        held = resident_bytes()
        training.close()
        print(json.dumps([plain, kept, held - resident_bytes(), training.notes]))
        """
    )
    assert plain > 28_000, "110 MiB and more in pages of 4 KiB"
    assert kept < plain / 4, "at worst a gap is too small for one of the blocks, step after step"
    assert closed > 60 * 2**20, "what is free goes back to the system when the training closes"
    assert notes == []


@needs_glibc
def test_gradients_and_losses_are_the_same_bits(in_a_process: InAProcess) -> None:
    plain, kept = (
        in_a_process(
            f"""
            training = Training(model(), compute_loss=loss)
            apply_settings(training, {settings})
            losses = [training.step(torch.randn(SAMPLES, 8)).item() for _ in range(2)]
            print(json.dumps([losses, sum(p.double().sum().item() for p in training.model.parameters())]))
            """
        )
        for settings in ("[]", "[KEEP]")
    )
    assert plain == kept


def test_what_gaps_of_changing_batches_hold_goes_back_once_it_is_half_again_what_a_step_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Trap: glibc does not fill the gap that an aligned block left with another of its size; it grew to 3 GiB here.

    How soon gaps add up differs from process to process, so that the process here is made up: a step needs 400 MiB, and
    every batch of another size leaves a gap of 30.
    """
    process = {"held": 0, "trims": 0}

    def trim() -> None:
        process["held"], process["trims"] = 0, process["trims"] + 1

    monkeypatch.setattr(glibc, "resident_bytes", lambda: process["held"])
    monkeypatch.setattr(glibc, "trim", trim)
    training = training_of("convnet")
    training.micro_batch = 8
    surplus = retain_freed_memory._Surplus(training)
    most = []
    for _ in range(200):
        process["held"] = max(400, process["held"] + 30)
        most.append(process["held"])
        surplus()
    assert max(most) <= 1.5 * 400 + 30
    assert 10 <= process["trims"] <= 30, "not after every step either, which would take all pages anew"


@needs_glibc
@pytest.mark.parametrize("between", [1, 6])
def test_a_large_batch_after_small_ones_takes_no_page_anew_in_each_of_its_steps(
    in_a_process: InAProcess, between: int
) -> None:
    """Trap: compared with the small one's needs, the large one's memory was given back after each of its steps."""
    faults = in_a_process(
        f"""
        training = Training(model(), compute_loss=loss)
        apply_settings(training, [KEEP])
        faults = []
        for _ in range(9):
            training.micro_batch = 1024
            for _ in range({between}):
                training.step(torch.randn(1024, 8))
            training.micro_batch = SAMPLES
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            training.step(torch.randn(SAMPLES, 8))
            faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        print(json.dumps(faults))
        """
    )
    assert faults[0] > 28_000, "110 MiB and more in pages of 4 KiB"
    assert statistics.median(faults[4:]) < faults[0] / 10, "but for steps that find a gap too small for a block"


@needs_glibc
def test_other_threads_get_blocks_that_their_arenas_cannot_hold(in_a_process: InAProcess) -> None:
    """Trap: an arena of another thread is at most 64 MiB, and mappings are off."""
    sizes = in_a_process(
        """
        training = Training(model(), compute_loss=loss)
        apply_settings(training, [KEEP])
        sizes = []
        def fill():
            sizes.append(torch.ones(200 * 2**18).sum().item())
        threads = [threading.Thread(target=fill) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(json.dumps(sizes))
        """
    )
    assert len(sizes) == 2


@needs_glibc
@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["first closes first", "second closes first"])
def test_memory_is_kept_until_the_last_of_several_trainings_closes(
    in_a_process: InAProcess, order: tuple[int, int]
) -> None:
    seen = in_a_process(
        f"""
        trainings = [Training(model(), compute_loss=loss) for _ in range(2)]
        seen = [keeps()]
        for training in trainings:
            apply_settings(training, [KEEP])
        for number in {order}:
            seen.append(keeps())
            trainings[number].close()
        print(json.dumps([*seen, keeps(), *(training.notes for training in trainings)]))
        """
    )
    assert seen == [False, True, True, False, [], []]


@needs_glibc
@pytest.mark.parametrize(
    "environment",
    [
        {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "-1"},
        {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=0:glibc.malloc.trim_threshold=1000000000"},
    ],
    ids=["variables", "tunables"],
)
def test_a_process_that_keeps_its_memory_already_is_left_alone(environment: dict[str, str]) -> None:
    notes = executed(
        """
        training = Training(model(), compute_loss=loss)
        apply_settings(training, [KEEP])
        training.close()
        print(json.dumps([training.notes, keeps()]))
        """,
        **environment,
    )
    said = "retain_freed_memory changed nothing: this process was started so that it keeps what it frees"
    assert notes == [[said], True]


@needs_glibc
def test_where_memory_goes_back_all_the_same_it_says_so(in_a_process: InAProcess) -> None:
    (note,) = in_a_process(
        """
        def train():
            training = Training(model(), compute_loss=loss)
            apply_settings(training, [KEEP])
            training.close()
            print(json.dumps(training.notes))
        thread = threading.Thread(target=train)  # an arena of its own, which cannot hold the block
        thread.start()
        thread.join()
        """
    )
    assert note.startswith("retain_freed_memory changed nothing: what torch frees here goes back to the system")


def test_a_gpu_keeps_its_memory_anyway() -> None:
    verdict = judge([KEEP], facts=None, hardware=gpu((9, 0)))
    assert not verdict.applicable
    assert "where torch keeps it already" in verdict.reason
    training = training_of("convnet")
    training.device = torch.device("cuda")
    with pytest.raises(MethodRefusedError, match="host's memory"):
        apply_settings(training, [KEEP])


def test_systems_without_glibc_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(glibc.sys, "platform", "darwin")
    assert "the system is darwin" in judge([KEEP], facts=None, hardware=cpu()).reason
    monkeypatch.setattr(glibc.sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert "another C library" in judge([KEEP], facts=None, hardware=cpu()).reason
    with pytest.raises(MethodRefusedError, match="another C library"):
        apply_settings(training_of("convnet"), [KEEP])


@needs_glibc
def test_another_allocator_in_the_place_of_glibcs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap: jemalloc has no mallopt of its own, so that glibc's is found, says yes, and changes nothing."""
    real = ctypes.CDLL

    class Preloaded:
        gnu_get_libc_version = mallopt = malloc = real(None).mallopt

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Preloaded() if name is None else real(name))
    assert "takes its memory from another" in judge([KEEP], facts=None, hardware=cpu()).reason
