"""Drawings show what the tables do, whatever stands in names and patterns."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from core.order.harness import READ_BEFORE_WRITE, machine, step
from gated.core.order.diagram import Edge, edges, mermaid, svg
from gated.core.order.machines import Machine

SUITE = machine(
    "suite",
    scope="run",
    mode="observe",
    on_unmatched="flaky",
    transitions=[
        step("Test", "*", "passing", when={"content": "*green*"}),
        step("Test", "*", "failing", when="error"),
        step("Deploy", "passing", "passing", when={"status": "any", "facts": 'ok = "true"'}),
    ],
)
XML = "{http://www.w3.org/2000/svg}"


def test_edges_are_the_moves() -> None:
    read, write = 'Read(file_path ~ "*")', 'Write(file_path ~ "*")'
    assert edges(READ_BEFORE_WRITE) == [
        Edge("unread", "read", (read,)),
        Edge("read", "read", (read,)),
        Edge("written", "read", (read,)),
        Edge("read", "written", (write,)),
    ]


def test_conditions_stand_on_the_edge_and_equal_moves_are_one() -> None:
    found = {(edge.source, edge.target): edge.labels for edge in edges(SUITE)}
    assert found["s", "passing"] == ("Test [content ~ *green*]",)
    assert found["s", "failing"] == ("Test [error]",)
    assert found["s", "flaky"] == ("Test [otherwise]",)
    assert found["passing", "passing"] == ("Test [content ~ *green*]", 'Deploy [any, ok = "true"]')


def test_an_ask_is_drawn_as_what_an_approval_does() -> None:
    asking = machine(transitions=[step("Write", "read", "written", on_violation="ask"), step("Read", "s", "read")])
    found = {(edge.source, edge.target): edge.labels for edge in edges(asking)}
    assert found["read", "written"] == ("Write",)
    assert found["s", "written"] == ("Write [approved]",)


def test_mermaid() -> None:
    assert mermaid(READ_BEFORE_WRITE) == (
        "stateDiagram-v2\n"
        '    state "unread" as s0\n'
        '    state "read" as s1\n'
        '    state "written" as s2\n'
        "    [*] --> s0\n"
        '    s0 --> s1: Read(file_path ~ "*")\n'
        '    s1 --> s1: Read(file_path ~ "*")\n'
        '    s2 --> s1: Read(file_path ~ "*")\n'
        '    s1 --> s2: Write(file_path ~ "*")\n'
        "    s2 --> [*]\n"
        "    note right of s0: one instance per #123;file_path#125; and thread\n"
    )


def test_mermaid_s_own_signs_are_escaped() -> None:
    odd = machine(initial='a "b"; c', transitions=[step('T(a = "x: %%\n<b>{1}")', 'a "b"; c', "end")])
    lines = mermaid(odd).splitlines()
    assert lines[1] == '    state "a #34;b#34;#59; c" as s0'
    assert lines[4] == '    s0 --> s1: T(a = "x#58; #37;#37;\\x0a#60;b#62;#123;1#125;")'


def texts(drawing: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(drawing).iter(f"{XML}text")]


def test_the_svg_shows_states_and_labels_once_an_edge() -> None:
    shown = texts(svg(SUITE))
    assert shown[0] == "suite: one instance and run, only observed"
    for state in SUITE.states:
        assert shown.count(state) == 1
    assert sum(text == "Test [error]" for text in shown) == 4


def test_terminal_states_have_a_second_line_and_the_initial_one_a_dot() -> None:
    root = ElementTree.fromstring(svg(READ_BEFORE_WRITE))
    assert len(list(root.iter(f"{XML}rect"))) == 4
    assert len(list(root.iter(f"{XML}circle"))) == 1


def test_the_svg_stands_alone_and_knows_the_dark() -> None:
    drawing = svg(READ_BEFORE_WRITE)
    assert "prefers-color-scheme:dark" in drawing
    assert re.findall(r"(?:href|src|@import|url\((?!#a\)))", drawing) == []


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    names = draw(st.lists(st.text(min_size=1, max_size=60).filter(lambda s: s != "*"), min_size=1, max_size=5, unique=True))
    state = st.sampled_from(names)
    rules = st.builds(
        lambda source, to, text, action: step(f"T(a ~ {text})", source, to, on_violation=action),
        st.one_of(st.just("*"), state),
        state,
        st.sampled_from(['"*"', '"<&>"', '"' + "long " * 30 + '"']),
        st.sampled_from(["deny", "ask"]),
    )
    return machine(
        draw(st.text(min_size=1, max_size=30).filter(str.strip)),
        initial=names[0],
        terminal=names[:1],
        on_unmatched=draw(st.one_of(st.none(), state)),
        transitions=draw(st.lists(rules, max_size=8)),
    )


def written(root: ElementTree.Element) -> list[tuple[float, float, float, float]]:
    """Left, top, right, bottom of every text, by the width of its font."""
    found = []
    for element in root.iter(f"{XML}text"):
        x, y, width = float(element.attrib["x"]), float(element.attrib["y"]), 6.6 * len(element.text or "")
        x -= width / 2 if element.attrib["text-anchor"] == "middle" else 0
        found.append((x, y - 9, x + width, y + 2))
    return found


@given(machines())
def test_any_machine_gives_well_formed_drawings_in_which_no_text_covers_another(one: Machine) -> None:
    assert len(mermaid(one).splitlines()) == 4 + len(one.states) + sum(len(edge.labels) for edge in edges(one))
    root = ElementTree.fromstring(svg(one))
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    placed = written(root)
    for index, (left, top, right, bottom) in enumerate(placed):
        assert min(left, top, width - right, height - bottom) >= 0
        for other in placed[index + 1 :]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top
