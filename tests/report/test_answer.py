from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advisor.decide.choose import choose
from advisor.decide.confirmation import Confirmation
from advisor.goal import Preference
from advisor.measure.in_turn import Speedup
from advisor.methods.setting import MethodSetting
from advisor.report.answer import AnswerView, confirmation_words
from advisor.report.console import SafeConsole
from advisor.report.streams import ERRORS
from advisor.report.why import explained
from advisor.trial.outcome import Outcome
from tests.decide.costs import timed
from tests.decide.examples import baseline, goal, measured

from .cost_scenario import cost_goal, cost_recommendation
from .scenario import ADAM, BF16, CHECKPOINT, CHUNKED, CONFIRMED, recommendation, shown, words

LONG_PATH = Path("/home/somebody/" + "a-long-folder-name/" * 6 + "policy.yaml")
ENDED: dict[str, Any] = {"refused_settings": {}, "stopped_because": "the time limit of 40s was reached"}
APPLY = ("from wrapper import prepare", "training = prepare(model)", "loss = training.step(batch)")


def view() -> AnswerView:
    return AnswerView(
        recommendation(),
        goal(),
        files={"policy": LONG_PATH, "wrapper": Path("wrapper.py")},
        apply_lines=APPLY,
        notes=("batches were kept below [12 s]",),
    )


@pytest.mark.parametrize("width", [80, 120])
def test_the_answer_has_every_part_in_order(width: int) -> None:
    text = words(shown(view(), width=width))
    parts = [
        "Train with chunked_cross_entropy chunks=8 + precision bf16, batch 48",
        "speed 2.15 times the baseline, ±1.4%: 132 instead of 61.3 samples/s",
        "confirmed yes: in a fresh process it ran at 99% of this speed (±10% is noise)",
        "peak 7.30 GiB, 91% of the 8.00 GiB limit",
        "batch 48 samples a step, not 8: new learning rate, or --global-batch 8",
        "apply",
        *APPLY,
        "files policy.yaml in /home/somebody/",
        "wrapper.py in .",
        "Measured #",
        "Why Training with chunked_cross_entropy chunks=8 + precision bf16 at batch 48 runs 132 samples/s",
        "Confirmed in a fresh process: the wrapper trains 130 samples/s, 99% of the 132 promised, at a peak of 7.30",
        "note: batches were kept below [12 s]",
        "Not measured",
        "Not applicable here",
    ]
    positions = [text.index(part) for part in parts]
    assert positions == sorted(positions)


def test_beside_a_promise_of_its_own_a_confirmation_is_a_share_of_what_the_search_measured() -> None:
    """Trap: "1.35 times the baseline: 135 samples/s" was followed by "it ran at 90% of this speed"."""
    one = msgspec.structs.replace(
        CONFIRMED, drift=1.0, promise=Speedup(value=1.94, low=1.8, high=2.1, rounds=1), baseline_samples_per_second=61.3
    )
    text = words(shown(dataclasses.replace(view(), recommendation=recommendation(confirmation=one))))
    assert "speed 1.94 times the baseline" in text
    assert "it ran at 99% of what the search measured, at the pace the machine had then (±10% is noise)" in text


@pytest.mark.parametrize(
    ("methods", "untried", "little"),
    [
        ((), 274, True),
        ((CHECKPOINT,), 274, True),
        ((CHECKPOINT, BF16, ADAM, CHUNKED), 274, False),
        ((CHECKPOINT,), 0, False),  # It was all there is to try.
    ],
)
def test_plain_training_is_no_advice_where_next_to_nothing_was_measured(
    methods: tuple[MethodSetting, ...], untried: int, little: bool
) -> None:
    slower = [measured(50.0, method) for method in methods]
    answer = explained(choose([baseline(100.0), *slower], goal(), untried=untried, **ENDED), goal())
    text = words(shown(AnswerView(answer, goal(), files={}, apply_lines=()), width=120))
    title = "Train with plain, batch 8; too little was measured for more"
    assert (title in text) is little
    assert ("Keep what you have: train with plain, batch 8" in text) is not little
    assert ("use no method" in text) is not little
    assert ("run the same command with a longer --time-limit to continue" in text) is little


@pytest.mark.parametrize("width", [80, 120, 200])
def test_the_first_ten_lines_are_the_answer(width: int) -> None:
    files = {"policy": Path("runs/gpt2/policy.yaml"), "wrapper": Path("runs/gpt2/wrapper.py")}
    lines = shown(dataclasses.replace(view(), files=files), width=width).splitlines()
    parts = ("Train with", "speed", "confirmed", "peak", "batch", *APPLY, "policy.yaml, wrapper.py in runs/gpt2")
    for part in parts:
        assert part in "\n".join(lines[:10])
    assert lines[:10].count("") == 1, "the tenth line ends it"


def test_on_sixty_columns_no_figure_is_cut() -> None:
    for answer in (view(), AnswerView(cost_recommendation(), cost_goal(), files={}, apply_lines=())):
        lines = [line for line in shown(answer, width=60).splitlines() if str(LONG_PATH.parent) not in line]
        assert max(map(len, lines)) <= 60
        headings = next(line for line in lines if "drift" in line)
        assert headings.rstrip().endswith(("role", "drift"))


