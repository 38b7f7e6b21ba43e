"""Which edits change the digest of a workload's code, beyond those of the check's matrix."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.workload import _loading
from advisor.workload.code.reachable_code import local_code
from advisor.workload.workload import CONSTANTS

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


@pytest.mark.parametrize(
    "call", ["inspect.getmembers(helper)", "getattr(helper, 'un' + 'used')()", "globals()", "vars(helper)", "eval('1')"]
)
def test_where_a_name_is_computed_every_definition_counts(tmp_path: Path, call: str) -> None:
    code = CODE.replace("helper.net(SCALE)", call)
    assert digest(tmp_path, code) != digest(tmp_path, code, HELPER.replace("return 4", "return 5"))


def test_a_name_in_a_text_reaches_what_it_names(tmp_path: Path) -> None:
    code = CODE.replace("helper.net(SCALE)", "getattr(helper, 'unused')()")
    assert digest(tmp_path, code) != digest(tmp_path, code, HELPER.replace("return 4", "return 5"))


def test_a_number_that_python_does_not_print_counts_byte_by_byte(tmp_path: Path) -> None:
    long = CODE + "print(0x" + "f" * 4000 + ")\n"
    assert digest(tmp_path, long) == digest(tmp_path, long) != digest(tmp_path, long.replace("(0xf", "(0xe"))


BEFORE = """\
import os
import sys
import wandb
from torch import nn, optim
from typing import *
WIDTH = 4
BATCH_SIZE = 8
class Net(nn.Module):
    width: int
    @property
    def wide(self) -> bool: return self.width > WIDTH
    def forward(self, x):
        y = x + len(sys.argv)
        return y
def build_model():
    return Net()
"""


@pytest.mark.parametrize(
    ("old", "new", "counts"),
    [
        ("import os\n", "", False),
        ("import os\n", "import numpy as np\n", False),
        ("import os\n", "if TYPE_CHECKING:\n    import apex\n", False),
        ("import os\n", "if CHECKING:\n    import apex\n", True),
        ("import os\n", "from __future__ import annotations\n", False),
        ("from torch import nn, optim", "import math\nfrom torch import nn", False),
        ("from torch import nn, optim", "from torch import optim\nfrom torch import nn", False),
        ("import sys\n", "import other as sys\n", True),
        ("import wandb", "import wandb, wandb.plot as plot", True),  # the first use of a package may do anything
        ("import wandb\n", "", True),
        ("from torch import nn", "from other import nn", True),
        ("from typing import *\n", "", True),
        ("WIDTH = 4", "WIDTH = 5", True),
        ("WIDTH = 4", "WIDTH = 4\nDEPTH = -2 * (3, None)", False),
        ("WIDTH = 4", "WIDTH: int = 4", False),
        ("WIDTH = 4", "WIDTH = 4\nDEPTH: int", False),
        ("WIDTH = 4", "WIDTH = 4\nDEPTH = count()", True),
        ("WIDTH = 4", "WIDTH = 4\nlog = logging.getLogger(__name__)\nX = TypeVar('X', bound=Net)", False),
        ("WIDTH = 4", "WIDTH = 4\nlog = logging.getLogger(setup())", True),
        ("WIDTH = 4\n", "WIDTH = 4\nif x: WIDTH = 5\n", True),
        ("WIDTH = 4\nBATCH_SIZE = 8", "BATCH_SIZE = 8\nWIDTH = 4", False),
        ("BATCH_SIZE = 8", "BATCH_SIZE = 16", True),
        ("-> bool", "-> 'bool | None'", False),
        ("(self, x)", "(self, x: torch.Tensor, /) -> torch.Tensor", True),  # positional only
        ("(self, x)", "(self, x: torch.Tensor) -> torch.Tensor", False),
        ("y = x", "y: torch.Tensor = x", False),
        ("y = x", "y: torch.Tensor\n        y = x", False),
        ("y = x", "y: torch.Tensor = -x", True),
        ("width: int", "width: float", True),  # a dataclass reads it
        ("    def forward(self, x)", "    @checked\n    def forward(self, x)", True),
        ("def build_model", "def __getattr__(name): return name\ndef build_model", True),
    ],
)
def test_imports_annotations_and_constants_count_where_something_uses_them(
    tmp_path: Path, old: str, new: str, counts: bool
) -> None:
    assert old in BEFORE
    assert (digest(tmp_path, BEFORE) != digest(tmp_path, BEFORE.replace(old, new))) == counts


@pytest.mark.parametrize(
    "reader",
    [
        "torch.jit.script(Net())",
        "typing.get_type_hints(Net.forward)",
        "Net.forward.__annotations__",
        "beartype.beartype(Net)",
    ],
)
def test_annotations_count_where_something_may_read_them(tmp_path: Path, reader: str) -> None:
    code = BEFORE.replace("return Net()", f"return {reader}")
    assert digest(tmp_path, code) != digest(tmp_path, code.replace("self, x)", "self, x: int)"))


@pytest.mark.parametrize("decorator", ["beartype", "torch.compile", "jaxtyped(typechecker=None)"])
def test_annotations_count_below_a_decorator_that_may_read_them(tmp_path: Path, decorator: str) -> None:
    for code in (
        BEFORE.replace("    def forward", f"    @{decorator}\n    def forward"),
        BEFORE.replace("class Net", f"@{decorator}\nclass Net"),
    ):
        assert digest(tmp_path, code) != digest(tmp_path, code.replace("self, x)", "self, x: int)"))


def test_the_constants_of_the_contract_are_those_that_are_loaded() -> None:
    assert tuple(_loading._CONSTANTS) == CONSTANTS
