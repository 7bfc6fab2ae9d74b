"""Which records of a log are wanted: whose run, which call, which verdict, when."""

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.command import gated
from cli.test_cli import log
from cli.written import written
from core.redaction.recorded import AGENT, Gate
from gated.cli import output
from gated.cli.log_lines import Selection, Wanted
from gated.events import (
    GENESIS,
    AgentId,
    Body,
    CallDecided,
    CallId,
    DeadlineReached,
    Decided,
    Decision,
    IntentsReceived,
    Observation,
    OutcomeReported,
    RunId,
    RunOpened,
    Sender,
    ThreadId,
    kind_of,
)

__all__ = ["log"]
ANA, TIMER = Sender("agent", "ana"), Sender("timer", "daemon")


def verdict(tool: str, decision: Decided) -> CallDecided:
    return CallDecided(CallId(tool), tool, "0" * 64, decision)


def body(seq: int, said: Observation, *decisions: Decision, run: str = "r1") -> Body:
    return Body(1, ThreadId("t"), RunId(run), seq, seq * 10, kind_of(said), said, decisions, "p", GENESIS)


BODIES = [
    body(1, IntentsReceived(ANA, ()), RunOpened(AgentId("ana"), "p"), verdict("read", "allow"), verdict("write", "deny")),
    body(2, IntentsReceived(Sender("agent", "bob"), ()), RunOpened(AgentId("bob"), "p"), verdict("read", "allow"), run="r2"),
    body(3, IntentsReceived(ANA, ()), verdict("read", "deny"), run="r2"),  # a stranger's
    body(4, DeadlineReached(TIMER, 40), verdict("mail", "deny")),
]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (Wanted(), [1, 2, 3, 4]),
        (Wanted(run="r2"), [2, 3]),
        (Wanted(agent="ana"), [1, 3, 4]),
        (Wanted(agent="ana", decision="deny"), [1, 3, 4]),
        (Wanted(agent="daemon"), []),
        (Wanted(tool="read"), [1, 2, 3]),
        (Wanted(tool="read", decision="deny"), [3]),
        (Wanted(since=20), [2, 3, 4]),
        (Wanted(since=20, until=40), [2, 3]),
    ],
)
def test_what_is_wanted_is_taken(wanted: Wanted, found: list[int]) -> None:
    selection = Selection(wanted)
    assert [body.seq for body in BODIES if selection.takes(body)] == found


def test_records_have_their_hash_and_lines_are_whole_by_a_pipe(log: Path) -> None:
    records = json.loads(gated("log", "ls", log, "--json")[1])
    assert [record["hash"] for record in records[:-1]] == [record["prev"] for record in records[1:]]
    lines = gated("log", "ls", log, "--tool", "send_email", "--decision", "deny")[1].splitlines()
    assert [line.split()[5:8] for line in lines[1:]] == [["deny", "send_email", "dcbf.barrier"]]
    assert gated("log", "ls", log, "--until", "1970-01-01T00:00:01Z")[1].count("\n") == 2


WHY = "dcbf.barrier: barriers would be left: privacy 0.1 -> -0.1 (at least 0)"


