"""The console in a real browser, as people use it."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from selenium.common.exceptions import StaleElementReferenceException

from console.browser import Browser, browser
from console.world import World, world
from gated import client
from patience import PATIENCE

REFUND = {"customer": "c-1", "amount": 40, "reason": "outage"}
HOSTILE = {
    "html": "</pre><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">",
    "attribute": '" autofocus onfocus="document.title=1',
    "bidi": "pay \u202e0001\u202c to\u200b bob\u2066",
    "template": "{{ 7 * 7 }}${7*7}<%= 7*7 %>",
    "body": "A" * 200_000,
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("world")) as running:
        yield running


@pytest.fixture(scope="module")
def ana(made: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(made, tmp_path_factory.mktemp("ana")) as page:
        page.log_in("ana")
        yield page


@pytest.fixture(scope="module")
def bob(made: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(made, tmp_path_factory.mktemp("bob")) as page:
        page.log_in("bob")
        yield page


@pytest.fixture(autouse=True)
def quiet(request: pytest.FixtureRequest) -> Iterator[None]:
    """No page makes the browser complain: no error of a script, nothing that the page's policy had to stop."""
    yield
    for name in ("ana", "bob"):
        if name in request.fixturenames:
            assert request.getfixturevalue(name).complaints() == []


def test_a_person_logs_in_and_out(made: World, tmp_path_factory: pytest.TempPathFactory) -> None:
    with browser(made, tmp_path_factory.mktemp("eve")) as page:
        page.open("/")
        page.sees("Log in to gated")
        page.type("#name", "eve")
        page.type("#password", "not her password")
        page.press("button.go")
        page.sees("The name or the password is wrong.")
        page.log_in("eve")
        page.sees("Nothing waits for you")
        page.press(".menu summary")
        page.press('form[action="/logout"] button')
        page.sees("Log in to gated")
        page.open("/runs")
        page.sees("Log in to gated")


def test_a_ticket_appears_without_reloading_is_approved_and_the_agent_goes_on(made: World, ana: Browser) -> None:
    ana.open("/")
    ana.until(lambda: ana.all(".line.on"), "the page is not live")
    ana.script("window.stayed = true")
    before = int(ana.text("[data-open]"))
    with made.waiting("payer", "refund", REFUND) as call:
        row = f'[data-key="{call.ticket}"] a'
        ana.one(row)
        ana.until(lambda: int(ana.text("[data-open]")) == before + 1)
        assert ana.script("return window.stayed") is True
        ana.press(row)
        ana.sees("`refund`".strip("`"), "#status")
        for shown in ("needs an approval", "c-1 was not looked at.", '"amount": 40', "One of leads (ana, bob)"):
            ana.sees(shown)
        ana.type("#note", "seen the invoice")
        ana.press("[data-approve]")
        ana.sees("Approved.")
        verdict = call.verdict()
        assert verdict.decision == "allow"
        ana.sees("allowed The agent may run it, once.", ".verdict")
        ana.sees("seen the invoice", "#progress")
        ana.open("/")
        ana.until(lambda: not ana.all(row), "the ticket is still listed")


def test_a_call_is_rejected_with_a_note_that_the_agent_gets(made: World, ana: Browser) -> None:
    with made.waiting("payer", "refund", {"customer": "c-2", "amount": 41}) as call:
        ana.open(call.path)
        ana.type("#note", "no receipt")
        ana.press("[data-reject]")
        ana.sees("Rejected. The agent is told.")
        verdict = call.verdict()
        assert (verdict.code, verdict.reason) == ("approvals.rejected", "rejected by ana: no receipt")


def test_a_call_is_edited_in_a_form_with_a_difference_before_it_is_sent(made: World, ana: Browser) -> None:
    with made.waiting("payer", "refund", {"customer": "c-3", "amount": 42, "reason": "outage\nof three days"}) as call:
        ana.open(call.path)
        ana.press("[data-edit]")
        ana.type("#f0", "9999")
        ana.press("form.form button.go")
        ana.sees("The tool's schema does not take it")
        ana.type("#f0", "12")
        ana.press("form.form button.go")
        ana.sees("What your edit changes")
        assert [mark.text for mark in ana.all("mark")] == ["42", "12"]
        ana.press("[data-approve]")
        ana.sees("Your edit was taken.")
        ana.sees("What the edit changed")
        assert [mark.text for mark in ana.all("mark")] == ["42", "12"]
        verdict = call.verdict()
        assert (verdict.decision, verdict.edited) == ("allow", True)
        assert verdict.args == {"customer": "c-3", "amount": 12, "reason": "outage\nof three days"}


