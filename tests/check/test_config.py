"""A policy for a config of transformers: what of the config makes it stale, and what is told of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.decide.policy_status import PolicyStatus
from advisor.hardware.detect import detect_hardware
from advisor.policy.file import PolicyFile, write_policy_file
from advisor.policy.fingerprints import Fingerprints, hardware_facts
from advisor.policy.policy import Policy
from advisor.session.check import CheckRequest, run_check
from advisor.session.setup.versions import versions
from advisor.workload.identity import Identity
from advisor.workload.source import resolve_source, stating
from advisor.workload.workload import Stated

CONFIG: dict[str, Any] = {"model_type": "gpt2", "n_layer": 2, "attn_pdrop": 0.0, "transformers_version": "5.23.0"}


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """It was measured at 16 tokens; the model itself is not looked at."""
    config, path = tmp_path / "config.json", tmp_path / "policy.yaml"
    config.write_text(json.dumps(CONFIG))
    source = stating(resolve_source(config), Stated(batch_size=2, tokens=16))
    fingerprints = Fingerprints(
        workload={"name": source.name, "model": "config.json", "fingerprint": source.fingerprint},
        hardware=hardware_facts(detect_hardware("cpu")),
        versions=versions([]),
        request="",
        asked={"batch_size": 2, "tokens": 16},
        identity=Identity(salt=""),
    )
    write_policy_file(PolicyFile(policy=Policy(micro_batch=2), fingerprints=fingerprints), path, header="")
    return path


@pytest.mark.parametrize(
    ("changed", "stated", "words"),
    [
        ({}, Stated(), []),
        ({"transformers_version": "5.24.1", "torch_dtype": "bfloat16", "use_cache": False}, Stated(), []),
        ({"attn_pdrop": 0.1}, Stated(), ["model: config changed"]),
        ({}, Stated(tokens=32), ["tokens: 16 -> 32"]),
        ({"attn_pdrop": 0.1}, Stated(tokens=32), ["model: config changed", "tokens: 16 -> 32"]),
    ],
)
def test_only_what_decides_the_training_makes_it_stale_and_each_is_told_once(
    changed: dict[str, Any], stated: Stated, words: list[str], policy: Path
) -> None:
    (policy.parent / "config.json").write_text(json.dumps({**CONFIG, **changed}, indent=2))
    found = run_check(CheckRequest(policy_file=policy, stated=stated), lambda doing: None)
    assert [one.words for one in found.differences] == words
    assert found.status is (PolicyStatus.STALE if words else PolicyStatus.HOLDS)