def on_a_terminal(width: int, draw: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that are drawn on a terminal so wide."""
    screen = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=screen, width=width, force_terminal=True, color_system=None))
    draw()
    return [line.rstrip() for line in screen.getvalue().splitlines()]


def test_a_table_that_is_too_wide_has_its_last_column_beneath_each_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        (7, "2026-11-30T12:16:28", "a-thread-with-a-long-name-in-part", "deny", WHY),
        (8, "-", "t", "allow", ""),
    ]

    def draw() -> None:
        output.table(("position", "at", "thread", "decision", "why"), rows)

    wide = on_a_terminal(200, draw, monkeypatch)
    assert [line.split()[-1] for line in wide] == ["why", "0)", "allow"]
    narrow = on_a_terminal(60, draw, monkeypatch)
    assert max(map(len, narrow)) <= 60
    assert narrow[0].split() == ["position", "at", "thread", "decision"]
    assert narrow[1].split()[:2] == ["7", "2026-11-30T12:16:28"]
    assert narrow[1].endswith("deny")
    assert "…" in narrow[1]
    assert " ".join(" ".join(narrow[2:-1]).split()) == WHY
    assert all(line.startswith("    ") for line in narrow[2:-1])
    assert narrow[-1].split() == ["8", "-", "t", "allow"]


@pytest.mark.parametrize("text", ["x" * 12_000, " ".join(["word"] * 3000)])
def test_by_a_pipe_every_cell_is_whole_and_a_row_is_a_line(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert not output.console.is_terminal
    output.table(("run", "why", "cost $"), [("r1", text, ""), ("r2", "[bold]", "3")])
    head, first, second = capsys.readouterr().out.splitlines()
    assert [head.split(), first.removeprefix("r1").strip(), second.split()] == [
        ["run", "why", "cost", "$"],
        text,
        ["r2", "[bold]", "3"],
    ]
    drawn = Table.grid(padding=(0, 2))
    drawn.add_column(overflow="fold")
    drawn.add_row(text)
    output.draw(drawn)
    assert capsys.readouterr().out.splitlines() == [text]
    assert output.short(text, 90) == text


def test_a_text_that_is_cut_for_people_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = on_a_terminal(200, lambda: output.say(output.short(WHY, 12)), monkeypatch)
    assert cut == ["dcbf.barrie…"]
    assert on_a_terminal(200, lambda: output.say(output.short("abc", 3)), monkeypatch) == ["abc"]


SESSION = "mcp-github-2026-11-30T02-00-00-call-"


@pytest.mark.parametrize(
    ("names", "most", "shown"),
    [
        (["c1", "c2"], 12, ["c1", "c2"]),
        (["call_Aaaaaaaaaaaaaa", "call_Bbbbbbbbbbbbbb"], 12, ["call_Aaaaaa…", "call_Bbbbbb…"]),
        ([f"{SESSION}0001", f"{SESSION}0002"], 12, ["mcp-gi…1", "mcp-gi…2"]),
        ([f"{SESSION}0001-first", f"{SESSION}0002-second"], 12, ["mcp-gi…1-fi…", "mcp-gi…2-se…"]),
        ([SESSION, f"{SESSION}1"], 12, ["mcp-gi…", "mcp-gi…1"]),
        (["c" * 11, "c" * 13], 12, ["c" * 11, "cccccc…cc"]),
    ],
)
def test_names_that_begin_alike_can_be_told_apart(
    names: list[str], most: int, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def draw() -> None:
        found = output.told_apart(names, most)
        for name in names:
            output.say(found[name])

    assert on_a_terminal(200, draw, monkeypatch) == shown


def test_by_a_pipe_names_are_whole() -> None:
    names = [f"{SESSION}0001", f"{SESSION}0002"]
    assert output.told_apart(names, 12) == dict(zip(names, names, strict=True))


@given(st.lists(st.text(alphabet="ab…", min_size=1, max_size=30), unique=True), st.integers(2, 20))
def test_cut_names_stay_different(names: list[str], most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(output, "console", Console(file=io.StringIO(), force_terminal=True))
        shown = output.told_apart(names, most)
    assert len(set(shown.values())) == len(names)
    assert all(len(text) <= most or text == name for name, text in shown.items())


def test_rows_of_runs_that_begin_alike_can_be_told_apart_on_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [(number, f"{SESSION}{number:04}", "agent:data-analyst-of-europe", "deny", WHY) for number in (1, 2)]
    lines = on_a_terminal(50, lambda: output.table(("position", "run", "by", "decision", "why"), rows), monkeypatch)
    heads = [line for line in lines[1:] if not line.startswith("    ")]
    assert len(heads) == 2
    assert heads[0].split()[1] != heads[1].split()[1]
    assert max(map(len, heads)) <= 50


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("runs", "show"), [f"{SESSION}0001", f"{SESSION}0002"]),
        (("runs", "timeline"), ["mcp-gi…1", "mcp-gi…2"]),
        (("log", "ls"), ["mcp-gith…1", "mcp-gith…2"]),
    ],
)
def test_calls_that_begin_alike_can_be_told_apart(
    command: tuple[str, str], shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate("version: 1\nagents: {a: {allowed_tools: [T]}}\n")
    for number in (1, 2):
        call = f"{SESSION}{number:04}"
        gate.ask(call, "T")
        gate.say(OutcomeReported(AGENT, CallId(call), "success", "done"))
    words = (written(tmp_path, gate.known, gate.log), *(("r",) if command[0] == "runs" else ()))
    lines = on_a_terminal(80, lambda: gated(*command, *words), monkeypatch)
    assert [name for name in shown if any(name in line.split() for line in lines)] == shown


def test_a_long_line_goes_on_beneath_its_text_and_no_address_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    story = on_a_terminal(40, lambda: output.say_beneath("  12:16:28.320", WHY), monkeypatch)
    assert [line[:16].strip() for line in story] == ["12:16:28.320", *[""] * (len(story) - 1)]
    assert " ".join(line[16:] for line in story) == WHY
    address = f"http://127.0.0.1:8420/setup/{'x' * 40}"
    said = on_a_terminal(40, lambda: output.say(f"create the first user at {address}"), monkeypatch)
    assert said == ["create the first user at", address]
    assert on_a_terminal(40, lambda: output.say(f"  [red]{WHY}[/]"), monkeypatch)[0].startswith(f"  {WHY[:20]}")
    assert on_a_terminal(40, lambda: output.say(""), monkeypatch) == [""]


@given(st.lists(st.text(alphabet="ab[ü日", min_size=1, max_size=60), min_size=1, max_size=20), st.integers(5, 40))
def test_a_sentence_is_broken_between_words_only(words: list[str], width: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        lines = on_a_terminal(width, lambda: output.say(escape(" ".join(words))), patch)
    assert " ".join(lines).split() == words
    assert all(cell_len(line) <= width or " " not in line for line in lines)


def test_a_log_without_what_is_looked_for_says_so(tmp_path: Path) -> None:
    empty = written(tmp_path, {}, ())
    assert gated("runs", "ls", empty)[:2] == (0, "the log has no runs\n")
    assert gated("log", "ls", empty)[:2] == (0, "the log has no records\n")
    assert gated("log", "ls", empty, "--run", "r9")[:2] == (0, "the log has no such records\n")
    assert [json.loads(gated(*words, empty, "--json")[1]) for words in (("runs", "ls"), ("log", "ls"))] == [[], []]