def test_two_who_approve_at_once_one_wins_and_the_other_is_told(made: World, ana: Browser, bob: Browser) -> None:
    with made.waiting("payer", "refund", {"customer": "c-4", "amount": 43}) as call:
        both = threading.Barrier(2)

        def approve(page: Browser) -> str:
            page.open(call.path)
            button = page.one("[data-approve]")
            both.wait(PATIENCE)
            with suppress(StaleElementReferenceException):  # the other was so quick that the page has heard of it
                button.click()
            page.until(lambda: page.all(".notice"), "nothing was said")
            return page.text("#said")

        with ThreadPoolExecutor(2) as pool:
            said = [task.result(40) for task in [pool.submit(approve, page) for page in (ana, bob)]]
        assert call.verdict().decision == "allow"
        winners = [text for text in said if "Approved." in text]
        assert len(winners) == 1, said
        (told,) = (text for text in said if "Approved." not in text)
        assert "the ticket was approved by" in told or "This ticket is approved." in told
        for page in (ana, bob):
            page.open(call.path)
            assert len(page.all("#progress .answers li")) == 1


def test_a_second_tab_hears_what_was_decided_in_the_first(made: World, ana: Browser) -> None:
    with made.waiting("payer", "refund", {"customer": "c-5", "amount": 44}) as call:
        ana.open(call.path)
        first = ana.driver.current_window_handle
        ana.driver.switch_to.new_window("tab")
        second = ana.driver.current_window_handle
        ana.open(call.path)
        ana.until(lambda: ana.all(".line.on"), "the page is not live")
        ana.type("#note", "half a thought")
        ana.driver.switch_to.window(first)
        ana.press("[data-approve]")
        ana.sees("Approved.")
        ana.driver.switch_to.window(second)
        ana.sees("This ticket is approved. Your note was not sent.")
        assert not ana.all("[data-approve]")
        ana.driver.close()
        ana.driver.switch_to.window(first)
        assert call.verdict().decision == "allow"


def test_a_ticket_expires_while_its_page_is_open(made: World, ana: Browser) -> None:
    with made.waiting("payer", "quick", {}) as call:
        ana.open(call.path)
        ana.until(lambda: ana.all(".line.on"), "the page is not live")
        made.later(60)
        ana.sees("This ticket is expired, so the call is denied.", "#said")
        assert ana.one("#said").get_attribute("aria-live") == "polite"
        assert not ana.all("[data-approve], [data-reject], [data-edit]")
        ana.sees("Nobody answered in time", "#decision")
        assert call.verdict().code == "approvals.expired"


def test_a_hostile_argument_is_shown_and_does_nothing(made: World, ana: Browser) -> None:
    with made.waiting("writer", "wire", HOSTILE) as call:
        for path in ("/", call.path, call.path.replace("tickets", "runs").rpartition("/")[0]):
            ana.open(path)
            ana.one("main")
            assert "pwned" not in ana.driver.title
            assert ana.all("main script, main img[src=x], main [onerror], main [onfocus]") == []
        ana.open(call.path)
        shown = ana.text(".json")
        assert r"pay \u202e0001\u202c to\u200b bob\u2066" in shown
        assert r"</pre><script>document.title='pwned'</script>" in shown
        assert "{{ 7 * 7 }}${7*7}" in shown
        assert not set(shown) & set("\u202e\u202c\u200b\u2066")
        assert "bytes hidden" in shown
        assert len(shown) < 2000
        assert not ana.one("[data-approve]").is_enabled()
        ana.press("[data-full]")
        ana.sees("all shown")
        assert "A" * 200_000 in ana.script("return document.querySelector('.json').textContent")
        assert ana.script("return document.documentElement.scrollWidth - innerWidth") <= 0
        assert ana.one("[data-approve]").is_enabled()
        ana.press("[data-approve]")
        ana.sees("Your answer counts. Others must still answer.")


