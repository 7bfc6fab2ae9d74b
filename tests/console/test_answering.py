"""Answers over HTTP: approve, reject, edit, remember, and what becomes of them."""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from console.world import CHEAP, PASSWORD, World, world
from gated import wire
from gated.console.line import NoAnswer
from gated.console.people import Person, seal


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as running:
        yield running


def hidden(page: str) -> dict[str, str]:
    """The hidden fields of a page with one form of its own."""
    return dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))


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


def test_a_person_whose_line_the_server_ended_answers_on_a_new_one(made: World) -> None:
    """Found by reading: a line that was closed for good was kept, and every answer on it failed until they logged out."""
    with made.visitor("ana") as ana:
        for customer in ("c1", "c2"):
            with made.waiting("payer", "refund", {"customer": customer, "amount": 4}) as call:
                assert "Approved." in ana.answer(call.path, "approve").text
                assert call.verdict().decision == "allow"
            made.portal.call(made.desk.lines._people["ana"].client.close)


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
        page = ana.answer(call.path, "result", result='"the left one"').text
        assert "Approved." in page
        assert "The tool does not run: the agent gets the result that was given." in page
        verdict = call.verdict()
        assert (verdict.decision, verdict.execute, verdict.result) == ("allow", False, "the left one")
    with made.waiting("payer", "refund", {"customer": "c", "amount": 12}) as other, made.visitor("ana") as ana:
        assert "Answer for the tool" not in ana.get(other.path).text
        assert "approvals.may_not_answer" in ana.answer(other.path, "result", result='"x"').text


def test_of_several_people_the_last_answers_for_the_tool(made: World) -> None:
    with made.waiting("writer", "wire", {"to": "x"}) as call, made.visitor("ana") as ana, made.visitor("bob") as bob:
        page = ana.get(call.path).text
        assert "whoever is the last of them may give the tool" in page
        assert 'name="result"' not in page
        said = ana.answer(call.path, "result", result='"by hand"').text
        assert "Your answer was not taken (approvals.may_not_answer)" in said
        assert "whoever answers last may give it" in said
        assert "Others must still answer." in ana.answer(call.path, "approve").text
        assert 'name="result"' not in ana.get(call.path).text
        assert 'name="result"' in bob.get(call.path).text
        bob.answer(call.path, "result", result='"by hand"')
        assert (call.verdict().execute, call.verdict().result) == (False, "by hand")


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


def test_an_edit_that_the_gate_then_denies_says_so(made: World) -> None:
    """Found in a terminal: the page said in green that the edit was taken."""
    with made.waiting("spender", "buy", {"what": "one"}) as call, made.visitor("ana") as ana:
        more = made.portal.call(call.run.check, "buy", {"what": "two"})
        ana.answer(call.path, "approve")
        path = made.path(more.ticket)
        data = {"csrf": ana.token(f"{path}/edit"), "args": '{"what": "three"}'}
        fields = hidden(ana.http.post(f"{path}/edit", data=data).text)
        page = ana.get(ana.http.post(f"{path}/confirm", data=fields).headers["location"]).text
        assert "You edited it, and it was denied all the same" in page
        assert call.verdict().decision == "allow"


def test_nobody_can_be_spoken_for_who_is_not_logged_in(tmp_path: Path) -> None:
    """On a server of one's own: the file holds the console's password only, the people's are sealed under their own."""
    with world(tmp_path) as made:
        held = json.loads((tmp_path / "bus" / "bus.json").read_text())
        own = {"url": held["url"], "users": {"console": held["users"]["console"]}}
        (tmp_path / "bus" / "bus.json").write_text(json.dumps(own))
        made.desk.people.put(Person("ana", CHEAP, bus=seal(held["users"]["approver:ana"], PASSWORD)))
        with made.waiting("payer", "refund", {"customer": "c", "amount": 15}) as call:
            said = wire.Resolution(ticket=call.ticket, decision="approve", decision_id="d", args_sha256=call.first.args_sha256)
            line = made.desk.board.find(call.ticket)
            assert line is not None
            with pytest.raises(NoAnswer, match="the bus has no user `approver:ana`"):
                made.portal.call(made.desk.lines.answer, "ana", line.thread, line.run, said)
            with made.visitor("ana") as ana:
                assert "Approved." in ana.answer(call.path, "approve").text
                assert call.verdict().decision == "allow"
                ana.http.post("/logout", data={"csrf": ana.token()})
            assert made.desk.lines.speakers == set()


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
