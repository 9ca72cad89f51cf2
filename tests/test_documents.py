"""What the documents name exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


@pytest.fixture(scope="module")
def sources() -> str:
    return "".join(file.read_text() for file in (ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_metrics_in_a_document_are_metrics_of_the_product(document: Path, sources: str) -> None:
    text = document.read_text()
    names = set(re.findall(r"`bellringer_(\w+?)(?:_total)?[`{]", text))
    assert {name for name in names if name not in sources} == set()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_links_of_a_document_lead_somewhere(document: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)(?:#([^)]*))?\)", document.read_text()):
        file = document.parent / target if target else document
        assert file.exists(), target
        if anchor:
            assert anchor in {_anchor(line) for line in file.read_text().splitlines() if line.startswith("#")}


def _anchor(heading: str) -> str:
    words = heading.lstrip("#").strip().lower()
    return re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
