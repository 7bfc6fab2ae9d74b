"""The policy packs, where this installation keeps them: in the package, or in the checkout that it runs from."""

from __future__ import annotations

from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parents[1]
PLACES: Final = (HERE / "templates", HERE.parent / "examples" / "policies")
FILES: Final = ("policy.yaml", "scenarios.yaml")


def template_names() -> list[str]:
    """Packs first, then single machines, each by name."""
    folder = templates_folder()
    names = [path.name for path in sorted(folder.iterdir()) if (path / FILES[0]).is_file()] if folder else []
    return sorted(names, key=lambda name: "unknown_tools" not in template_text(name, FILES[0]))


def templates_folder() -> Path | None:
    return next((place for place in PLACES if place.is_dir()), None)


def template_text(name: str, file: str) -> str:
    """Raises `FileNotFoundError` where there is no such template."""
    folder = templates_folder()
    if folder is None or Path(name).name != name:
        raise FileNotFoundError(name)
    return (folder / name / file).read_text()
