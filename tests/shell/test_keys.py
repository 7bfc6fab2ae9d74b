"""The key of the checkpoints: made once, readable by its owner only, refused otherwise."""

import os
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from gated.core.checkpoint import Key, checkpoint, parse_key, verify
from gated.shell.keys import KeyFileError, is_open_to_others, load_or_make


def test_a_key_is_made_once_and_signs_what_its_public_line_verifies(tmp_path: Path) -> None:
    path = tmp_path / "data" / "seal.key"
    first = load_or_make(path, "gate")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    pem = path.read_bytes()
    again = load_or_make(path, "gate")
    assert path.read_bytes() == pem
    assert again.key == first.key
    public = parse_key(path.with_name("seal.key.pub").read_text())
    made = checkpoint("gate", 0, "0" * 64, {})
    assert verify(again.sign(made), [public]) == made
    assert sorted(p.name for p in path.parent.iterdir()) == ["seal.key", "seal.key.pub"]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "seal.key"
    load_or_make(path, "gate")
    path.chmod(mode)
    with pytest.raises(KeyFileError, match=f"can be read by others: run `chmod 600 {path}`"):
        load_or_make(path, "gate")


@pytest.mark.parametrize(
    ("mode", "owner", "me", "is_open"),
    [
        (0o600, 10001, 10001, False),
        (0o400, 10001, 10001, False),
        (0o440, 10001, 10001, True),
        (0o440, 0, 10001, False),  # a secret of Kubernetes: root's, and of the group that the pod runs in
        (0o460, 0, 10001, True),
        (0o444, 0, 10001, True),
        (0o440, 0, 0, True),
        (0o440, 1000, 10001, True),
    ],
)
def test_a_key_that_root_gives_a_service_is_read_by_its_group_and_by_nobody_else(
    mode: int, owner: int, me: int, is_open: bool
) -> None:
    assert is_open_to_others(mode, owner, me) is is_open


def test_what_is_no_ed25519_key_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "seal.key"
    curve = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for content, why in [(b"", "is not an unencrypted private key"), (b"key", "PEM"), (curve, "is not an Ed25519 key")]:
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(KeyFileError, match=why):
            load_or_make(path, "gate")
        assert path.read_bytes() == content


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a\nb", "a\u00a0b"])
def test_a_name_that_cannot_stand_in_a_note_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(KeyFileError, match="cannot sign under the name"):
        load_or_make(tmp_path / "seal.key", name)


def test_a_folder_that_cannot_be_made_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KeyFileError, match="cannot be used: File exists"):
        load_or_make(tmp_path / "file" / "seal.key", "gate")


def test_two_that_make_a_key_at_once_have_the_same_one_also_as_the_same_process_of_their_containers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "seal.key", os.link
    found: list[Key] = []

    def first_the_other(draft: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        found.append(load_or_make(path, "gate").key)
        link(draft, target)

    monkeypatch.setattr(os, "link", first_the_other)
    assert [load_or_make(path, "gate").key] == found
    assert sorted(p.name for p in tmp_path.iterdir()) == ["seal.key", "seal.key.pub"]
