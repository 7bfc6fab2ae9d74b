"""Logging in with a provider that other people wrote, as a process of its own, in a browser."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from console.browser import Browser, browser
from console.world import World, world
from gated.console.oidc import Oidc, Provider
from gated.console.people import Person
from patience import PATIENCE, blocking_until
from ports import own_port

SUBJECTS = {
    "ana-at-corp": {"email": "ana@corp.example", "email_verified": True},
    "unverified": {"email": "ana@corp.example", "email_verified": False},
    "mallory": {"email": "mallory@corp.example", "email_verified": True},
}


@contextmanager
def provider(folder: Path) -> Iterator[str]:
    """Its address."""
    port = own_port()
    issuer = f"http://localhost:{port}"
    command = [sys.executable, "-m", "oidc_provider_mock", "--port", str(port), "--require-nonce"]
    for subject, claims in SUBJECTS.items():
        command += ["--user-claims", json.dumps({"sub": subject, **claims})]
    with (folder / "provider.out").open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out)

    def answers() -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{issuer}/.well-known/openid-configuration").status_code == 200
        return False

    try:
        blocking_until(answers, (folder / "provider.out").read_text)
        yield issuer
    finally:
        process.terminate()
        process.wait(PATIENCE)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with provider(folder) as issuer:
        with world(folder, oidc=lambda back: Oidc(Provider(issuer, "gated", "hush", name="Corp"), back)) as running:
            running.desk.people.put(Person("ana", "", oidc="ana@corp.example"))
            yield running


@pytest.fixture
def page(made: World, tmp_path: Path) -> Iterator[Browser]:
    with browser(made, tmp_path / "browser") as opened:
        yield opened


def log_in_as(page: Browser, subject: str) -> None:
    page.open("/runs")
    page.press('a[href="/oidc"]')
    page.press(f'button[value="{subject}"]')


def test_a_person_comes_back_from_the_provider_and_answers_a_ticket(made: World, page: Browser) -> None:
    log_in_as(page, "ana-at-corp")
    page.sees("Runs", "h1")
    with made.waiting("payer", "refund", {"customer": "c-1", "amount": 40}) as call:
        page.open(call.path)
        page.press("[data-approve]")
        page.sees("Approved.")
        assert call.verdict().decision == "allow"
        page.sees("ana", "#progress .answers")


@pytest.mark.parametrize(
    ("subject", "why"),
    [("unverified", "The provider cannot log you in now."), ("mallory", "no user of this gate is known by that account")],
)
def test_nobody_else_gets_in(made: World, page: Browser, subject: str, why: str) -> None:
    log_in_as(page, subject)
    page.sees("Log in to gated")
    assert why in page.text(".notice.no")
    page.open("/")
    page.sees("Log in to gated")


def test_who_says_no_to_the_provider_is_back_at_the_log_in(made: World, page: Browser) -> None:
    page.open("/login")
    page.press('a[href="/oidc"]')
    page.press('button[value="deny"]')
    page.sees("This log-in was not begun here", ".notice.no")  # this provider leaves the state out of its no
    page.open("/")
    page.sees("Log in to gated")
