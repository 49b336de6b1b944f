"""The pages of docs/ are listed, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]


def anchors(page: Path) -> set[str]:
    """Of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    assert [
        page.name
        for page in PAGES
        if page.parent.name == "docs" and page.name != "README.md" and f"]({page.name})" not in index
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_tests_it_names_exist(page: Path) -> None:
    named = re.findall(r"(?:pytest|VLLM_TESTS=) ?([^#`\n]*)", page.read_text())
    files = [word for line in named for word in line.replace('"', " ").split() if word.startswith("tests/")]
    assert [file for file in files if not (ROOT / file.partition("::")[0]).exists() and "NAME" not in file] == []
