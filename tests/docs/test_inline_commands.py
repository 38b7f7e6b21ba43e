"""Commands and options in the running text are ones that there are, with values that they take. Nothing is run."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator

import pytest

from advisor.command_line import tune_parser
from advisor.completion import SHELLS, VERBS
from advisor.errors import OptionError
from advisor.methods.catalogue import CATALOGUE
from advisor.option_values import value_of
from advisor.options import Option
from tests.docs.blocks import ROOT

PARSERS = {name: verb.parser for name, verb in VERBS.items() if verb.parser is not None} | {"": tune_parser}
OPTIONS: dict[str, list[Option]] = {}
for _parser in PARSERS.values():
    for _option in _parser().options:
        OPTIONS.setdefault(_option.flag, []).append(_option)

PROGRAMS = "\n".join(
    path.read_text()
    for folder in ("benchmarks", "docs", "tests/cuda_device", "tests/house")
    for path in (ROOT / folder).rglob("*.py")
)
"""Other programs of the repository, which have options of their own."""

WRONG = {"--wait-idle abc"}
"""What is quoted because it is refused."""


def spans() -> list[tuple[str, str]]:
    """Page and text of each piece of code in the running text, as it is read, on one line."""
    found = {}
    for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
        for one in re.findall(r"(?<!`)`([^`]+)`(?!`)", text):
            found[" ".join(one.replace(r"\|", "|").split())] = path.relative_to(ROOT).as_posix()
    return [(page, text) for text, page in found.items()]


SPANS = spans()


def commands(program: str) -> list[tuple[str, str]]:
    """Page and arguments of each command of a program, one for each of ``a|b``, with and without what is optional."""
    found = []
    for page, text in SPANS:
        for part in re.split(r" && | \| | > ", text):
            if part.startswith(f"{program} "):
                found += [(page, one) for one in _meant(part.removeprefix(f"{program} "))]
    return found


def _meant(text: str) -> Iterator[str]:
    for one in dict.fromkeys((re.sub(r" \[[^]]*\]", "", text), re.sub(r" \[([^]]*)\]", r" \1", text))):
        yield from (" ".join(words) for words in itertools.product(*(word.split("|") for word in one.split(" "))))


def is_placeholder(value: str) -> bool:
    """Whether it stands for something: ``N``, ``A,B``, ``DIR``, ``{file}``, ``...``."""
    return re.fullmatch(r"[A-Z,:]+", value) is not None or "..." in value or "{" in value


def check_values(words: list[str]) -> None:
    """Every option that is followed by a value takes it."""
    for flag, value in itertools.pairwise([*words, ""]):
        options = OPTIONS.get(flag, [])
        given = value and not value.startswith("-") and not is_placeholder(value)
        if given and options and options[0].kind not in ("switch", "path", "policy"):
            for option in options:
                if option.choices:
                    assert value in option.choices
                else:
                    value_of({"count": int, "number": float, "price": float}.get(option.kind, str)(value), option)


@pytest.mark.parametrize(("page", "command"), commands("momadvise"))
def test_a_command_in_the_text_is_one_that_is_understood(page: str, command: str) -> None:
    words = shlex.split(command)
    verb = words[0] if words[0] in VERBS else ""
    rest = words[1:] if verb else words
    if words[0] in ("--help", "--version") or not rest:
        return
    if verb in PARSERS and all(word.startswith("-") for word in rest):  # a name, as in `momadvise predict --policy`
        assert set(rest) <= {option.flag for option in PARSERS[verb]().options}
    elif verb in PARSERS:
        PARSERS[verb]().checked([filled(before, word) for before, word in itertools.pairwise(["", *rest])])
        check_values(rest)
    elif verb == "methods":
        assert all(is_placeholder(word) or word in {method.name for method in CATALOGUE} for word in rest)
    else:
        assert set(rest) <= {"completion": {*SHELLS}, "hardware": {"-v"}}[verb]


def filled(flag: str, word: str) -> str:
    """A word, or a value in the place of a placeholder."""
    if flag not in OPTIONS or not is_placeholder(word):
        return word
    return next(iter(OPTIONS[flag][0].choices), "2")


@pytest.mark.parametrize(("page", "text"), [one for one in SPANS if re.match(r"--[a-z]", one[1])])
def test_an_option_in_the_text_is_one_that_there_is(page: str, text: str) -> None:
    for flag in re.findall(r"--[a-z][\w-]*", text):
        assert flag in OPTIONS or f'"{flag}"' in PROGRAMS, f"{page}: nothing has the option {flag}"
    words = text.replace("[", "").replace("]", "").split()
    if text in WRONG:
        with pytest.raises((OptionError, ValueError)):
            check_values(words)
    else:
        check_values(words)


@pytest.mark.parametrize(("page", "command"), commands("python"))
def test_a_program_in_the_text_exists_and_has_the_options(page: str, command: str) -> None:
    words = command.split()
    if words[0] != "-m":
        assert "{" in command or words[0] == "train.py" or (ROOT / words[0]).is_file()
        return
    assert importlib.util.find_spec(words[1]) is not None
    if words[1].startswith(("benchmarks.", "tests.")):
        for flag in re.findall(r"--[a-z][\w-]*", command):
            assert f'"{flag}"' in PROGRAMS, f"{page}: {words[1]} has no option {flag}"


def test_the_patterns_find_what_the_pages_have() -> None:
    """Trap: patterns that find nothing would pass everything."""
    assert len(commands("momadvise")) > 30
    assert len(commands("python")) > 25
    assert ("CONTRIBUTING.md", "-m pytest tests/methods tests/contract") in commands("python")