def test_what_is_not_applicable_is_a_line_for_each_method_and_in_full_when_asked_for() -> None:
    answer = msgspec.structs.replace(
        recommendation(),
        refused_settings={"swap": "a CPU", **{f"intraop_threads(count={count})": "no more than 2" for count in (2, 4)}},
    )
    plain = AnswerView(answer, goal(), files={}, apply_lines=())
    lines = shown(plain).splitlines()
    assert lines[-3:] == [
        "Not applicable here (-v lists all, with their reasons)",
        "  swap: a CPU",
        "  intraop_threads (2): no more than 2",
    ]
    assert "  failed: RuntimeError: expected [Half] but found Float" in lines
    full = shown(dataclasses.replace(plain, verbose=True))
    assert "intraop_threads count=4" in full
    assert "predicted" in full
    assert "-v" not in full


def test_no_line_but_a_path_is_wider_than_the_terminal() -> None:
    assert max(len(line) for line in shown(view()).splitlines() if str(LONG_PATH.parent) not in line) <= 80


def test_a_long_path_stays_on_one_line_so_that_it_can_be_copied() -> None:
    assert any(line.endswith(f"policy.yaml in {LONG_PATH.parent}") for line in shown(view()).splitlines())


def test_the_lines_that_apply_it_can_be_copied_whole() -> None:
    lines = [line.removeprefix("apply").strip() for line in shown(view(), width=20).splitlines()]
    assert set(APPLY) <= set(lines)


def test_parts_without_content_are_left_out() -> None:
    answer = msgspec.structs.replace(recommendation(confirmation=None), refused_settings={}, not_measured=())
    text = shown(AnswerView(answer, goal(), files={}, apply_lines=()))
    for part in ("Not applicable", "Not measured", "files", "apply  ", "onfirmed", "note:"):
        assert part not in text


def test_a_wrapper_that_failed_is_not_called_confirmed() -> None:
    failed = Confirmation(outcome=Outcome.TIMEOUT, reason="after 30 s.", promised_samples_per_second=10)
    text = confirmation_words(failed)
    assert text == "Not confirmed: running the wrapper in a fresh process ended as timeout: after 30 s."


def test_a_wrapper_that_was_never_run_says_why() -> None:
    stopped = Confirmation(
        outcome=Outcome.INTERRUPTED, reason="interrupted before the wrapper had run", promised_samples_per_second=10
    )
    assert confirmation_words(stopped) == "Not confirmed: interrupted before the wrapper had run."


def test_the_baseline_that_was_measured_again_is_compared() -> None:
    assert "The baseline, measured again right after it: 61.0 samples/s; that is 2.13 times as many." in (
        confirmation_words(CONFIRMED)
    )


@pytest.mark.parametrize(("again", "lost"), [(61.0, False), (129.0, False), (140.0, True)])
def test_a_lead_that_is_not_seen_again_stands_in_the_title(again: float, lost: bool) -> None:
    confirmation = msgspec.structs.replace(CONFIRMED, baseline_samples_per_second=again)
    text = words(shown(AnswerView(recommendation(confirmation=confirmation), goal(), files={}, apply_lines=())))
    assert ("Not faster when run again: train with" in text) is lost


def test_fewer_devices_are_no_lost_lead() -> None:
    """``cheapest`` accepts what is slower on fewer of them."""
    again = msgspec.structs.replace(CONFIRMED, baseline_samples_per_second=140.0)
    answer = recommendation(confirmation=again)
    assert answer.baseline is not None
    on_two = msgspec.structs.replace(
        answer.baseline, policy=msgspec.structs.replace(answer.baseline.policy, gpu_count=2)
    )
    fewer = msgspec.structs.replace(answer, baseline=on_two)
    text = words(shown(AnswerView(fewer, goal(), files={}, apply_lines=())))
    assert "Not faster when run again" not in text


@pytest.mark.parametrize(
    ("preference", "said"),
    [
        (Preference(max_latency_seconds=0.31), "That is 320 ms per iteration, above the 310 ms of --max-latency"),
        (Preference(max_cost_usd=0.00125), "That is $0.00128 for an iteration, above the $0.00125 of --max-cost"),
        (
            Preference(deadline_seconds=310, iterations=1000),
            "That is 5m20s for 1,000 iterations, above the 5m10s of --deadline",
        ),
    ],
)
def test_a_confirmation_beyond_the_users_limit_says_so(preference: Preference, said: str) -> None:
    aim = cost_goal(preference)
    again = timed(0.32, BF16, gpu_count=4).measurement
    confirmed = Confirmation(outcome=Outcome.OK, measurement=again, promised_samples_per_second=106.3)
    answer = msgspec.structs.replace(cost_recommendation(aim), confirmation=confirmed)
    assert said in words(shown(AnswerView(answer, aim, files={}, apply_lines=())))
    within = msgspec.structs.replace(cost_recommendation(), confirmation=confirmed)
    assert "That is 320 ms" not in words(shown(AnswerView(within, cost_goal(), files={}, apply_lines=())))


