"""The console from outside, without a browser: log-in, tokens, headers, and what is not sent to whom."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from console.world import CHEAP, PASSWORD, SETUP, World, world
from gated.console.people import Person
from gated.console.sessions import Attempts
from patience import blocking_until


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as running:
        yield running


# --- who gets in ---------------------------------------------------------------------------------------------------------

PAGES = [
    "/",
    "/rows",
    "/runs",
    "/runs/rows",
    "/ended",
    "/events",
    "/tickets/t1",
    "/tickets/a/b/t1",
    "/tickets/a/b/t1/edit",
    "/runs/a/b",
]
ACTIONS = ["/search", "/theme", "/logout", *(f"/tickets/a/b/t1/{verb}" for verb in ("approve", "reject", "edit", "confirm"))]


@pytest.mark.parametrize("path", PAGES)
def test_no_page_without_a_log_in(made: World, path: str) -> None:
    with made.visitor() as nobody:
        assert nobody.get(path).headers["location"] == "/login"
        assert nobody.http.get(path, headers={"accept": "*/*"}).status_code == 401


@pytest.mark.parametrize("path", ACTIONS)
def test_nothing_is_done_without_a_log_in_or_without_the_token(made: World, path: str) -> None:
    with made.visitor() as nobody:
        assert nobody.http.post(path, data={"csrf": nobody.token("/login")}).status_code == 401
    with made.visitor("ana") as ana:
        for data in ({}, {"csrf": "guessed"}, {"csrf": ""}):
            assert ana.http.post(path, data=data).status_code == 403, data


def test_a_request_from_another_site_is_refused_even_with_the_token(made: World) -> None:
    with made.waiting("payer", "refund", {"customer": "c", "amount": 1}) as call, made.visitor("ana") as ana:
        data = {"csrf": ana.token(call.path), "digest": call.first.args_sha256, "decision_id": "d1"}
        for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
            answer = ana.http.post(f"{call.path}/approve", data=data, headers=headers)
            assert (answer.status_code, answer.text) == (403, "the request comes from another site\n")
        assert ana.get(call.path).text.count("data-approve") == 1


def test_another_name_for_this_host_is_not_answered(made: World) -> None:
    with made.visitor() as nobody:
        assert nobody.http.get("/login", headers={"host": "rebound.example"}).status_code == 403


def test_a_wrong_password_and_an_unknown_name_look_the_same(made: World) -> None:
    with made.visitor() as nobody:
        wrong, unknown = nobody.log_in("bob", "wrong password!"), nobody.log_in("nobody", "wrong password!")
        assert wrong.status_code == unknown.status_code == 401
        assert wrong.text.replace("bob", "") == unknown.text.replace("nobody", "")


def test_a_log_in_gets_a_session_of_a_new_name_and_the_old_one_is_worth_nothing(made: World) -> None:
    with made.visitor() as ana:
        ana.get("/login")
        before = ana.http.cookies["gated_session"]
        answer = ana.log_in("ana")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=lax" in cookie
        assert ana.http.cookies["gated_session"] != before
        assert ana.get("/").status_code == 200
        stale = httpx.get(made.origin, cookies={"gated_session": before}, headers={"accept": "text/html"})
        assert stale.headers["location"] == "/login"


def test_a_log_out_ends_the_session_on_the_server(made: World) -> None:
    with made.visitor("ana") as ana:
        held = ana.http.cookies["gated_session"]
        ana.http.post("/logout", data={"csrf": ana.token()})
        stale = httpx.get(made.origin, cookies={"gated_session": held}, headers={"accept": "text/html"})
        assert stale.headers["location"] == "/login"


def test_failed_attempts_must_wait_and_others_need_not(made: World) -> None:
    made.desk.people.put(Person("dan", CHEAP))
    clock = 0.0
    made.desk.attempts = Attempts(lambda: clock)
    with made.visitor() as guesser:
        for _ in range(5):
            assert guesser.log_in("dan", "wrong password!").status_code == 401
        refused = guesser.log_in("dan")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "60")
        clock = 61.0
        assert guesser.log_in("dan").status_code == 303


def test_sessions_end_with_the_person_and_with_the_password(made: World) -> None:
    made.desk.people.put(Person("tmp", CHEAP))
    with made.visitor("tmp") as first:
        made.desk.people.set_password("tmp", "another password")
        assert first.get("/").headers["location"] == "/login"
    with made.visitor("tmp", "another password") as second:
        assert second.get("/").status_code == 200
        made.desk.people.remove("tmp")
        assert second.get("/").headers["location"] == "/login"


def test_every_answer_carries_the_headers(made: World) -> None:
    with made.visitor("ana") as ana:
        for path in ("/", "/login", "/nowhere", "/static/x/console.css", "/events"):
            with ana.http.stream("GET", path) as answer:
                policy = answer.headers["content-security-policy"]
                assert "default-src 'none'" in policy
                assert "unsafe-inline" not in policy
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["x-frame-options"] == "DENY"
                assert answer.headers["cache-control"] in ("no-store", "no-cache, no-store")


def test_pages_have_no_inline_scripts_or_styles(made: World) -> None:
    with made.waiting("payer", "refund", {"customer": "c", "amount": 400}) as call, made.visitor("ana") as ana:
        for path in ("/", call.path, f"{call.path}/edit", "/runs", call.path.replace("tickets", "runs").rpartition("/")[0]):
            text = ana.get(path).text
            assert text.count("<script") == 1
            assert "<style" not in text
            assert " style=" not in text
            assert " on" + "click" not in text


def test_a_run_has_its_page_from_the_moment_it_begins(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gated.console.past.JUST_NOW", 3600.0)
    with made.visitor("ana") as ana:
        ana.get("/runs")
        with made.waiting("payer", "refund", {"customer": "c", "amount": 400}) as call:
            assert ana.get(call.path.replace("tickets", "runs").rpartition("/")[0]).status_code == 200


# --- the first start -----------------------------------------------------------------------------------------------------


def test_the_link_of_the_first_start_makes_one_user_once(tmp_path: Path) -> None:
    with world(tmp_path, people=False) as fresh, fresh.visitor() as first, fresh.visitor() as second:
        assert first.get("/setup/guessed").status_code == 404
        path = f"/setup/{SETUP}"
        tokens = [visitor.token(path) for visitor in (first, second)]
        short = {"csrf": tokens[0], "name": "ana", "password": "short", "again": "short"}
        assert "at least 12 characters" in first.http.post(path, data=short).text
        data = {"csrf": tokens[0], "name": "ana", "password": PASSWORD, "again": PASSWORD}
        assert first.http.post(path, data=data).status_code == 303
        assert first.get("/").status_code == 200
        assert second.http.post(path, data={**data, "csrf": tokens[1], "name": "eve"}).status_code == 404
        assert list(fresh.desk.people.all()) == ["ana"]


# --- what a person may not see -------------------------------------------------------------------------------------------


def test_a_ticket_that_is_not_yours_is_not_sent_to_you_in_any_way(made: World) -> None:
    secret = "the-secret-image"
    with made.waiting("writer", "deploy", {"image": secret}) as call, made.visitor("bob") as bob, made.visitor("eve") as eve:
        run_path = call.path.replace("tickets", "runs").rpartition("/")[0]
        assert secret in eve.get(call.path).text
        assert secret in eve.get("/").text
        for path in (call.path, f"{call.path}/full", f"{call.path}/edit", f"/tickets/{call.ticket}", run_path):
            assert bob.get(path).status_code == 404, path
        for path in ("/", "/rows", "/runs", "/runs/rows"):
            assert secret not in bob.get(path).text
            assert call.ticket not in bob.get(path).text
            assert str(call.run.id) not in bob.get(path).text
        found = bob.http.post("/search", data={"csrf": bob.token(), "text": "secret"}).text
        assert "0 found" in found
        refused = bob.http.post(f"{call.path}/approve", data={"csrf": bob.token(), "digest": call.first.args_sha256})
        assert refused.status_code == 404
        with made.visitor("audrey") as auditor:
            page = auditor.get(call.path).text
            assert secret in page
            assert "data-approve" not in page


def test_what_is_not_yours_does_not_come_as_an_event(made: World) -> None:
    heard: dict[str, str] = {"eve": "", "bob": ""}
    over = threading.Event()

    def listen(name: str) -> None:
        with made.visitor(name) as visitor, visitor.http.stream("GET", "/events") as stream:
            for line in stream.iter_lines():
                heard[name] += line
                if over.is_set():
                    return

    with ThreadPoolExecutor(2) as pool:
        for name in heard:
            pool.submit(listen, name)
        blocking_until(lambda: all("hello" in text for text in heard.values()))
        with (
            made.waiting("writer", "deploy", {"image": "x"}) as theirs,
            made.waiting("payer", "refund", {"customer": "c", "amount": 2}) as ours,
        ):
            blocking_until(lambda: theirs.ticket in heard["eve"] and ours.ticket in heard["bob"])
            over.set()
            with made.waiting("payer", "refund", {"customer": "c", "amount": 3}):  # news that wakes bob
                with made.waiting("writer", "deploy", {"image": "y"}):  # and eve
                    pass
    assert theirs.ticket not in heard["bob"]
    assert str(theirs.run.id) not in heard["bob"]
    assert ours.ticket not in heard["eve"]


def test_the_owner_of_an_agent_neither_sees_nor_answers_its_tickets(made: World) -> None:
    with made.waiting("payer", "refund", {"customer": "c", "amount": 3}) as call, made.visitor("cy") as cy:
        assert cy.get(call.path).status_code == 404


def test_a_broken_policy_file_and_damaged_threads_are_said_on_every_page(made: World, monkeypatch: pytest.MonkeyPatch) -> None:
    health = made._live.daemon.runs.health
    monkeypatch.setattr(health, "why", "cannot write the log `<l>`")
    monkeypatch.setattr(health, "reload_failed", "policy.yaml:9: `<b>` is no key")
    monkeypatch.setattr(health, "damaged", {f"t{number}": f"thread `t{number}` is damaged" for number in range(7)})
    made.portal.call(made.desk.gate.look)
    with made.visitor("ana") as ana, made.visitor("audrey") as audrey, made.visitor() as nobody:
        for page in (ana.get("/").text, ana.get("/runs").text, audrey.get("/").text):
            assert "The gate decides nothing just now.</strong> cannot write the log `&lt;l&gt;`." in page
            assert "The policy file is broken.</strong> policy.yaml:9: `&lt;b&gt;` is no key." in page
        assert "thread `t0` is damaged" in audrey.get("/").text
        assert "and 2 more threads" in audrey.get("/").text
        assert "thread `t0`" not in ana.get("/").text
        assert "broken" not in nobody.get("/login").text
    monkeypatch.undo()
    made.portal.call(made.desk.gate.look)
    with made.visitor("ana") as ana:
        assert "broken" not in ana.get("/").text
        assert "decides nothing" not in ana.get("/").text
