"""One search with everything that can happen in it."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console, RenderableType

from advisor.decide.answer import Answer
from advisor.decide.candidate import Recommendation, Role
from advisor.decide.choose import choose
from advisor.decide.confirmation import Confirmation
from advisor.goal import Fidelity, Goal
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.measure.measurement import StopReason
from advisor.methods.setting import use
from advisor.report.why import explained
from advisor.trial.outcome import Outcome
from tests.decide.examples import GIB, baseline, goal, lost, measured, measurement
from tests.search.test_build_space import FACTS

BF16 = use("precision", dtype="bf16")
CHECKPOINT = use("checkpoint", every=2)
ADAM = use("adam_8bit")
CHUNKED = use("chunked_cross_entropy", chunks=8)
IN_BACKWARD = use("optimizer_in_backward")

CANDIDATES = [
    baseline(61.3),
    measured(112.4, BF16, role=Role.HAND_TUNED, fidelity=Fidelity.PRECISION, drift=0.0041, micro_batch=24),
    measured(131.7, BF16, CHUNKED, fidelity=Fidelity.PRECISION, drift=0.0042, micro_batch=48, peak=int(7.2 * GIB)),
    measured(132.1, BF16, CHUNKED, IN_BACKWARD, fidelity=Fidelity.PRECISION, drift=0.0042, micro_batch=56),
    measured(140.2, ADAM, BF16, CHECKPOINT, CHUNKED, fidelity=Fidelity.LOSSY, drift=0.093, micro_batch=104),
    measured(80, CHECKPOINT, micro_batch=64, accumulation_steps=4, stop_reason=StopReason.OUTPACED),
    lost(Outcome.OUT_OF_MEMORY, BF16, reason="the allocator asked for 1.2 GiB more [limit 8.00 GiB]", micro_batch=48),
    lost(Outcome.SCREENED, ADAM, reason="one sample is predicted to need 9.10 GiB", predicted=int(9.1 * GIB)),
    lost(Outcome.FAILED, use("precision", dtype="fp16"), reason="RuntimeError: expected [Half] but found Float"),
]

REFUSED = {"swap": "the device is a CPU", "precision(dtype=tf32)": "tf32 is a format of NVIDIA GPUs"}

CPU = Hardware(
    kind=DeviceKind.CPU,
    device="cpu",
    name="a CPU",
    memory_bytes=16 * GIB,
    free_bytes=12 * GIB,
    host_memory_bytes=16 * GIB,
    host_free_bytes=12 * GIB,
    host_cores=2,
)

CONFIRMED = Confirmation(
    outcome=Outcome.OK,
    measurement=measurement(130.2, micro_batch=48, peak=int(7.3 * GIB)),
    promised_samples_per_second=131.7,
    baseline_samples_per_second=61.0,
)


def recommendation(*, confirmation: Confirmation | None = CONFIRMED) -> Recommendation:
    answer = choose(
        CANDIDATES, goal(), refused_settings=REFUSED, untried=274, stopped_because="the time limit of 5m00s was reached"
    )
    return explained(msgspec.structs.replace(answer, confirmation=confirmation), goal())


def answered(found: Recommendation, aim: Goal) -> Answer:
    """The recommendation as the answer of a whole run."""
    return Answer(
        recommendation=found,
        workload="gpt2",
        goal=aim,
        folder="out",
        hardware=CPU,
        facts=FACTS,
        versions={"torch": "2.13.0"},
        date="2026-01-01",
        trials=10,
        trial_budget=40,
        time_budget_seconds=210.0,
        complete=True,
        exhausted=False,
        notes=("a note",),
        timings={"trials": 12.5},
    )


def shown(renderable: RenderableType, *, width: int = 80, color: bool = False) -> str:
    """What a console of a width prints."""
    stream = io.StringIO()
    Console(file=stream, width=width, force_terminal=color, color_system="truecolor" if color else None).print(
        renderable, crop=False
    )
    return stream.getvalue()


def words(text: str) -> str:
    """The text without line breaks, frames and repeated blanks."""
    return " ".join(text.replace("│", " ").split())
