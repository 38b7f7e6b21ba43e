"""Which edits change the digest of a workload's code, beyond those of the check's matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.workload.reachable_code import local_code

CODE = """\
import helper
RATE = 0.1
SCALE = 0.1
def build_model():
    return helper.net(SCALE)
def build_optimizer(parameters):
    return tuned(parameters, RATE, 0.9)
def tuned(parameters, rate, momentum):
    return parameters, rate, 0.5
"""
HELPER = """\
class Base: ...
class Net(Base):
    size = 4
class Alone:
    size = 4
def net(scale):
    return Net()
def unused():
    return 4
"""


def digest(folder: Path, code: str, helper: str = HELPER) -> str:
    (folder / "model.py").write_text(code)
    (folder / "helper.py").write_text(helper)
    return local_code(folder / "model.py", folder, ("build_model", "build_optimizer"))[0]


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("RATE = 0.1", "RATE = 0.2", False),
        ("RATE, 0.9", "RATE, 0.8", False),
        ("rate, 0.5", "rate, 0.6", False),
        ("return parameters, rate", "return rate, parameters", True),
        ("SCALE = 0.1", "SCALE = 0.2", True),
        ("net(SCALE)", "net(RATE)", True),
    ],
)
def test_numbers_count_unless_the_optimizer_alone_uses_them(tmp_path: Path, old: str, new: str, counts: bool) -> None:
    assert (digest(tmp_path, CODE) != digest(tmp_path, CODE.replace(old, new))) == counts


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("class Net(Base):\n    size = 4", "class Net(Base):\n    size = 5", True),
        ("class Alone:\n    size = 4", "class Alone:\n    size = 5", False),
        ("return 4", "return 5", False),
        ("def unused", "@property\ndef unused", True),
        ("class Alone", "class Alone(Base)", True),
        ("class Alone", "print(1)\nclass Alone", True),
    ],
)
def test_definitions_count_if_something_reaches_them_or_they_may_register(
    tmp_path: Path, old: str, new: str, counts: bool
) -> None:
    assert old in HELPER
    assert (digest(tmp_path, CODE) != digest(tmp_path, CODE, HELPER.replace(old, new))) == counts


@pytest.mark.parametrize("call", ["getattr(helper, 'un' + 'used')()", "globals()", "vars(helper)", "eval('1')"])
def test_where_a_name_is_computed_every_definition_counts(tmp_path: Path, call: str) -> None:
    code = CODE.replace("helper.net(SCALE)", call)
    assert digest(tmp_path, code) != digest(tmp_path, code, HELPER.replace("return 4", "return 5"))


def test_a_name_in_a_text_reaches_what_it_names(tmp_path: Path) -> None:
    code = CODE.replace("helper.net(SCALE)", "getattr(helper, 'unused')()")
    assert digest(tmp_path, code) != digest(tmp_path, code, HELPER.replace("return 4", "return 5"))


def test_a_number_that_python_does_not_print_counts_byte_by_byte(tmp_path: Path) -> None:
    long = CODE + "x = 0x" + "f" * 4000 + "\n"
    assert digest(tmp_path, long) == digest(tmp_path, long) != digest(tmp_path, long.replace("= 0xf", "= 0xe"))
