"""The pictures of the console in docs/ are made by a script that still works, from a gate and a console that run."""

from __future__ import annotations

import struct
import subprocess
import sys
from pathlib import Path

from console.browser import chromium

ROOT = Path(__file__).parents[2]


def size(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG in px."""
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", head[16:])
    return width, height


def test_the_script_makes_the_pictures_that_the_docs_show(tmp_path: Path) -> None:
    chromium()
    made = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo" / "console.py"), str(tmp_path)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr
    for name in ("console-ticket.png", "console-phone.png"):
        assert f"]({name})" in (ROOT / "docs" / "console.md").read_text()
        assert size(tmp_path / name) == size(ROOT / "docs" / name)
