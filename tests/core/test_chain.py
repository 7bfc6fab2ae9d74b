"""The hash chain and the lines of an export: any changed byte shows, and a line is its record exactly."""

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gated.core.chain import (
    CheckpointNote,
    checkpoint_line,
    export_line,
    merkle_root,
    parse_line,
    policy_line,
    tree_hash,
    verify_records,
)
from gated.events import GENESIS, Body, CallId, IntentsReceived, Record, RunId, Sender, ThreadId, Wanted, kind_of, seal

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def chained(count: int, args: object = "x") -> list[tuple[int, Record]]:
    made: list[tuple[int, Record]] = []
    prev = GENESIS
    for seq in range(1, count + 1):
        said = IntentsReceived(Sender("agent", "a"), (Wanted(CallId(f"c{seq}"), "search", {"q": args}),))
        record = seal(Body(1, ThreadId("t"), RunId("r"), seq, 10**15 + seq, kind_of(said), said, (), "p" * 64, prev))
        made.append((seq, record))
        prev = record.hash
    return made


@given(st.integers(0, 2), st.data())
def test_any_changed_byte_of_a_body_is_found_where_it_is(index: int, data: st.DataObject) -> None:
    records = chained(3)
    body = bytearray(records[index][1].body)
    at = data.draw(st.integers(0, len(body) - 1))
    body[at] ^= data.draw(st.integers(1, 255))
    records[index] = (index + 1, msgspec.structs.replace(records[index][1], body=bytes(body)))
    found = verify_records(records)
    assert found.damage is not None
    assert (found.damage.position, found.records) == (index + 1, index)


@pytest.mark.parametrize(
    ("column", "value", "what"),
    [
        ("run", "s", "`run` is not what the body says"),
        ("at", 5, "`at` is not what the body says"),
        ("kind", "run_started", "`kind` is not what the body says"),
        ("thread", "u", "record 2 follows record 0"),
        ("seq", 3, "record 3 follows record 1"),
        ("prev", "f" * 64, "the previous hash is not that of the record before"),
        ("hash", "f" * 64, "the body does not have the recorded hash"),
    ],
)
def test_a_column_that_disagrees_is_named(column: str, value: object, what: str) -> None:
    records = chained(3)
    records[1] = (2, msgspec.structs.replace(records[1][1], **{column: value}))
    damage = verify_records(records).damage
    assert damage is not None
    assert (damage.position, damage.what) == (2, what)


def test_a_body_that_was_hashed_again_breaks_the_chain_behind_it() -> None:
    records, forged = chained(3), chained(3, "forged")
    damage = verify_records([records[0], (2, msgspec.structs.replace(forged[1][1], prev=records[0][1].hash)), records[2]]).damage
    assert damage is not None
    assert (damage.position, damage.what) == (2, "`prev` is not what the body says")


def test_positions_may_begin_anywhere_and_none_is_missing() -> None:
    records = [(position + 7, record) for position, record in chained(3)]
    assert verify_records(records).damage is None
    damage = verify_records([records[0], (10, records[1][1])]).damage
    assert damage is not None
    assert damage.what == "position 10 follows position 8"


@given(VALUES)
def test_a_line_is_its_record_exactly(value: object) -> None:
    for _, record in chained(2, value):
        line = export_line(record)
        assert b"\n" not in line
        assert parse_line(line) == record
        assert export_line(record) == line


def test_policies_and_checkpoints_are_lines_of_their_own() -> None:
    text = b'{"a":[1,2.50]}'
    digest = hashlib.sha256(text).hexdigest()
    assert parse_line(policy_line(digest, text)) == (digest, text)
    line = checkpoint_line(7, "gate\n1\n\n— x y\n")
    assert parse_line(line) == CheckpointNote(7, "gate\n1\n\n— x y\n")


def test_a_body_that_is_no_json_is_not_exported() -> None:
    record = msgspec.structs.replace(chained(1)[0][1], body=b"\xff{")
    with pytest.raises(ValueError, match="record 1 of thread `t` cannot be exported"):
        export_line(record)


def slow_tree(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1, word for word."""
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\x00" + leaves[0]).digest()
    k = 1
    while k * 2 < len(leaves):
        k *= 2
    return hashlib.sha256(b"\x01" + slow_tree(leaves[:k]) + slow_tree(leaves[k:])).digest()


@given(st.lists(st.binary(max_size=8), max_size=40))
def test_the_tree_is_that_of_the_rfc(leaves: list[bytes]) -> None:
    assert tree_hash(leaves) == slow_tree(leaves)


@given(st.dictionaries(st.text(max_size=3).map(ThreadId), st.tuples(st.integers(1, 9), st.just("a" * 64)), max_size=6))
def test_the_order_of_threads_does_not_reach_the_root(heads: dict[ThreadId, tuple[int, str]]) -> None:
    turned = dict(reversed(heads.items()))
    assert merkle_root(turned) == merkle_root(heads)
    more = {**heads, ThreadId("another"): (1, "b" * 64)}
    assert merkle_root(more) != merkle_root(heads)
