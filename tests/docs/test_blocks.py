"""Every command and every piece of code on the pages is run, page by page and in order, or says why it is not."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from advisor.methods.catalogue import CATALOGUE
from tests.docs.blocks import ROOT, Block, Runner, blocks_of, pages
from tests.docs.stages import names_of, set_up

TUTORIAL = "docs/tutorial.md"
BLOCKS = {page: [block for block in blocks_of(page) if block.is_code] for page in pages()}
MOST_UNRUN = 2


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of somebody who has followed the tutorial. Other pages go on from there."""
    folder = tmp_path_factory.mktemp("tutorial")
    run(TUTORIAL, folder)
    return folder


def run(page: str, folder: Path) -> None:
    runner = Runner(folder, lambda: names_of(page, folder))
    for block in BLOCKS[page]:
        if not (block.reason or block.elsewhere):
            runner.run(block)


@pytest.mark.slow
def test_the_tutorial_ends_with_a_policy_and_what_was_trained_with_it(tutorial: Path) -> None:
    assert {"model.py", "policy.yaml", "wrapper.py", "train.py", "trained.pt"} <= {p.name for p in tutorial.iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in BLOCKS if page != TUTORIAL])
def test_a_page_runs_as_it_stands(page: str, tutorial: Path, tmp_path: Path) -> None:
    set_up(page, tmp_path, tutorial)
    run(page, tmp_path)


@pytest.mark.parametrize("block", [one for found in BLOCKS.values() for one in found], ids=lambda block: block.place)
def test_a_mark_is_one_that_there_is(block: Block) -> None:
    block.check()
    if not block.elsewhere:
        return
    text = (ROOT / block.elsewhere).read_text()
    if block.elsewhere.startswith("tests/") and Path(block.page).name in text:
        return  # the test reads the page
    for command in block.commands:
        assert command in text or is_part_of_all_tests(command, text), f"{block.elsewhere} does not run: {command}"


def is_part_of_all_tests(command: str, script: str) -> bool:
    """Whether it runs some of the tests that a script runs: those of a folder or file, or of a method."""
    found = re.fullmatch(r"python -m pytest((?: tests/[\w/.]+)+)(?: -k (\w+))?", command)
    if found is None or not re.search(r"&& python -m pytest;", script):
        return False
    methods = {method.name for method in CATALOGUE}
    return all((ROOT / path).exists() for path in found[1].split()) and found[2] in (None, *methods)


def test_the_number_of_blocks_is_that_of_the_index(capsys: pytest.CaptureFixture[str]) -> None:
    """Trap: a pattern that finds nothing would pass everything."""
    blocks = [one for found in BLOCKS.values() for one in found]
    reasons = Counter(one.reason for one in blocks if one.reason)
    elsewhere = sum(bool(one.elsewhere) for one in blocks)
    said = (
        f"{len(blocks)} blocks of commands and code: {len(blocks) - reasons.total()} are run by the tests, "
        f"{elsewhere} of them by other tests and by .ci; {reasons.total()} are not ("
        f"{', '.join(f'{reason}: {count}' for reason, count in sorted(reasons.items()))})"
    )
    with capsys.disabled():
        print(f"\n{said}")
    assert reasons.total() <= MOST_UNRUN
    assert said in " ".join((ROOT / "docs" / "index.md").read_text().split()), f"docs/index.md should say: {said}"


def test_every_fence_is_seen() -> None:
    for page in (path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]):
        fences = re.findall(r"(?m)^\s*```", (ROOT / page).read_text())
        assert len(fences) == 2 * len(blocks_of(page)), f"{page} has a block that the pattern does not find"