def test_everything_is_done_with_keys_alone(made: World, ana: Browser) -> None:
    with (
        made.waiting("payer", "refund", {"customer": "c-6", "amount": 45}) as first,
        made.waiting("payer", "refund", {"customer": "c-7", "amount": 46}) as second,
    ):
        ana.open("/")
        ana.one(f'[data-key="{second.ticket}"]')
        ana.key("?")
        ana.sees("next, previous line", "dialog")
        ana.key("ESCAPE")
        keys = [row.get_attribute("data-key") for row in ana.all("[data-key]")]
        ana.key(*"j" * (keys.index(first.ticket) + 2), "k")
        ana.key("ENTER")
        ana.sees('"amount": 45', ".json")
        ana.key("n")
        ana.until(lambda: ana.script("return document.activeElement.id") == "note")
        ana.key(*"jkar", "ESCAPE")  # text while typing, no commands
        assert ana.script("return document.querySelector('#note').value") == "jkar"
        ana.key("a", "ENTER")
        ana.sees("Approved.")
        assert first.verdict().decision == "allow"
        ana.key("u")
        ana.sees("Open tickets")
        ana.open(second.path)
        ana.key("r", "ENTER")
        ana.sees("Rejected.")
        assert second.verdict().decision == "deny"
        ana.key("g", "r")
        ana.sees("Runs", "h1")
        ana.key("/")
        ana.key(*"c-7", "ENTER")
        ana.sees("found", "h1")
        assert "c-7" in ana.text()


# --- looks and reach -----------------------------------------------------------------------------------------------------

CONTRAST = """
const lum = ([r, g, b]) => [r, g, b].map((c) => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const rgba = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data]; };
const behind = (element) => { for (let e = element; e; e = e.parentElement) {
  const c = rgba(getComputedStyle(e).backgroundColor); if (c[3] > 250) return c; } return [255, 255, 255]; };
const bad = [];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const style = getComputedStyle(element);
  if (!own || !element.checkVisibility() || element.closest(".hidden, .skip, :disabled, svg")) continue;
  const [a, b] = [lum(rgba(style.color)), lum(behind(element))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
  const named = `${element.tagName}.${element.className}`;
  if (ratio < (large ? 3 : 4.5)) bad.push(`${named} ${ratio.toFixed(2)} ${element.textContent.trim().slice(0, 30)}`);
}
return bad;
"""

NAMELESS = """
const named = (e) => e.getAttribute("aria-label") || e.getAttribute("aria-labelledby") || e.textContent.trim()
  || (e.labels && e.labels.length) || e.querySelector("[aria-label]");
const kinds = "input:not([type=hidden]), textarea, select, button, a, summary, progress, svg[role=img]";
const bad = [...document.querySelectorAll(kinds)]
  .filter((e) => !named(e) && !e.querySelector("title"));
const images = [...document.querySelectorAll("img:not([alt])")];
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
return [...bad, ...images].map((e) => e.outerHTML.slice(0, 120)).concat(ids.filter((id, i) => ids.indexOf(id) !== i));
"""


def _pages(call: Any) -> list[str]:
    return [
        "/",
        call.path,
        f"{call.path}/full",
        f"{call.path}/edit",
        "/runs",
        call.path.replace("tickets", "runs").rpartition("/")[0],
        "/search",
        "/ended",
    ]


