"""The prediction for people: the answer first, a bar for what takes memory, and that nothing of it was measured."""

from __future__ import annotations

import io
import json

import msgspec
import pytest
from rich.console import Console

from advisor.hardware.mesh import Mesh
from advisor.methods.setting import use
from advisor.phase import Phase
from advisor.policy.policy import Policy
from advisor.predict.policy_outlook import AtBatch, Outlook
from advisor.predict.prediction import Category, Manner, Reserved
from advisor.predict.roofline import Bound, PredictedPhase, PredictedStep
from advisor.report.json_documents import json_outlook
from advisor.report.outlook_view import OutlookView

GIB = 2**30


def at(micro_batch: int, activations: int) -> AtBatch:
    return AtBatch(
        micro_batch=micro_batch,
        peak_bytes=4 * GIB + activations,
        phase="backward",
        operator="_log_softmax_backward_data.default",
        parts={
            Category.PARAMETERS: GIB,
            Category.ACTIVATIONS: activations,
            Category.OPTIMIZER_STATE: 3 * GIB - 1000,
            Category.BATCH: 1000,
        },
        phase_peaks={"idle": 4 * GIB, "forward": 4 * GIB, "backward": 4 * GIB + activations, "optimizer": 4 * GIB},
        activation_bytes=activations,
    )


FITS = Outlook(
    workload="gpt2",
    policy=Policy(methods=(use("checkpoint", every=2),), micro_batch=8),
    device="a device",
    limit_bytes=24 * GIB,
    limit_from="--memory-limit",
    asked=at(8, 2 * GIB),
    batch_from="BATCH_SIZE",
    largest=at(80, 20 * GIB),
    fits=True,
    manner=Manner.ALIGNED,
    traced_at=(4, 8),
    trace_seconds=3.2,
    notes=("Something to know.",),
)


def printed(outlook: Outlook, width: int = 80, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(file=stream, width=width, highlight=False).print(OutlookView(outlook))
    stream.flush()
    return stream.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined, no-any-return]


def joined(text: str) -> str:
    return " ".join(text.split())


def test_the_answer_comes_first_and_is_said_to_be_a_prediction() -> None:
    text = joined(printed(FITS))
    assert text.startswith("gpt2: checkpoint every=2 on a device Predicted from a trace; nothing was trained")
    assert "It fits: batch 8 (BATCH_SIZE) needs 6.00 GiB of 24.0 GiB (--memory-limit)." in text
    assert "The largest batch that fits is 80." in text
    assert text.endswith("Something to know.")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"fits": False, "limit_bytes": 5 * GIB}, "It does not fit: batch 8 (BATCH_SIZE) needs 6.00 GiB but there are"),
        ({"fits": False, "largest": None}, "Not even a batch of 1 fits."),
        ({"largest": None}, "every batch fits"),
    ],
)
def test_what_does_not_fit(changes: dict[str, object], words: str) -> None:
    assert words in joined(printed(msgspec.structs.replace(FITS, **changes)))


def test_the_peak_has_its_phase_its_operator_and_a_bar_for_each_category() -> None:
    lines = printed(FITS).splitlines()
    title = next(index for index, line in enumerate(lines) if line.startswith("Batch 8:"))
    assert lines[title] == "Batch 8: 6.00 GiB at the peak (backward pass, log_softmax_backward_data)"
    chart = [line.split() for line in lines[title + 1 : title + 4]]
    assert [words[0] for words in chart] == ["optimizer", "activations", "parameters"], "the largest first"
    assert [words[-2] for words in chart] == ["50%", "33%", "17%"]
    bars = [len(words[-1]) for words in chart]
    assert bars[1] == pytest.approx(bars[0] * 2 / 3, abs=1)
    assert bars[2] == pytest.approx(bars[0] / 3, abs=1)
    assert "the batch" not in "\n".join(lines[title + 1 : title + 5]), "what is nothing beside the rest has no bar"
    assert lines[title + 4].strip().startswith("peaks: forward pass 4.00 GiB, backward pass 6.00 GiB")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_it_keeps_to_the_width_of_the_terminal(width: int) -> None:
    assert max(map(len, printed(FITS, width).splitlines())) <= width


