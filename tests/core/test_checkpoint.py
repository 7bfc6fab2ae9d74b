"""Checkpoints: the C2SP forms as written there, and nothing that is not signed by a known key."""

import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from gated.core.checkpoint import Checkpoint, CheckpointError, Key, is_name, parse, parse_key, sign, split_notes, verify, write

PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
KEY = Key("example.org/gate", PRIVATE.public_key().public_bytes_raw())
MADE = Checkpoint("example.org/gate", 2, bytes(32), 17, "a" * 64)
NOTE = sign(MADE, KEY, PRIVATE.sign)
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(32))
OTHER = Key("example.org/other", STRANGER.public_key().public_bytes_raw())


def test_a_note_has_the_form_of_the_page() -> None:
    lines = NOTE.split("\n")
    assert lines[:5] == ["example.org/gate", "2", base64.b64encode(bytes(32)).decode(), "records 17", f"head {'a' * 64}"]
    assert lines[5] == ""
    dash, name, encoded = lines[6].split(" ")
    assert (dash, name, lines[7:]) == ("—", KEY.name, [""])
    raw = base64.b64decode(encoded)
    assert (raw[:4], len(raw)) == (KEY.id, 4 + 64)


def test_the_key_id_and_the_key_line_are_those_of_the_go_implementation() -> None:
    """The example key of Go's note package: published, and not made by this code."""
    line = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    key = parse_key(line)
    assert (key.name, key.id.hex(), str(key)) == ("PeterNeumann", "c74f20a3", line)


def test_the_example_note_of_the_go_implementation_verifies() -> None:
    key = parse_key("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    note = (
        "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n\n"
        "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
    )
    with pytest.raises(CheckpointError, match="not a checkpoint of gated"):  # signed well, but no checkpoint
        verify(note, [key])
    with pytest.raises(CheckpointError, match="does not fit"):
        verify(note.replace("answer", "Answer"), [key])


@given(st.integers(0, 2**40), st.integers(0, 2**60), st.binary(min_size=32, max_size=32), st.text("0123456789abcdef"))
def test_what_is_signed_is_read_again(threads: int, records: int, root: bytes, head: str) -> None:
    made = Checkpoint("gate", threads, root, records, head)
    assert verify(sign(made, KEY, PRIVATE.sign), [OTHER, KEY]) == made


@given(st.data())
def test_a_note_with_any_changed_character_is_refused(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(NOTE) - 1))
    to = data.draw(st.sampled_from("0aA1 \n—+=") | st.characters(codec="utf-8"))
    changed = NOTE[:at] + to + NOTE[at + 1 :]
    if changed != NOTE:
        with pytest.raises(CheckpointError):
            verify(changed, [KEY])


def test_a_signature_is_written_in_one_way() -> None:
    """Two bits of the last character are in no byte: they must be zero."""
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    last = alphabet.index(NOTE[-3])
    for bits in (1, 2, 3):
        with pytest.raises(CheckpointError, match="is not a signature"):
            verify(f"{NOTE[:-3]}{alphabet[last | bits]}=\n", [KEY])


def test_a_note_of_strangers_is_refused_and_their_signature_beside_a_known_one_is_passed_over() -> None:
    strange = sign(MADE, OTHER, STRANGER.sign)
    with pytest.raises(CheckpointError, match=r"no known key signed the checkpoint, only `example\.org/other`"):
        verify(strange, [KEY])
    both = NOTE + strange.split("\n\n")[1]
    assert verify(both, [KEY]) == verify(both, [OTHER]) == MADE
    forged = NOTE + sign(MADE, OTHER, PRIVATE.sign).split("\n\n")[1]
    assert verify(forged, [KEY]) == MADE
    with pytest.raises(CheckpointError, match=r"the signature of `example\.org/other` does not fit"):
        verify(forged, [KEY, OTHER])


@pytest.mark.parametrize("number", ["02", "+2", " 2", "2 ", "-2", "2_0", "٢", ""])
def test_numbers_are_written_in_one_way(number: str) -> None:
    text = write(MADE)
    for other in (text.replace("\n2\n", f"\n{number}\n"), text.replace("records 17", f"records {number}")):
        with pytest.raises(CheckpointError, match="not a checkpoint of gated"):
            parse(other)


@pytest.mark.parametrize("text", ["", "\n", "x", write(MADE)[:-1], write(MADE) + "\n", "\n" + write(MADE)])
def test_what_is_no_checkpoint_is_refused(text: str) -> None:
    with pytest.raises(CheckpointError):
        parse(text)


@pytest.mark.parametrize(
    "line", ["", "a+b", "gate+00000000+AQ==", str(KEY)[:-2], str(KEY).replace("gate", "gat"), "a b" + str(KEY)]
)
def test_what_is_no_key_is_refused(line: str) -> None:
    with pytest.raises(CheckpointError, match="is not a verifier key"):
        parse_key(line)


@pytest.mark.parametrize("notes", [[], [NOTE], [NOTE, NOTE], [NOTE + sign(MADE, OTHER, STRANGER.sign).split("\n\n")[1], NOTE]])
def test_a_file_of_notes_is_taken_apart(notes: list[str]) -> None:
    assert split_notes("".join(notes)) == notes


def test_a_file_whose_last_note_was_cut_is_refused() -> None:
    with pytest.raises(CheckpointError, match="it was cut"):
        split_notes(NOTE + write(MADE))


@pytest.mark.parametrize("name", ["example.org/gate", "é", "a-b_c.d"])
def test_names(name: str) -> None:
    assert is_name(name)
    assert not is_name(name + " ")
    assert not is_name("+" + name)
