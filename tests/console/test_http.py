"""The console from outside, without a browser: log-in, tokens, headers, and what is not sent to whom."""

import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from console.world import CHEAP, PASSWORD, SETUP, World, world
from gated.console.people import Person
from gated.console.sessions import Attempts


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as running:
        yield running


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of a page with one form of its own."""
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))


# --- who gets in ---------------------------------------------------------------------------------------------------------

PAGES = ["/", "/rows", "/runs", "/runs/rows", "/events", "/tickets/t1", "/tickets/a/b/t1", "/tickets/a/b/t1/edit", "/runs/a/b"]
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
        made.until(lambda: all("hello" in text for text in heard.values()))
        with (
            made.waiting("writer", "deploy", {"image": "x"}) as theirs,
            made.waiting("payer", "refund", {"customer": "c", "amount": 2}) as ours,
        ):
            made.until(lambda: theirs.ticket in heard["eve"] and ours.ticket in heard["bob"])
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


# --- answering -----------------------------------------------------------------------------------------------------------


def test_of_two_who_answer_at_once_one_wins_and_the_other_is_told(made: World) -> None:
    for turn in range(3):
        with (
            made.waiting("payer", "refund", {"customer": f"c{turn}", "amount": 4}) as call,
            made.visitor("ana") as ana,
            made.visitor("bob") as bob,
            ThreadPoolExecutor(2) as pool,
        ):
            tasks = [pool.submit(v.answer, call.path, how) for v, how in ((ana, "approve"), (bob, "reject"))]
            said = [task.result(20).text for task in tasks]
            verdict = call.verdict()
            first, late = said if verdict.decision == "allow" else said[::-1]
            assert ("Approved." if verdict.decision == "allow" else "Rejected.") in first
            assert "Your answer came too late and changed nothing: the ticket was" in late
            assert ("approved by ana at" if verdict.decision == "allow" else "rejected by bob at") in late


def test_what_is_to_be_said_once_is_not_said_to_a_part_of_a_page(made: World) -> None:
    """An open page that brings itself up to date must not take away what the next page is to say."""
    with made.waiting("payer", "refund", {"customer": "c", "amount": 14}) as call, made.visitor("ana") as ana:
        sent = ana.http.post(f"{call.path}/reject", data=hidden(ana.get(call.path).text))
        assert "Rejected. The agent" not in ana.http.get(call.path, headers={"x-gated-part": "yes"}).text
        assert "Rejected. The agent" in ana.get(sent.headers["location"]).text
        assert "Rejected. The agent" not in ana.get(call.path).text


def test_the_same_form_sent_twice_is_one_answer(made: World) -> None:
    with made.waiting("payer", "refund", {"customer": "c", "amount": 5}) as call, made.visitor("ana") as ana:
        data = {
            "csrf": ana.token(call.path),
            "digest": call.first.args_sha256,
            "decision_id": ana.field(call.path, "decision_id"),
        }
        with ThreadPoolExecutor(2) as pool:
            sent = [pool.submit(ana.http.post, f"{call.path}/approve", data=data) for _ in range(2)]
            assert [task.result(20).status_code for task in sent] == [303, 303]
        page = ana.get(call.path).text
        assert "too late" not in page
        assert page.count('<li><span class="state approved">') == 1
        assert call.verdict().decision == "allow"


def test_a_page_that_shows_other_arguments_cannot_approve(made: World) -> None:
    with made.waiting("payer", "refund", {"customer": "c", "amount": 6}) as call, made.visitor("ana") as ana:
        page = ana.answer(call.path, "approve", digest="0" * 64).text
        assert "approvals.digest_mismatch" in page
        assert "data-approve" in page


def test_hidden_bytes_are_not_approved_before_the_full_view_was_opened(made: World) -> None:
    args = {"to": "x", "body": "A" * 200_000}
    with made.waiting("writer", "wire", args) as call, made.visitor("ana") as ana, made.visitor("bob") as bob:
        page = ana.get(call.path).text
        assert "199,702 bytes hidden" in page
        assert "disabled" in page
        for verb in ("approve",):
            assert "Open the full view first" in ana.answer(call.path, verb).text
        assert ana.get(f"{call.path}/edit").status_code == 303
        full = ana.get(f"{call.path}/full").text
        assert "A" * 200_000 in full
        assert "Your answer counts. Others must still answer." in ana.answer(call.path, "approve").text
        assert "Open the full view first" in bob.answer(call.path, "approve").text  # that ana opened it is not enough


def test_remembering_says_what_and_how_far(made: World) -> None:
    with made.waiting("payer", "refund", {"customer": "c", "amount": 7}) as call, made.visitor("ana") as ana:
        assert "does not match this call" in ana.answer(call.path, "approve", remember="run", pattern="deploy").text
        assert "The pattern is not one" in ana.answer(call.path, "approve", remember="run", pattern="refund(").text
        ana.answer(call.path, "approve", remember="run", pattern="refund")
        assert call.verdict().decision == "allow"
        run_page = ana.get(call.path.replace("tickets", "runs").rpartition("/")[0]).text
        assert "ana approved refund for this run" in run_page
        again = made.portal.call(call.run.check, "refund", {"customer": "d", "amount": 7})
        assert again.decision == "allow"
        fields = dict(re.findall(r'<input type="hidden" name="(csrf|remembered)" value="([^"]*)">', run_page))
        withdrawn = ana.http.post(f"{call.path.replace('tickets', 'runs').rpartition('/')[0]}/forget", data=fields)
        assert "Withdrawn" in ana.get(withdrawn.headers["location"]).text
        assert made.portal.call(call.run.check, "refund", {"customer": "e", "amount": 7}).decision == "suspend"


def test_a_person_answers_for_the_tool_where_the_rule_lets_them(made: World) -> None:
    with made.waiting("payer", "ask_human", {"question": "which?"}) as call, made.visitor("ana") as ana:
        assert "The result is not JSON" in ana.answer(call.path, "result", result="the left one").text
        assert "Approved." in ana.answer(call.path, "result", result='"the left one"').text
        verdict = call.verdict()
        assert (verdict.decision, verdict.execute, verdict.result) == ("allow", False, "the left one")
    with made.waiting("payer", "refund", {"customer": "c", "amount": 12}) as other, made.visitor("ana") as ana:
        assert "Answer for the tool" not in ana.get(other.path).text
        assert "approvals.may_not_answer" in ana.answer(other.path, "result", result='"x"').text


def test_an_edit_that_others_must_confirm_leads_to_the_ticket_that_they_see(made: World) -> None:
    with made.waiting("writer", "wire", {"to": "x"}) as call, made.visitor("ana") as ana, made.visitor("bob") as bob:
        assert "no schema for this tool" in ana.get(f"{call.path}/edit").text
        data = {"csrf": ana.token(f"{call.path}/edit"), "args": '{"to": "y"}'}
        fields = hidden(ana.http.post(f"{call.path}/edit", data=data).text)
        page = ana.get(ana.http.post(f"{call.path}/confirm", data=fields).headers["location"]).text
        assert "Your edit was taken." in page
        (next_path,) = re.findall(r'asked about again: <a href="([^"]+)"', page)
        assert next_path == made.path(f"{call.ticket}.2")
        assert "What the edit changed" in bob.get(next_path).text
        assert "You have answered. Others must still answer; you can still say no." in ana.get(next_path).text
        bob.answer(next_path, "approve")
        assert (call.verdict().decision, call.verdict().args) == ("allow", {"to": "y"})


def test_an_approval_that_the_gate_then_denies_says_so(made: World) -> None:
    with made.waiting("spender", "buy", {"what": "one"}) as call, made.visitor("ana") as ana:
        more = made.portal.call(call.run.check, "buy", {"what": "two"})
        assert more.decision == "suspend"
        assert "Approved." in ana.answer(call.path, "approve").text
        page = ana.answer(made.path(more.ticket), "approve").text
        assert "You approved it, and it was denied all the same" in page
        assert call.verdict().decision == "allow"


# --- editing -------------------------------------------------------------------------------------------------------------


def test_an_edit_is_shown_as_a_difference_then_sent(made: World) -> None:
    args = {"customer": "c", "amount": 200, "reason": "broken\nin two"}
    with made.waiting("payer", "refund", args) as call, made.visitor("ana") as ana:
        form = ana.get(f"{call.path}/edit").text
        assert "The customer&#39;s id" in form
        assert "at least 1, characters" not in form
        token = ana.token(f"{call.path}/edit")
        # a form's line breaks come back as two characters, and fields that were not touched mean what they meant
        typed = {"csrf": token, "f0": "50", "f1": "absent", "f2": "c", "f3": "broken\r\nin two"}
        review = ana.http.post(f"{call.path}/edit", data=typed)
        assert "<mark>200</mark>" in review.text
        assert "<mark>50</mark>" in review.text
        fields = hidden(review.text)
        sent = ana.http.post(f"{call.path}/confirm", data=fields)
        assert "Your edit was taken." in ana.get(sent.headers["location"]).text
        verdict = call.verdict()
        assert (verdict.decision, verdict.edited) == ("allow", True)
        assert verdict.args == {"customer": "c", "amount": 50, "reason": "broken\nin two"}


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"f0": "0"}, "does not take it"),
        ({"f0": "many"}, "amount: not a number"),
        ({"f0": "1.5"}, "amount: not a whole number"),
        ({"f1": '"GBP"'}, "none of the choices"),
        ({}, "Nothing is changed"),
    ],
)
def test_an_edit_that_the_gate_would_refuse_for_good_is_not_sent(made: World, typed: dict[str, str], said: str) -> None:
    with made.waiting("payer", "refund", {"customer": "c", "amount": 8}) as call, made.visitor("ana") as ana:
        whole = {"csrf": ana.token(f"{call.path}/edit"), "f0": "8", "f1": "absent", "f2": "c", "f3": "", **typed}
        answer = ana.http.post(f"{call.path}/edit", data=whole)
        assert answer.status_code == 400
        assert said in answer.text
        assert "data-approve" in ana.get(call.path).text


def test_addresses_hold_ids_and_nothing_else(made: World) -> None:
    with made.waiting("payer", "refund", {"customer": "c-secret", "amount": 9}) as call, made.visitor("ana") as ana:
        for path in ("/", call.path, f"{call.path}/edit", "/runs"):
            links = [part.split('"')[0] for part in ana.get(path).text.split('href="')[1:]]
            assert all("secret" not in link for link in links)
            assert all(
                set(link) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./#?=") for link in links
            )
            assert all("?" not in link or link.split("?")[1].startswith("page=") for link in links)


def test_the_account_of_the_log_is_that_of_the_page(made: World) -> None:
    with made.waiting("payer", "refund", {"customer": "c", "amount": 10}) as call, made.visitor("bob") as bob:
        bob.answer(call.path, "reject", note="no receipt")
        verdict = call.verdict()
        assert (verdict.code, verdict.reason) == ("approvals.rejected", "rejected by bob: no receipt")
        records = (made.folder / "log.db").exists()
        assert records
        page = bob.get(call.path).text
        assert "no receipt" in page
        assert json.dumps(verdict.call)[1:13] in page
