"""Mappings in braces are changed entry by entry: comments and line breaks between entries stay."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advisor.exports.patching import Change
from advisor.exports.reading import MISSING
from advisor.exports.yaml_text import changed_yaml

LINES = """\
fsdp_config: {
  # which layers
  wrap: Block,  # of our model
  xla: false    # not here
  # the end
}
"""


def with_value(text: str, key: str, value: Any) -> str:
    return changed_yaml(text, [Change(key, MISSING, value)])


def without(text: str, key: str) -> str:
    return changed_yaml(text, [Change(key, 1, MISSING, "gone")])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: {}\n", "a: {new: 1}\n"),
        ("a: !!map {}\n", "a: !!map {new: 1}\n"),
        ("a: { # nothing\n  }\n", "a: {new: 1 # nothing\n  }\n"),
        ("a: {#nothing\n  }\n", "a: {new: 1 #nothing\n  }\n"),
        ("a: {x: 1}  # ours\n", "a: {x: 1, new: 1}  # ours\n"),
        ("a: {x: 1, y: [2, 3], }\n", "a: {x: 1, y: [2, 3], new: 1, }\n"),
        ("a: {x: 1, # one\n    y: 2 # two\n    }\n", "a: {x: 1, # one\n    y: 2, # two\n    new: 1\n    }\n"),
        (LINES, LINES.replace("xla: false    # not here\n", "xla: false,    # not here\n  new: 1\n")),
        ("a: {\n  x: 1,  # one\n  y: 2,  # two\n}\n", "a: {\n  x: 1,  # one\n  y: 2,  # two\n  new: 1,\n}\n"),
        ("a: {\n  x: 1\n  , y: 2\n}\n", "a: {\n  x: 1\n  , y: 2, new: 1\n}\n"),
    ],
)
def test_a_new_entry_is_the_last_and_all_comments_stay(before: str, after: str) -> None:
    name = before.partition(":")[0]
    assert with_value(before, f"{name}.new", 1) == after
    assert yaml.safe_load(after)[name] == yaml.safe_load(before)[name] | {"new": 1}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: {x: 1}\n", "a: {}\n"),
        ("a: {x: 1, y: 2}  # ours\n", "a: {y: 2}  # ours\n"),
        ("a: {y: 2, x: 1}  # ours\n", "a: {y: 2}  # ours\n"),
        ("a: {y: 2, x: 1, }\n", "a: {y: 2, }\n"),
        ("a: {y: 2, x: {z: 3, w: [4]}, v: 5}\n", "a: {y: 2, v: 5}\n"),
        ("a: {x: 1, # about y\n  y: 2 # two\n  }\n", "a: {# about y\n  y: 2 # two\n  }\n"),
        ("a: {y: 2, # two\n  x: 1 # one\n  }\n", "a: {y: 2, # two\n  }\n"),
        ("a: {y: 2 # two\n  , x: 1}\n", "a: {y: 2 # two\n   }\n"),
        ("a: {\n  # all\n  x: 1,  # one\n  y: 2,  # two\n}\n", "a: {\n  # all\n  y: 2,  # two\n}\n"),
    ],
)
def test_an_entry_goes_with_the_comment_on_its_line_and_all_others_stay(before: str, after: str) -> None:
    assert without(before, "a.x") == after
    left = yaml.safe_load(before)["a"]
    del left["x"]
    assert yaml.safe_load(after)["a"] == left


def test_a_value_in_braces_is_replaced_where_it_stands() -> None:
    assert with_value(LINES, "fsdp_config.xla", True) == LINES.replace("false", "true")
    assert with_value("a: {x: , y: 2} # ours\n", "a.x.z", 3) == "a: {x: {z: 3} , y: 2} # ours\n"
    assert with_value("a: {y: 2} # ours\n", "a.x.z", 3) == "a: {y: 2, x: {z: 3}} # ours\n"


def spaces() -> st.SearchStrategy[str]:
    return st.sampled_from(["", " ", "\n    ", "  # a comment, with {signs}\n    ", " # x: 1\n\n  # y\n  "])


@st.composite
def mappings(draw: st.DrawFn) -> str:
    """A mapping in braces with any white space and comments between its parts."""
    names = draw(st.lists(st.sampled_from("xyzvw"), min_size=1, unique=True))
    values = st.sampled_from(["1", "'a, b'", "[1, 2]", "{k: 2}", "plain words", '"#"'])
    parts = [f"{draw(spaces())}{name}: {draw(values)}{draw(spaces())}" for name in names]
    end = draw(st.sampled_from(["", ",", f",{draw(spaces())}"]))
    return f"before: 1\na: {{{','.join(parts)}{end}}}  # behind\nafter: 2\n"


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is slow
@given(mappings(), st.sampled_from("xyzvw"))
def test_whatever_stands_between_entries_only_the_one_that_is_meant_changes(text: str, name: str) -> None:
    document = yaml.safe_load(text)
    if name in document["a"]:
        changed, comments = without(text, f"a.{name}"), 0
        del document["a"][name]
    else:
        changed, comments = with_value(text, f"a.{name}", 7), text.count("# ")
        document["a"][name] = 7
    assert yaml.safe_load(changed) == document
    assert changed.count("# ") >= comments
    assert changed.startswith("before: 1\na: {")
    assert changed.endswith("}  # behind\nafter: 2\n")
