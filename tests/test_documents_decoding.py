"""Files that people write, as structs: what is told of each mistake and where, and how the files of a folder merge."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NewType

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from gated.documents import Document, DocumentError, decode, merge_documents
from gated.strict_json import Path
from test_documents import places, read

# --- structs ---------------------------------------------------------------------------------------------------------

Name = NewType("Name", str)


class When(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    status: Literal["any", "success", "error"] = "success"


class Transition(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"on_": "on", "from_": "from"}):
    on_: str
    from_: str | tuple[str, ...]
    to: str
    when: Literal["any", "success"] | When = "any"


class Machine(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    name: Annotated[str, Meta(min_length=1)]
    transitions: Annotated[tuple[Transition, ...], Meta(max_length=3)] = ()

    def __post_init__(self) -> None:
        if self.name == "cursed":
            raise ValueError("This name brings bad luck")


class Agent(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_steps: Annotated[int, Meta(ge=0)] | None = None
    kappa: float | int = 1.0
    remove: tuple[tuple[str, str], ...] = ()
    machines: tuple[str | Machine, ...] | None = None


class Policy(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    version: Literal[1]
    mode: Literal["enforce", "observe"] = "enforce"
    agents: dict[Annotated[Name, Meta(pattern="^[a-z]+$")], Agent] = {}
    machines: tuple[Machine, ...] = ()
    labels: dict[str, str] = {}
    anything: Any = None


def complaints(text: str) -> list[str]:
    with pytest.raises(DocumentError) as caught:
        decode(read(text), Policy)
    return [str(error) for error in (caught.value, *caught.value.others)]


def test_a_good_document_is_a_struct() -> None:
    policy = decode(read("version: 1\nagents: {ana: {max_steps: 3, kappa: 1}}\nanything: {x: [1]}"), Policy)
    assert policy == Policy(version=1, agents={Name("ana"): Agent(max_steps=3, kappa=1)}, anything={"x": [1]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "version: 1\nmachines:\n- name: m\n  transitions:\n  - {on: a, from: b, to: c}\n"
            "  - on: a\n    from: b\n    to: c\n    whenn: any",
            "policy.yaml:9: unknown key `whenn` in `machines[0].transitions[1]`; did you mean `when`?",
        ),
        ("version: 1\nzzz: 1", "policy.yaml:2: unknown key `zzz`"),
        ("version: 1\nmods: observe", "policy.yaml:2: unknown key `mods`; did you mean `mode`?"),
        (
            'version: 1\nagents:\n  bob: {}\n  ana:\n    max_steps: "many"',
            'policy.yaml:5: `agents.ana.max_steps` wants a whole number or null, not `"many"`',
        ),
        ("version: 1\nagents: {a: {max_steps: -1}}", "policy.yaml:2: `agents.a.max_steps` wants a whole number >= 0, not `-1`"),
        (
            "version: 1\nagents: {a: {max_steps: 1.0}}",
            "policy.yaml:2: `agents.a.max_steps` wants a whole number or null, not `1.0`",
        ),
        (
            "version: 1\nagents: {a: {max_steps: 0x10}}",
            'policy.yaml:2: `agents.a.max_steps` wants a whole number or null, not `"0x10"`',
        ),
        ("version: 1\nagents: {a: {kappa: on}}", 'policy.yaml:2: `agents.a.kappa` wants a number, not `"on"`'),
        ("version: 1\nagents:\n  a: [1]", "policy.yaml:3: `agents.a` wants a mapping, not `[1]`"),
        ("version: 1\nagents:\n  a:\n", "policy.yaml:3: `agents.a` wants a mapping, not `null`"),
        (
            "version: 1\nagents:\n  b: {}\n  A B: {}",
            'policy.yaml:4: `agents["A B"]` wants text matching regex \'^[a-z]+$\', not `"A B"`',
        ),
        (
            "version: 1\nagents:\n  a:\n    remove:\n    - [A, B]\n    - [A, 2]",
            "policy.yaml:6: `agents.a.remove[1][1]` wants text, not `2`",
        ),
        ("version: 1\nagents: {a: {remove: [[A]]}}", 'policy.yaml:2: `agents.a.remove[0]` wants a list of length 2, not `["A"]`'),
        (
            "version: 1\nmode: observ",
            'policy.yaml:2: `mode` wants `enforce` or `observe`, not `"observ"`; did you mean `observe`?',
        ),
        ("version: 1\nmode: true", "policy.yaml:2: `mode` wants `enforce` or `observe`, not `true`"),
        ("version: '1'", 'policy.yaml:1: `version` wants `1`, not `"1"`'),
        ("version: 2", "policy.yaml:1: `version` wants `1`, not `2`"),
        ("mode: observe", "policy.yaml:1: the key `version` is missing"),
        ("version: 1\nmachines:\n\n- {}", "policy.yaml:4: the key `name` is missing in `machines[0]`"),
        ("version: 1\nmachines: [{name: ''}]", 'policy.yaml:2: `machines[0].name` wants text of length >= 1, not `""`'),
        (
            "version: 1\nmachines: [{name: cursed}]",
            'policy.yaml:2: `machines[0]`: this name brings bad luck (found `{"name":"cursed"}`)',
        ),
        ("version: 1\nlabels: {a: b, c: 3}", "policy.yaml:2: `labels.c` wants text, not `3`"),
        ("version: 1\nagents: {a: {machines: [x, 5]}}", "policy.yaml:2: `agents.a.machines[1]` wants text or a mapping, not `5`"),
        (
            "version: 1\nagents: {a: {machines: [x, {nam: y}]}}",
            "policy.yaml:2: unknown key `nam` in `agents.a.machines[1]`; did you mean `name`?",
        ),
        (
            "version: 1\nmachines: [{name: m, transitions: [{on: a, from: b, to: c, when: {status: ok}}]}]",
            'policy.yaml:2: `machines[0].transitions[0].when.status` wants `any` or `success` or `error`, not `"ok"`',
        ),
        (
            "version: 1\nmachines: [{name: m, transitions: [{on: a, from: b, to: c, when: suces}]}]",
            'policy.yaml:2: `machines[0].transitions[0].when` wants `any` or `success`, not `"suces"`; did you mean `success`?',
        ),
        ("- 1", "policy.yaml:1: the document wants a mapping, not `[1]`"),
        ("", "policy.yaml:1: the document wants a mapping, not `null`"),
        ("version: 1\nlabels: 9" + "9" * 200, "policy.yaml:2: `labels` wants a mapping, not `" + "9" * 60 + "…`"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_a_way_out(text: str, message: str) -> None:
    assert complaints(text)[0] == message


def test_all_mistakes_are_told_at_once() -> None:
    text = """\
