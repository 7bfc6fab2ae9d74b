"""The picture in the README is true: the same calls under its policy get the verdicts that it shows."""

from __future__ import annotations

import asyncio
import re
import sys
from html import unescape
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]
PICTURE = ROOT / "docs" / "story.svg"


@pytest.fixture
def story(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "examples" / "demo"))
    for name in ("demo", "story"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import story  # type: ignore[import-not-found]

    return story  # type: ignore[no-any-return]


def told(svg: str) -> list[str]:
    """Its lines without times and ids, which differ each time."""
    lines: dict[float, str] = {}
    for text in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text"):
        y = float(text.get("y", "0"))
        lines[y] = lines.get(y, "") + unescape(text.text or "").replace("\xa0", " ")
    whole = (line.strip() for _, line in sorted(lines.items()))
    return [re.sub(r"\d\d:\d\d:\d\d\S*|\bt[0-9a-f]{20}\b|20\d\d-\S+|\b[0-9a-f]{12}\b", "…", line) for line in whole if line]


def test_the_picture_shows_what_happens(story: ModuleType, tmp_path: Path) -> None:
    asyncio.run(story.tell(tmp_path))
    made, kept = story.picture(tmp_path), PICTURE.read_text()
    assert told(made) == told(kept)
    assert "machine read-before-write[report.md] = read" in told(kept)
    assert any("needs" in line and "suspend" in line for line in told(kept))
    assert not re.search(r"url\(.?https?:", kept), "a picture fetches nothing"
