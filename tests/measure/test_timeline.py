"""What lives at every moment of a step, from the log of its allocations."""

from __future__ import annotations

from advisor.measure.memory.timeline import timeline_of
from advisor.training.training import Phase


def test_peaks_follow_the_events_from_phase_to_phase() -> None:
    events = [(1, 10), (3, 5), (4, -15), (6, 100), (7, -100), (9, 1)]
    phases = [(2, Phase.FORWARD), (5, Phase.BACKWARD), (8, Phase.OPTIMIZER)]
    assert timeline_of(1000, events, phases).peaks() == {
        Phase.IDLE: 1010,
        Phase.FORWARD: 1015,
        Phase.BACKWARD: 1100,
        Phase.OPTIMIZER: 1001,
    }


def test_a_phase_that_comes_again_keeps_its_higher_peak() -> None:
    events = [(2, 50), (3, -50), (6, 10)]
    phases = [(1, Phase.FORWARD), (4, Phase.BACKWARD), (5, Phase.FORWARD)]
    assert timeline_of(0, events, phases).peaks()[Phase.FORWARD] == 50


def test_it_has_a_moment_for_every_change_and_for_the_beginning_of_every_phase() -> None:
    timeline = timeline_of(100, [(2, 50), (3, -20)], [(1, Phase.FORWARD), (3, Phase.BACKWARD), (4, Phase.IDLE)])
    assert timeline.live == [100, 100, 150, 150, 130, 130]
    assert timeline.phases == [Phase.IDLE, Phase.FORWARD, Phase.FORWARD, Phase.BACKWARD, Phase.BACKWARD, Phase.IDLE]
    assert timeline.changes == [0, 0, 1, 0, -1, 0]


def test_work_in_chunks_is_one_event_however_many_chunks_there_are() -> None:
    def of(chunks: int) -> list[tuple[int, int]]:
        """A tensor, chunks of work on it, and what comes after."""
        return [(1, 10), *[event for at in range(chunks) for event in ((10 + at, 7), (10 + at, -7))], (90, -10)]

    one, many = (timeline_of(0, of(chunks), [], [(5, 50)]) for chunks in (1, 9))
    assert one == many
    assert one.live == [0, 10, 17, 10, 0]
    assert timeline_of(0, of(9), []).peaks() == many.peaks()


def test_what_is_left_of_work_in_chunks_stays() -> None:
    timeline = timeline_of(0, [(11, 7), (12, 5), (13, -7)], [(1, Phase.FORWARD)], [(10, 20), (30, 40)])
    assert timeline.live == [0, 0, 12, 5]
