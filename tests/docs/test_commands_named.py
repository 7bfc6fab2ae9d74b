"""Whatever command a page names is there, with the options that it gives; the README's table has every command."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.test_help import EVERY
from gated.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(p for folder in ("docs", "deploy", "examples") for p in (ROOT / folder).rglob("*.md"))]
NAMED = re.compile(r"(?:^|`|\$ |&& |\| |; |\()gated ((?:[a-z][^`\n|;#]*?\\\n)*[a-z][^`\n|;#]*)", re.MULTILINE)
KNOWN = {" ".join(path): command for path, command in EVERY}
GROUPS = {name for name, command in KNOWN.items() if hasattr(command, "list_commands")}


def command_of(words: list[str]) -> str:
    """The longest beginning of the words that is a command or a group of them."""
    names = [" ".join(words[:count]) for count in range(1, len(words) + 1)]
    return max((name for name in names if name in KNOWN), key=len, default="")


def unknown(text: str) -> list[str]:
    """What of a command line is not there. What follows ` -- ` is another program's."""
    words = text.partition(" -- ")[0].split()
    name = command_of(words)
    rest = words[len(name.split()) :]
    wrong = [words[0]] if not name else []
    if name and name in GROUPS and rest and re.fullmatch(r"[a-z-]+", rest[0]) and not rest[0].startswith("-"):
        wrong.append(f"{name} {rest[0]}")
    options = {option for param in getattr(KNOWN.get(name), "params", ()) for option in (*param.opts, *param.secondary_opts)}
    given = [word.strip("[],.:") for word in rest if re.match(r"\[?--?[a-z]", word)]
    return wrong + [f"{name} {option}" for option in given if name not in GROUPS and option.partition("=")[0] not in options]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_are_there(page: Path) -> None:
    found = [(text, wrong) for text in NAMED.findall(page.read_text()) if (wrong := unknown(text.replace("\\\n", " ")))]
    assert found == []


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("up --policy policy.yaml", []),
        ("upp --policy policy.yaml", ["upp"]),
        ("up --polcy policy.yaml", ["up --polcy"]),
        ("policy chek x.yaml", ["policy chek"]),
        ("mcp --agent a -- npx --yes server", []),
    ],
)
def test_what_is_not_there_is_seen(text: str, wrong: list[str]) -> None:
    assert unknown(text) == wrong


def test_the_table_of_the_readme_has_every_command() -> None:
    table = (ROOT / "README.md").read_text().partition("## The commands")[2].partition("\n## ")[0]
    named = {word for cell in re.findall(r"`([^`]+)`", table) for word in cell.removeprefix("gated ").split()}
    missing = [name for name in KNOWN if name and name.split()[-1] not in named and name not in GROUPS]
    assert missing == []
    assert set(COMMANDS) - named == set()


def test_the_tree_of_the_readme_is_there() -> None:
    tree = (ROOT / "README.md").read_text().partition("## The tree")[2].split("```")[1]
    lines = [(len(line) - len(line.lstrip()), line[:37]) for line in tree.splitlines()[2:]]
    named = [(indent, name) for indent, names in lines for name in names.split() if name.endswith(("/", ".py"))]
    assert len(named) > 20
    assert [name for indent, name in named if not (ROOT / "gated" / ("core" if indent > 2 else "") / name).exists()] == []
