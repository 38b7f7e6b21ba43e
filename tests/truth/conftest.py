"""What a probe finds of every workload: found once for all files of this folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from advisor.trial.spec import ProbeTrial
from advisor.workload.batch_layout import BatchLayout
from tests.trial.test_run_trial import Bed
from tests.truth.catalogue import Workload

Probe = Callable[[Workload], BatchLayout]


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    """Workload -> what its probe finds; from memory the second time."""
    bed = Bed(tmp_path_factory.mktemp("probed"))
    known: dict[str, BatchLayout] = {}

    def probed(workload: Workload) -> BatchLayout:
        if workload.source not in known:
            result = bed.run(workload.source, kind=ProbeTrial, micro_batch=2)
            assert result.facts is not None, result
            known[workload.source] = result.facts.batch_layout
        return known[workload.source]

    return probed
