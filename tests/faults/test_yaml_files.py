"""Readers of YAML that people write: a search space, a policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from advisor.errors import PolicyError, SearchSpaceError
from advisor.policy.apply import apply_policy
from advisor.policy.file import load_policy_file
from advisor.search.space.space_file import load_space

from .hostile import damaged, explained, texts, valid_or_explained

SPACE = b"""\
schema: 1
name: mine
fidelity: lossy
batch_fractions: [1.0, 0.5]
methods:
  checkpoint: {every: [1, 2]}
  precision: {dtype: [bf16]}
recipes:
- {name: both, hand_tuned: true, methods: {checkpoint: {every: 2}, precision: {}}, optional: [precision]}
"""

POLICY = b"""\
schema: 1
policy:
  methods:
    checkpoint: {every: 2}
  micro_batch: 4
  accumulation_steps: 2
  settled: {checkpoint: x}
reduction: {kind: mean, targets: labels, at_least: 1.0}
fingerprints:
  workload: {name: model}
  hardware: {memory_bytes: 4}
  versions: {torch: "2"}
  request: abc
"""

BOMB = b"a: &a [x, x, x, x, x, x, x, x, x, x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (97 + i, 97 + i, b", ".join([b"*%c" % (96 + i)] * 10)) for i in range(1, 12)
)
"""Twelve lines of aliases that stand for a million million entries."""

NO_YAML = (
    b"[" * 100_000,
    b"{a: " * 100_000,
    b"\xff\xfe",
    b"a: \xed\xa0\x80",
    b'a: "\\ud800"',
    b"a: !!int foo",
    b'a: !!int ""',
    b"a: !!float x",
    b"a: !!bool x",
    b"a: !!timestamp x",
    b"a: !!binary \xc3\xa9",
    b"a: !!python/object/apply:os.system [ls]",
    b"a: 2026-02-30",
    b"a: 2026-13-45 99:99:99",
    b"a: " + b"9" * 5000,
    b"a: 0x" + b"f" * 5000,
    b"a: " + b"9" * 400,
    b"? [a]\n: b",
    b"a: &a [*a]",
    b"&a {a: *a}",
    BOMB,
    b"\x1b[31m",
    b"a: b\n---\nc: d",
    b"a: =",
)

PLACES = ("schema: 1", "every: 2", "micro_batch: 4", "lossy", "1.0", "mine", "labels", "bf16", "both")

SCALARS = (
    "2.5",
    ".nan",
    ".inf",
    "-.inf",
    "-3",
    "0",
    "1e400",
    "99999999999999999999",
    "true",
    "null",
    "[]",
    "{}",
    "!!str 4",
    "!!float 4",
    "!!set {a}",
    "2026-02-28",
    '"\\e[31m\\a\\r\\u202e"',
    '"two\\nlines"',
    "1:99:99",
    "x" * 3000,
)


@pytest.mark.parametrize("content", NO_YAML)
def test_what_is_no_plain_yaml_is_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    assert "mine.yaml" in explained(lambda: load_space(str(file)), SearchSpaceError)
    assert "mine.yaml" in explained(lambda: load_policy_file(file), PolicyError)


@pytest.mark.parametrize("scalar", SCALARS)
@pytest.mark.parametrize("place", PLACES)
def test_another_value_in_any_place_is_valid_or_explained(tmp_path: Path, place: str, scalar: str) -> None:
    file = tmp_path / "mine.yaml"
    key = place.split()[0] if ": " in place else ""
    changed = [text.decode().replace(place, f"{key} {scalar}".strip()) for text in (SPACE, POLICY)]
    file.write_text(changed[0])
    with valid_or_explained(SearchSpaceError):
        load_space(str(file))
    file.write_text(changed[1])
    with valid_or_explained(PolicyError):
        load_policy_file(file)


@given(damaged(SPACE))
def test_a_damaged_search_space_is_valid_or_explained(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(content)
    with valid_or_explained(SearchSpaceError):
        assert load_space(str(file)).canonical_text


@given(damaged(POLICY))
def test_a_damaged_policy_is_valid_or_explained(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "policy.yaml"
    file.write_bytes(content)
    with valid_or_explained(PolicyError):
        policy = load_policy_file(file).policy
        assert policy.key
        assert policy.global_batch >= 1


@given(st.dictionaries(st.text(max_size=9), st.text(max_size=9), max_size=3))
def test_unknown_entries_are_named(tmp_path: Path, entries: dict[str, str]) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY.decode() + yaml.safe_dump({"more": entries}), errors="replace")
    assert "more" in explained(lambda: load_policy_file(file), PolicyError)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("micro_batch: 2.5", "2.5"),
        ("micro_batch: -3", "-3"),
        ("micro_batch: 9999999999", "9999999999"),
        ("micro_batch: 2026-02-30", "2026-02-30"),
        ("micro_batch: !!int four", "'four'"),
        ("micro_batch: " + "9" * 400, "999"),
        ("methods: {'\\e[31m': {}}".replace("'", '"'), r"\x1b[31m"),
    ],
)
def test_the_message_has_the_value_in_it(tmp_path: Path, line: str, value: str) -> None:
    file = tmp_path / "policy.yaml"
    more = "" if "micro_batch" in line else "  micro_batch: 1\n"
    file.write_text(f"schema: 1\npolicy:\n{more}  {line}\n")
    assert value in explained(lambda: load_policy_file(file), PolicyError)


def test_both_are_valid_as_they_are(tmp_path: Path) -> None:
    for name, content in (("space.yaml", SPACE), ("policy.yaml", POLICY)):
        (tmp_path / name).write_bytes(content)
    assert load_space(str(tmp_path / "space.yaml")).name == "mine"
    assert load_policy_file(tmp_path / "policy.yaml").policy.global_batch == 8


@given(texts)
def test_names_of_files_and_spaces_are_found_or_explained(text: str) -> None:
    for name in (text, f"{text}.yaml"):
        with valid_or_explained(SearchSpaceError):
            load_space(name)
    with valid_or_explained(PolicyError):
        load_policy_file(text)


def test_the_library_call_explains_the_same(tmp_path: Path) -> None:
    import torch

    (tmp_path / "policy.yaml").write_bytes(b"\xff")
    model = torch.nn.Linear(1, 1)
    for path in (tmp_path / "policy.yaml", "~nobody-at-all/policy.yaml", "nul\0byte", "\udcff", "a" * 300):
        explained(lambda path=path: apply_policy(path, model), PolicyError)  # type: ignore[misc]
