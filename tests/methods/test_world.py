from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist

from advisor.training.processes import world
from advisor.training.processes.world import current_world

PATIENCE = timedelta(hours=3)


@pytest.fixture
def patient_group() -> Iterator[dist.ProcessGroup]:
    """As in a training whose first rank works alone for hours."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, timeout=PATIENCE)
    try:
        assert dist.group.WORLD is not None
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()


def test_ranks_wait_for_each_other_as_long_as_the_trainings_own_group_does(
    patient_group: dist.ProcessGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    def new_group(**options: Any) -> dist.ProcessGroup:
        asked.append(options)
        return patient_group

    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(world, "_known", None)
    assert current_world().size == 2
    assert asked == [{"backend": "gloo", "timeout": PATIENCE}]