def test_a_terminal_without_unicode_gets_plain_bars_and_a_pipe_no_colour() -> None:
    text = printed(FITS, encoding="ascii")
    assert "####" in text
    assert "\x1b" not in printed(FITS)


def replay(expandable: bool) -> Reserved:
    return Reserved(
        expandable=expandable,
        micro_batch=8,
        peak_bytes=7 * GIB - expandable * GIB // 2,
        allocated_bytes=6 * GIB,
        largest_batch=70 + expandable,
        largest_peak_bytes=23 * GIB,
    )


def test_where_an_allocator_decides_both_of_its_ways_are_shown() -> None:
    outlook = msgspec.structs.replace(FITS, reserved=(replay(False), replay(True)))
    text = joined(printed(outlook))
    assert "needs 7.00 GiB of 24.0 GiB" in text
    assert "by default 7.00 GiB at batch 8; largest batch 70 (23.0 GiB)" in text
    assert "with expandable_segments 6.50 GiB at batch 8; largest batch 71 (23.0 GiB)" in text


STEP = PredictedStep(
    batch=8,
    phases=(
        PredictedPhase(
            phase=Phase.FORWARD,
            predicted_seconds=0.25,
            seconds_by_bound={Bound.COMPUTE: 0.2, Bound.BANDWIDTH: 0.05},
            flops=3.0,
            moved_bytes=1.0,
            transferred_bytes=0.0,
            launches=1.0,
        ),
    ),
    measured_rates=False,
)


def test_times_are_shown_with_what_bounds_them_and_what_they_rest_on() -> None:
    text = joined(printed(msgspec.structs.replace(FITS, times=(STEP,))))
    assert "nothing was measured" in text
    assert "predicted at published peak rates, which no training reaches" in text
    assert "batch 8: 250 ms, 32.0 samples/s" in text
    assert "forward pass 250 ms bound by compute" in text
    assert "3.00 floating-point operations for each byte moved" in text


def test_rates_that_were_measured_are_said_to_be() -> None:
    step = msgspec.structs.replace(STEP, measured_rates=True)
    assert "only its rates were measured" in joined(printed(msgspec.structs.replace(FITS, times=(step,))))


def test_a_prediction_that_is_a_line_through_two_points_is_called_that() -> None:
    assert "line through two points" not in joined(printed(FITS))
    assert "line through two points" in joined(printed(msgspec.structs.replace(FITS, manner=Manner.FITTED)))


def test_the_json_says_that_it_is_predicted() -> None:
    document = msgspec.json.decode(json_outlook(FITS))
    assert document["predicted"] is True
    assert document["fits"] is True
    assert document["methods"] == [{"name": "checkpoint", "parameters": {"every": 2}}]
    assert document["asked"]["parts"]["optimizer_state"] == 3 * GIB - 1000
    assert document["largest"]["micro_batch"] == 80
    assert document["limit_bytes"] == 24 * GIB


def test_a_mesh_is_named_and_stands_in_the_document() -> None:
    cut = msgspec.structs.replace(FITS.policy, gpu_count=4, mesh=Mesh(tensor=2))
    outlook = msgspec.structs.replace(FITS, policy=cut)
    assert "gpt2: checkpoint every=2 (2 data x 2 tensor) on a device" in printed(outlook)
    assert json.loads(json_outlook(outlook))["mesh"] == {"data": 2, "tensor": 2, "pipeline": 1}
    assert "mesh" not in json.loads(json_outlook(FITS))


def test_on_a_narrow_terminal_what_the_allocator_holds_goes_on_below_its_own_column() -> None:
    outlook = msgspec.structs.replace(FITS, reserved=(replay(False), replay(True)))
    lines = printed(outlook, width=60).splitlines()
    row = next(number for number, line in enumerate(lines) if "by default" in line)
    assert lines[row].rstrip().endswith(";")
    assert lines[row + 1].startswith(" " * 28 + "largest batch")
