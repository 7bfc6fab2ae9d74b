"""The file of users: hashes, whole writes, clear errors."""

import json
import stat
import threading
from pathlib import Path

import pytest

from gated.console.people import People, PeopleError, Person, hash_of, verified
from gated.console.sessions import IDLE, WHOLE, Attempts, Sessions

PASSWORD = "a password of some length"


def test_a_password_is_kept_as_an_argon2id_hash_and_nothing_else(tmp_path: Path) -> None:
    people = People(tmp_path / "console" / "users.json")
    people.put(Person("ana", hash_of(PASSWORD)), new=True)
    text = people.path.read_text()
    assert PASSWORD not in text
    assert "$argon2id$" in text
    assert stat.S_IMODE(people.path.stat().st_mode) == 0o600
    assert verified(people.find("ana"), PASSWORD)
    assert not verified(people.find("ana"), PASSWORD + " ")
    assert not verified(people.find("bob"), PASSWORD)
    assert not verified(Person("eve", "", oidc="eve@x"), "")
    assert not verified(Person("eve", "no hash"), PASSWORD)


def test_a_change_is_seen_by_who_has_the_file_open(tmp_path: Path) -> None:
    one, other = People(tmp_path / "users.json"), People(tmp_path / "users.json")
    assert other.all() == {}
    one.put(Person("ana", "h"))
    assert list(other.all()) == ["ana"]
    one.remove("ana")
    assert other.all() == {}


def test_many_writers_at_once_lose_nobody(tmp_path: Path) -> None:
    threads = [
        threading.Thread(target=lambda n=n: People(tmp_path / "users.json").put(Person(f"p{n}", "h"), new=True))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(People(tmp_path / "users.json").all()) == 20


@pytest.mark.parametrize("text", ["", "{", "[]", '{"users": [{"name": 1}]}', '{"users": [{"name": "a", "admin": true}]}'])
def test_a_damaged_file_is_named_and_nobody_is_let_in(tmp_path: Path, text: str) -> None:
    (tmp_path / "users.json").write_text(text)
    people = People(tmp_path / "users.json")
    with pytest.raises(PeopleError, match=r"users\.json` is damaged"):
        people.find("ana")
    with pytest.raises(PeopleError, match="is damaged"):
        people.put(Person("ana", "h"))
    assert (tmp_path / "users.json").read_text() == text


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ana*", ">", "ä", "a" * 129, "ana\n"])
def test_a_name_that_is_none_on_the_bus_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(PeopleError, match="cannot be a name on the bus"):
        People(tmp_path / "users.json").put(Person(name, "h"))


def test_what_cannot_be_done_says_why(tmp_path: Path) -> None:
    people = People(tmp_path / "users.json")
    people.put(Person("ana", "h", oidc="a@x"))
    with pytest.raises(PeopleError, match="there is a user `ana` already"):
        people.put(Person("ana", "h"), new=True)
    with pytest.raises(PeopleError, match="another user has `a@x`"):
        people.put(Person("bob", "", oidc="a@x"))
    with pytest.raises(PeopleError, match="there is no user `eve`: the users are ana"):
        people.remove("eve")
    with pytest.raises(PeopleError, match="at least 12 characters"):
        hash_of("short")
    with pytest.raises(PeopleError, match="at most 1024"):
        hash_of("x" * 1025)
    assert not people.put_first(Person("bob", "h"))
    assert json.loads(people.path.read_text()) == {"users": [{"name": "ana", "hash": "h", "oidc": "a@x"}]}


def test_a_session_ends_when_it_is_not_used_and_after_half_a_day() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    person = Person("ana", "h")
    name, _ = sessions.begin(person)
    assert sessions.find(name + "x") is None
    while now < WHOLE:
        assert sessions.find(name) is not None
        now += IDLE / 2
    now += 1
    assert sessions.find(name) is None
    name, _ = sessions.begin(person)
    now += IDLE + 1
    assert sessions.find(name) is None
    assert sessions.of("ana") == 0


def test_a_page_that_only_keeps_itself_up_to_date_does_not_use_its_session() -> None:
    """Found by reading: a page that was left open kept its session for half a day, whoever came by."""
    now = 0.0
    sessions = Sessions(lambda: now)
    name, session = sessions.begin(Person("ana", "h"))
    while now < IDLE:
        assert sessions.find(name, uses=False) is session
        now += 60
    now += 1
    assert sessions.find(name, uses=False) is None


def test_attempts_are_counted_by_name_and_by_address() -> None:
    now = 0.0
    attempts = Attempts(lambda: now)
    for _ in range(5):
        assert attempts.wait("ana", "1.2.3.4") == 0
        attempts.failed("ana", "1.2.3.4")
        now += 1
    assert attempts.wait("ana", "9.9.9.9") == 55
    assert attempts.wait("bob", "1.2.3.4") == 0
    for number in range(25):
        attempts.failed(f"name{number}", "1.2.3.4")
    assert attempts.wait("bob", "1.2.3.4") > 0
    assert attempts.wait("bob", "9.9.9.9") == 0
    now += 60
    assert attempts.wait("ana", "1.2.3.4") == 0
