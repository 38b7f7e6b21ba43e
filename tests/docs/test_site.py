"""The documentation site is built strictly, opens offline, and has a page for every method."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from urllib.parse import unquote

import pytest

from advisor import __all__ as public_names
from advisor.methods.base import Method
from advisor.methods.catalogue import CATALOGUE

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("mkdocs", reason="the site needs momadvise[docs]")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout[-3000:] + built.stderr[-3000:]
    return folder


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, str]:
    """The pages; not the reports, which are copied."""
    copied = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.html")}
    return {path: path.read_text() for path in site.rglob("*.html") if path.relative_to(site) not in copied}


def test_no_page_loads_anything_from_another_machine(site: Path, pages: dict[Path, str]) -> None:
    for path, text in pages.items():
        text = re.sub(r"<(code|pre)\b.*?</\1>", "", text, flags=re.DOTALL)
        loaded = re.findall(r"<(?!a\b)\w+[^>]*\b(?:src|href|data|action)=[\"']?((?:https?:)?//[^\"'\s>]+)", text)
        assert not loaded, f"{path.relative_to(site)} loads {loaded}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text()), style


def test_every_link_and_every_anchor_leads_somewhere(site: Path, pages: dict[Path, str]) -> None:
    anchors = {
        path: set(map(html.unescape, re.findall(r"\bid=[\"']?([^\"'\s>]+)", text))) for path, text in pages.items()
    }
    checked = 0
    for path, text in pages.items():
        if path.name == "404.html":  # is shown at any address
            continue
        for found in set(re.findall(r"<(?:a|link|script|img)\b[^>]*?\b(?:href|src)=[\"']?([^\"'\s>]+)", text)):
            target, _, anchor = html.unescape(found).partition("#")
            if "://" in target or target.startswith("mailto:"):
                continue
            leads = (path.parent / unquote(target)).resolve() if target else path
            if leads.is_dir():
                leads /= "index.html"
            assert leads.is_file(), f"{path.relative_to(site)}: {found}"
            assert not anchor or unquote(anchor) in anchors.get(leads, ()), f"{path.relative_to(site)}: {found}"
            checked += 1
    assert checked > 5000


@pytest.mark.parametrize("method", CATALOGUE, ids=lambda method: method.name)
def test_the_page_of_a_method_says_what_it_declares(site: Path, method: Method) -> None:
    text = words((site / "methods" / f"{method.name}.html").read_text())
    for declared in (method.summary, method.costs, method.pays, method.does_not_pay, method.citation):
        assert " ".join(declared.replace("`", "").split()) in text
    for other in method.conflicts:
        assert other.other in text
    assert all(name in text for name in ("deepspeed", "torchtitan", "llamafactory"))


def test_every_method_shows_bars_of_measured_rows_and_apart_from_them_of_simulated_ones(site: Path) -> None:
    rows: dict[tuple[str, bool], set[str]] = defaultdict(set)
    files = sorted((ROOT / "docs" / "results").glob("method*.jsonl"))
    for line in (line for file in files for line in file.read_text().splitlines()):
        row = json.loads(line)
        sizes = [value for key, value in row.items() if key.endswith(("peak_bytes", "activation_bytes")) and value]
        rows[row["method"], row.get("simulated", False)] |= {f"{size / 2**20:,.0f}" for size in sizes}
    for method in CATALOGUE:
        text = (site / "methods" / f"{method.name}.html").read_text()
        pictures = re.findall(r'<div class="?memory( simulated)?"?[^>]*>(.*?)</div>\s*<p>', text, flags=re.DOTALL)
        assert pictures or "so there is no picture" in words(text)
        for kind, picture in pictures:
            shown = set(re.findall(r'aria-label="[^"]*?: ([\d,]+) MiB"', picture))
            assert shown
            assert shown <= rows[method.name, bool(kind)] | (set() if kind else rows["", False])
            assert ("simulated" in picture) == bool(kind)


def test_the_search_finds_methods_tasks_and_calls_without_a_server(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text()
    assert index.startswith("var __index = ")
    found = {entry["location"] for entry in json.loads(index.removeprefix("var __index = "))["docs"]}
    assert {"methods/adam_8bit.html", "how-to/train-on-several-gpus.html", "api.html#advisor.api.tune"} <= found
    assert 'src="assets/iframe-worker.js"' in (site / "index.html").read_text()


def test_the_api_has_every_public_name(site: Path) -> None:
    text = (site / "api.html").read_text()
    documented = {found.rsplit(".", 1)[-1] for found in re.findall(r'id="(advisor\.[\w.]+)"', text)}
    assert set(public_names) - {"__version__"} <= documented


def words(text: str) -> str:
    """The text of a page, without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", "", text)).split())
