"""docs/console-ticket.png and docs/console-phone.png: the console as people see it, with tickets that agents really opened.

Run it with `scripts/pictures`. A gate and its console are started, agents ask, a person answers, Chromium takes the pictures.
"""

from __future__ import annotations

import asyncio
import base64
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from demo import GATED, until_up
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from gated.client import Gate, connect

PASSWORD = "correct horse battery"
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-device-scale-factor=1",
)
PHONE = (390, 800)
ROW = "margin: 0; display: flex; gap: 40px; background: #fff"
LOADED = "Promise.all([...document.images].map((image) => image.decode())).then(arguments[0])"
POLICY = """
version: 1
agents:
  billing-bot:
    owner: cy
    allowed_tools: [look_up, refund, note]
    approval_required: [refund]
    data_scope: any
    dcbf: {privacy: {budget: 1.0, per_call: 0.2, tools: [note]}}
  deploy-bot:
    allowed_tools: [deploy]
    approval_required: [deploy]
    data_scope: any
machines:
  - name: look-up-first
    key: "{customer}"
    initial: unseen
    transitions:
      - {on: look_up, from: "*", to: seen}
      - {on: refund, from: seen, to: refunded, on_violation: {action: deny, reason: "{customer} was not looked up."}}
contracts:
  - name: large
    on: refund
    require: "double(args.amount_usd) <= 1500.0"
    otherwise: ask
    reason: refunds over 1500 USD want a second look
approvals:
  default: {approvers: [group:leads], timeout: 30m}
  rules:
    - {on: deploy, approvers: [group:leads], quorum: 2, timeout: 4h}
groups: {leads: [ana, bob]}
"""
TASK = "Refund what last week's outage cost our customers, at most once each.\nAsk when the amount is large."


async def refund(gate: Gate, folder: Path, customer: str, amount: int, reason: str, answer: str = "", note: str = "") -> str:
    """A run that looks a customer up and asks for a refund, which bob answers where an answer is given; its ticket."""
    run = gate.run(task=TASK, run=f"refund-{customer}")
    await run.__aenter__()
    await run.call("look_up", {"customer": customer}, lambda **given: "team plan since 2024")
    await run.call("note", {"customer": customer, "text": "we look into it"}, lambda **given: "done")
    args: dict[str, Any] = {"customer": customer, "amount_usd": amount, "currency": "EUR", "reason": reason, "notify": True}
    verdict = await run.check("refund", args)
    if verdict.decision != "suspend":
        sys.exit(f"the refund of {customer} must wait for people: {verdict.code} {verdict.reason}")
    ticket = str(verdict.ticket)
    if answer:
        command = [*GATED, "tickets", answer, ticket, "--as", "bob", "--note", note, "--data", str(folder)]
        await asyncio.to_thread(subprocess.run, command, check=True, stdout=subprocess.DEVNULL)
    return ticket


async def ask(folder: Path) -> str:
    """Everything that the pictures show happens; the ticket of the large refund."""
    async with connect(agent="billing-bot", data=folder) as gate:
        await refund(gate, folder, "c-5", 120, "outage", "approve", "seen the invoice")
        await refund(gate, folder, "c-6", 480, "outage", "reject", "was refunded in May")
        await refund(gate, folder, "c-8", 240, "outage")
        ticket = await refund(gate, folder, "c-7", 1800, "outage\nThree days without service.")
    async with connect(agent="deploy-bot", data=folder) as gate:
        for image in ("shop:841", "search:77"):
            run = gate.run(task=f"Release {image}", run=image.replace(":", "-"))
            await run.__aenter__()
            await run.check("deploy", {"image": f"registry.example/{image}", "dry_run": False})
    return ticket


def with_a_gate(folder: Path, docs: Path) -> None:
    """Start a gate with its console in a folder, let agents ask, and take the pictures."""
    (folder / "policy.yaml").write_text(POLICY)
    add = [*GATED, "users", "add", "ana", "--auditor", "--password-stdin", "--data", str(folder)]
    subprocess.run(add, input=f"{PASSWORD}\n", text=True, check=True, stdout=subprocess.DEVNULL)
    up = [*GATED, "up", "--policy", str(folder / "policy.yaml"), "--data", str(folder), "--console-port", "0"]
    with (folder / "daemon.out").open("w") as out:
        daemon = subprocess.Popen(up, stdout=out, stderr=out)
    try:
        asyncio.run(until_up(folder, daemon))
        ticket = asyncio.run(ask(folder))
        (origin,) = re.findall(r"console +(http://\S+)", (folder / "daemon.out").read_text())
        take(origin, ticket, docs)
    finally:
        daemon.terminate()
        daemon.wait(20)


def take(origin: str, ticket: str, docs: Path) -> None:
    """The pictures: a ticket on a desk, and two pages on a phone, by day and by night."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in FLAGS:
        options.add_argument(flag)
    driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        driver.get(f"{origin}/login")
        driver.find_element(By.ID, "name").send_keys("ana")
        driver.find_element(By.ID, "password").send_keys(PASSWORD)
        driver.find_element(By.CSS_SELECTOR, "button.go").click()
        desk = seen(driver, f"{origin}/tickets/{ticket}", (1440, 1120), "light")
        (docs / "console-ticket.png").write_bytes(desk)
        phones = [seen(driver, origin, PHONE, "light"), seen(driver, f"{origin}/tickets/{ticket}", PHONE, "dark")]
        (docs / "console-phone.png").write_bytes(beside(driver, phones))
    finally:
        driver.quit()


def seen(driver: webdriver.Chrome, address: str, size: tuple[int, int], theme: str) -> bytes:
    """A page as a PNG, once it is live."""
    feature = {"name": "prefers-color-scheme", "value": theme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    shape = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size == PHONE}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    driver.get(address)
    until = time.monotonic() + 20
    while not driver.find_elements(By.CSS_SELECTOR, ".line.on"):
        assert time.monotonic() < until, f"{address} is not live"
        time.sleep(0.05)
    return driver.get_screenshot_as_png()


def beside(driver: webdriver.Chrome, pictures: list[bytes]) -> bytes:
    """Pictures beside each other, with room between them."""
    width = sum(PHONE[0] for _ in pictures) + 40 * (len(pictures) - 1)
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    shape = {"width": width, "height": PHONE[1], "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", shape)
    sources = [f"data:image/png;base64,{base64.b64encode(picture).decode()}" for picture in pictures]
    page = "".join(f'<img src="{source}" width="{PHONE[0]}" height="{PHONE[1]}">' for source in sources)
    driver.get("about:blank")
    driver.execute_script(f"document.body.style = '{ROW}'; document.body.innerHTML = arguments[0]", page)
    driver.execute_async_script(LOADED)
    return driver.get_screenshot_as_png()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        with_a_gate(Path(made), Path(sys.argv[1]))