def test_a_run_far_from_its_promise_with_nothing_beside_it_is_explained() -> None:
    """The baseline itself won, so that no other figure tells a slow machine from a wrong promise."""

    def said(promised: float, baseline: float | None = None, noise: float = 0.05) -> str:
        again = timed(0.32, BF16, gpu_count=4).measurement
        return confirmation_words(
            Confirmation(
                outcome=Outcome.OK,
                measurement=again,
                promised_samples_per_second=promised,
                baseline_samples_per_second=baseline,
                noise=noise,
            )
        )

    assert said(25.0, noise=3.75).startswith("Not confirmed"), "trap: ±375 % explained four times as much"
    assert "±50% would be noise" in said(25.0, noise=3.75)
    assert "Measurements are not reproducible on this machine now: run the same command again" in said(150.0)
    assert "--wait-idle" in said(150.0)
    assert said(150.0).startswith("Not confirmed: in a fresh process the wrapper trains")
    assert said(101.0).startswith("Confirmed in a fresh process")


def test_what_a_promise_is_on_a_machine_that_became_faster_is_said() -> None:
    """Trap: "93% of the 7.92 promised, and ±10% would be noise" was not confirmed: the baseline had become faster."""
    again = timed(0.32, BF16, gpu_count=4).measurement
    assert again is not None
    promised = again.samples_per_second / 0.93
    said = Confirmation(
        outcome=Outcome.OK, measurement=again, promised_samples_per_second=promised, noise=0.1, drift=1.11
    )
    assert "were due, because the baseline ran at 111% of its speed), and ±10% would be noise" in confirmation_words(
        said
    )


def test_a_stream_that_knows_only_ascii_gets_the_answer_too() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors=ERRORS)  # as the command's streams are
    SafeConsole(file=stream, width=80).print(view())
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert "132 +-1.0%" in text
    assert "Confirmed in a fresh process" in text
    assert not re.search(r" $", text, re.MULTILINE), "lines that go into a file or a pipe are not filled up"


@pytest.mark.parametrize("width", [80, 120])
def test_the_least_cost_has_its_frontier_and_plot_in_place_of_the_ranking(width: int) -> None:
    answer = AnswerView(cost_recommendation(), cost_goal(), files={}, apply_lines=())
    text = words(shown(answer, width=width))
    parts = [
        "Train with precision bf16, batch 8 on each of 4 devices",
        "cost $1.20 for 1000 iterations; the baseline's cost $1.92",
        "time 301 ms an iteration (±0.5%); the baseline's takes 1.92 s",
        "Frontier: nothing measured is both faster and cheaper",
        "Not on the frontier",
        "$ for 1000 iterations",
        "latency of an iteration (log scale)",
        "costs $1.20 per 1000 iterations",
        "Not measured",
    ]
    positions = [text.index(part) for part in parts]
    assert positions == sorted(positions)
    assert "vs base" not in text
    assert max(len(line) for line in shown(answer, width=width).splitlines()) <= width


def test_a_promise_in_turn_is_confirmed_with_its_turns_ratio_and_interval() -> None:
    speedup = Speedup(value=1.4, low=1.358, high=1.442, rounds=6)
    confirmed = msgspec.structs.replace(CONFIRMED, speedup=speedup, promise=speedup, baseline_samples_per_second=None)
    assert confirmation_words(confirmed) == (
        "Confirmed: the wrapper and the baseline took 6 turns each in fresh processes. The promise is 1.40 times the "
        "baseline, ±3.0%, at a peak of 7.30 GiB."
    )


def test_beside_stalls_it_says_which_baseline_took_turns_with_the_wrapper() -> None:
    over_steady = Speedup(value=1.4, low=1.358, high=1.442, rounds=6)
    speedup = Speedup(value=20.0, low=10.0, high=40.0, rounds=1).times(over_steady)
    promise = msgspec.structs.replace(speedup, low=1.3)
    confirmed = msgspec.structs.replace(
        CONFIRMED,
        speedup=speedup,
        promise=promise,
        around_stalls="intraop_threads count=1",
        without_stalls=over_steady,
    )
    words = confirmation_words(confirmed)
    assert "the wrapper and the baseline with intraop_threads count=1 took turns in fresh processes" in words
    assert "at least 1.30 times the baseline" in words


def test_the_users_own_setting_is_kept_by_the_title_and_any_other_is_a_training() -> None:
    others = [measured(50.0, method) for method in (CHECKPOINT, BF16, ADAM, CHUNKED)]
    for rate, title in ((60.0, "Keep what you have: train with plain, batch 8"), (200.0, "Train with plain, batch 16")):
        candidates = [baseline(100.0), measured(rate, micro_batch=16), *others]
        answer = explained(choose(candidates, goal(), untried=3, **ENDED), goal())
        text = words(shown(AnswerView(answer, goal(), files={}, apply_lines=()), width=120))
        assert title in text
        assert ("Keep what you have" in text) is (rate == 60.0)