BROKEN = """
const lines = (element) => { const range = document.createRange(); range.selectNodeContents(element);
  return new Set([...range.getClientRects()].map((box) => box.top)).size; };
return [...document.querySelectorAll(".figures dd")].filter((one) => lines(one) > 1).map((one) => one.textContent);
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_page_fits_every_width_and_can_be_read(made: World, ana: Browser, theme: str) -> None:
    with made.waiting("payer", "refund", {"customer": "c" * 90, "amount": 400, "reason": "outage\n" * 5}) as call:
        for path in _pages(call):
            for width in (320, 390, 820, 1440):
                ana.size(width, theme)
                ana.open(path)
                over = ana.script("return document.documentElement.scrollWidth - innerWidth")
                assert over <= 0, f"{path} is {over} px too wide at {width}"
                assert ana.script(BROKEN) == [], f"{path} at {width}"
            assert ana.script(CONTRAST) == [], f"{path} in {theme}"
            assert ana.script(NAMELESS) == [], path
            assert ana.barriers() == [], path
            assert len(ana.all("h1")) == 1
            assert ana.script("return document.documentElement.lang") == "en"
        ana.size(1280)


def test_what_opens_on_a_page_keeps_nobody_out(made: World, ana: Browser) -> None:
    with made.waiting("payer", "refund", {"customer": "c-10", "amount": 49}) as call:
        ana.open("/")
        ana.key("?")
        ana.sees("next, previous line", "dialog")
        assert ana.barriers() == []
        ana.open("/")
        ana.press(".menu summary")
        assert ana.barriers() == []
        ana.open(call.path)
        ana.press(".remember summary")
        assert ana.barriers() == []
        ana.press("[data-edit]")
        ana.type("#f0", "9999")
        ana.press("form.form button.go")
        ana.sees("The tool's schema does not take it")
        assert ana.barriers() == []
        ana.type("#f0", "12")
        ana.press("form.form button.go")
        ana.sees("What your edit changes")
        assert ana.barriers() == []


def test_an_atomic_batch_keeps_nobody_out(made: World, ana: Browser) -> None:
    async def ask() -> str:
        async with made.bus.agent("payer") as gate:
            calls = [client.Call("refund", {"customer": f"c-{n}", "amount": n}, id=f"b{n}") for n in (1, 2)]
            first, _ = await gate.run().check_batch(calls, mode="atomic")
            return str(first.ticket)

    ana.open(made.path(made.portal.call(ask)))
    ana.sees("and 1 more call")
    ana.sees("Arguments of refund, call 2 of 2")
    assert ana.text(".rules").count("One of leads") == 1
    assert ana.barriers() == []


def test_the_chosen_colours_hold_against_those_of_the_system(made: World, ana: Browser) -> None:
    ana.size(1280, "light")
    ana.open("/")
    light = ana.script("return getComputedStyle(document.body).backgroundColor")
    ana.press(".menu summary")
    ana.press('button[name="theme"][value="dark"]')
    ana.sees("Open tickets")
    assert ana.script("return getComputedStyle(document.body).backgroundColor") != light
    ana.press(".menu summary")
    ana.press('button[name="theme"][value=""]')
    ana.until(lambda: ana.script("return getComputedStyle(document.body).backgroundColor") == light)


def test_a_page_that_is_not_live_says_so_in_words(made: World, ana: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by looking: only the colour of a dot told, and its text said that the page was live."""
    monkeypatch.setattr("gated.console.hub.BEAT", 0.2)
    ana.open("/")
    ana.until(lambda: ana.all(".line.on"), "the page is not live")
    assert ana.one(".line").get_attribute("textContent") == "live"
    ana.size(360)
    made.desk.hub._listeners.clear()
    ana.sees("not live", ".line.off")
    assert ana.script("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert ana.barriers() == []
    ana.until(lambda: ana.all(".line.on"), "the page is not live again")
    ana.size(1280)


def test_focus_is_always_to_be_seen(made: World, ana: Browser) -> None:
    with made.waiting("payer", "refund", {"customer": "c-8", "amount": 47}) as call:
        ana.open(call.path)
        seen = set[str]()
        for _ in range(14):
            ana.key("TAB")
            outline = ana.script("const s = getComputedStyle(document.activeElement); return [s.outlineStyle, s.outlineWidth]")
            assert outline[0] != "none", ana.script("return document.activeElement.outerHTML")
            seen.add(ana.script("return document.activeElement.outerHTML"))
        assert len(seen) > 8


def test_a_run_page_grows_while_the_run_goes_on(made: World, ana: Browser) -> None:
    with made.waiting("payer", "refund", {"customer": "c-9", "amount": 48}) as call:
        ana.open(call.path.replace("tickets", "runs").rpartition("/")[0])
        ana.until(lambda: ana.all(".line.on"), "the page is not live")
        before = len(ana.all(".story li"))
        made.portal.call(call.run.check, "look", {"customer": "c-9"})
        ana.until(lambda: len(ana.all(".story li")) == before + 1)
        ana.sees("look", "#lines")
        ana.sees("privacy", "#curves")
        assert json.loads(ana.script("return JSON.stringify([...document.querySelectorAll('.curve')].length > 3)"))