agents:
  ana: {max_steps: x, speed: 3}
  bob: {}
  eve:
    remove: [[1, 2]]
machines:
  - transitions: [{on: a}]
colour: red
"""
    assert complaints(text) == [
        'policy.yaml:2: `agents.ana.max_steps` wants a whole number or null, not `"x"`',
        "policy.yaml:2: unknown key `speed` in `agents.ana`",
        "policy.yaml:5: `agents.eve.remove[0][0]` wants text, not `1`",
        "policy.yaml:5: `agents.eve.remove[0][1]` wants text, not `2`",
        "policy.yaml:7: the key `from` is missing in `machines[0].transitions[0]`",
        "policy.yaml:7: the key `to` is missing in `machines[0].transitions[0]`",
        "policy.yaml:7: the key `name` is missing in `machines[0]`",
        "policy.yaml:8: unknown key `colour`",
        "policy.yaml:1: the key `version` is missing",
    ]


class Cat(Struct, tag="cat", forbid_unknown_fields=True):
    lives: int = 9


class Dog(Struct, tag="dog", forbid_unknown_fields=True):
    tricks: int = 0


class Pets(Struct, forbid_unknown_fields=True):
    one: Cat | None = None
    many: dict[str, Cat | Dog] = {}


def test_tagged_structs_are_told_apart_by_msgspec() -> None:
    assert decode(read("one: {type: cat}\nmany: {a: {type: dog}}"), Pets) == Pets(Cat(), {"a": Dog()})
    with pytest.raises(DocumentError, match=r"^p:1: `one.lives` wants a whole number, not `true`$"):
        decode(read("one: {type: cat, lives: true}", "p"), Pets)
    with pytest.raises(DocumentError, match=r"^p:3: `many.b`: invalid value 'fish'"):
        decode(read("many:\n  a: {type: cat}\n  b: {type: fish}", "p"), Pets)
    with pytest.raises(DocumentError, match=r"^p:3: `many.b.tricks` wants a whole number, not `true`$"):
        decode(read("many:\n  a: {type: cat}\n  b: {type: dog, tricks: true}", "p"), Pets)


Sizes = NewType("Sizes", dict[str, int])


class Lenient(Struct):
    sizes: Sizes | None = None
    raw: Annotated[dict, Meta(max_length=1)] = {}  # type: ignore[type-arg]


def test_a_struct_that_takes_unknown_keys_takes_them() -> None:
    with pytest.raises(DocumentError, match=r"^p:2: `sizes.a` wants a whole number, not `true`$") as caught:
        decode(read("other: 1\nsizes: {a: true}", "p"), Lenient)
    assert caught.value.others == ()


def test_a_mapping_of_no_special_type_is_one_mistake() -> None:
    with pytest.raises(DocumentError, match=r"^p:1: `raw` wants a mapping of length <= 1, not `{"):
        decode(read("raw: {a: 1, b: 2}", "p"), Lenient)


names = st.sampled_from(
    ["version", "mode", "agents", "machines", "labels", "name", "transitions", "on", "from", "to", "when", "a"]
)
scraps = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["a", "enforce", "any", "", "cursed"]) | st.just(1.5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=10,
)


@given(scraps)
def test_what_msgspec_refuses_is_refused_and_nothing_else(value: Any) -> None:
    document = read(json.dumps(value), "p.json")
    try:
        wanted = msgspec.convert(value, Policy)
    except msgspec.ValidationError:
        with pytest.raises(DocumentError):
            decode(document, Policy)
    else:
        assert decode(document, Policy) == wanted


GOOD: dict[str, Any] = {
    "version": 1,
    "agents": {"ana": {"max_steps": 3, "remove": [["a", "b"]], "machines": ["m", {"name": "n"}]}, "bob": {"kappa": 1.5}},
    "machines": [{"name": "m", "transitions": [{"on": "a", "from": ["b", "c"], "to": "d", "when": {"status": "any"}}]}],
    "labels": {"x": "y", "z": "w"},
}


@given(st.sampled_from(places(GOOD)[1:]), st.sampled_from(["wrong value", "unknown key"]))
def test_a_mistake_planted_anywhere_is_found_at_its_line(path: Path, kind: str) -> None:
    twin = json.loads(json.dumps(GOOD))
    holder = twin
    for step in path[:-1]:
        holder = holder[step]
    if kind == "unknown key" and isinstance(holder, dict) and path[0] != "labels" and path != ("agents", path[-1]):
        holder["planted"] = 1
    else:
        holder[path[-1]] = {"planted": 1}
    text = json.dumps(twin, indent=1)
    error = complaints_json(text)
    line = next(number for number, row in enumerate(text.split("\n"), 1) if "planted" in row)
    assert line - 1 <= error.line <= line


def complaints_json(text: str) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        decode(read(text, "p.json"), Policy)
    return caught.value


# --- folders ---------------------------------------------------------------------------------------------------------


def merged(*texts: str) -> Document:
    return merge_documents([read(text, f"{number}.yaml") for number, text in enumerate(texts, 1)], "folder")


def test_the_files_of_a_folder_are_one_document() -> None:
    document = merged(
        "version: 1\nagents:\n  ana: {max_steps: 1}\nmachines:\n- {name: a}\n",
        "version: 1\nmode: observe\nagents:\n\n  bob: {max_steps: x}\nmachines:\n- {name: b}\n- {name: c}\n",
    )
    assert document.data == {
        "version": 1,
        "agents": {"ana": {"max_steps": 1}, "bob": {"max_steps": "x"}},
        "machines": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
        "mode": "observe",
    }
    where = [(document.file_of(path), document.line(path)) for path in PARTS]
    assert where == [("1.yaml", 3), ("2.yaml", 5), ("1.yaml", 5), ("2.yaml", 8), ("2.yaml", 2), ("folder", 1)]
    with pytest.raises(DocumentError, match=r"^2.yaml:5: `agents.bob.max_steps` wants a whole number"):
        decode(document, Policy)


PARTS: list[Path] = [
    ("agents", "ana", "max_steps"),
    ("agents", "bob", "max_steps"),
    ("machines", 0),
    ("machines", 2, "name"),
    ("mode",),
    (),
]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (
            "agents: {ana: {}}",
            "agents:\n  ana: {}",
            "2.yaml:2: `ana` in `agents` stands in 1.yaml:1 already: take one of them out",
        ),
        ("tools:\n  T: {}", "tools: {T: {}}", "2.yaml:1: `T` in `tools` stands in 1.yaml:2 already: take one of them out"),
        ("machines:\n- name: m", "machines: [{name: x}, {name: m}]", "2.yaml:1: `m` in `machines` stands in 1.yaml:2 already"),
        ("mode: observe", "mode: observe", "2.yaml:1: `mode` stands in 1.yaml:1 already"),
        ("version: 1", "version: 2", "2.yaml:1: `version` stands in 1.yaml:1 already"),
        ("limits: {a: 1}", "limits: {a: 1}", "2.yaml:1: `a` in `limits` stands in 1.yaml:1 already"),
        ("agents: {a: {}}", "agents: []", "2.yaml:1: `agents` stands in 1.yaml:1 already"),
        ("agents: {a: {}}", "agents:", "2.yaml:1: `agents` stands in 1.yaml:1 already"),
        ("agents: {a: {}}", "- x", "2.yaml:1: a file of a policy folder is a mapping"),
        ("agents: {a: {}}", "", "2.yaml:1: a file of a policy folder is a mapping"),
    ],
)
def test_what_is_said_twice_names_both_places(first: str, second: str, message: str) -> None:
    with pytest.raises(DocumentError) as caught:
        merged(first, second)
    assert str(caught.value).startswith(message)


def test_a_third_file_is_compared_with_all_before() -> None:
    with pytest.raises(DocumentError, match=r"^3.yaml:1: `b` in `machines` stands in 2.yaml:1 already"):
        merged("machines: [{name: a}]", "machines: [{name: b}]", "machines: [{name: b}]")


def test_merging_leaves_the_parts_as_they_were() -> None:
    first, second = read("agents: {a: {}}\nl: [1]", "1.yaml"), read("agents: {b: {}}\nl: [2]", "2.yaml")
    merge_documents([first, second], "folder")
    assert first.data == {"agents": {"a": {}}, "l": [1]}
    assert first.line(("agents", "b")) == 1
    assert list(first.place.inner["agents"].inner) == ["a"]
