"""Numbers of devices that the fidelity ceiling forbids are left out before any trial."""

from __future__ import annotations

import msgspec
import pytest

from advisor.errors import OptionError
from advisor.goal import Fidelity, Goal
from advisor.search.space.build_space import build_space
from advisor.search.space.space import ResolvedSpace
from advisor.search.space.space_file import load_space
from advisor.session.setup.fit import within_fidelity
from tests.decide.examples import goal
from tests.search.test_build_space import CPU, FACTS

WITH_BATCHNORM = msgspec.structs.replace(FACTS, has_batchnorm=True)


def shared(
    *counts: int, fidelity: Fidelity = Fidelity.LOSSY, batchnorm: bool = True
) -> tuple[Goal, ResolvedSpace, str]:
    facts = WITH_BATCHNORM if batchnorm else FACTS
    space = build_space(load_space("default"), facts, CPU, fidelity, gpu_counts=counts)
    return within_fidelity(msgspec.structs.replace(goal(), gpu_counts=counts, fidelity=fidelity), space, facts)


def test_without_batchnorm_every_number_of_devices_stays() -> None:
    aim, space, note = shared(1, 2, 4, batchnorm=False)
    assert aim.gpu_counts == space.gpu_counts == (1, 2, 4)
    assert note == ""


def test_with_batchnorm_several_devices_are_left_out_with_the_reason_and_the_fix() -> None:
    aim, space, note = shared(1, 2, 4)
    assert aim.gpu_counts == space.gpu_counts == (1,)
    assert note.startswith("2 and 4 devices were left out: BatchNorm takes its statistics over one device")
    assert "--fidelity model" in note
    allowed, _, _ = shared(1, 2, 4, fidelity=Fidelity.MODEL)
    assert allowed.gpu_counts == (1, 2, 4)


def test_when_nothing_is_left_it_is_an_error_with_the_fix() -> None:
    with pytest.raises(OptionError, match=r"on 2 devices must be within .* lossy, but BatchNorm.*--fidelity model, or"):
        shared(2)
