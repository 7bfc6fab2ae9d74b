"""What the console's pages cost with many open tickets: python -m benchmarks.console [--json] [--tickets N] [--browser]

A gate and a console in one process, over real HTTP on loopback; each figure is the time until the whole answer is there, in ms.
The target is that of the list with 10,000 open tickets: under 100 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import nats

from benchmarks.core import percentiles
from gated.console.desk import Desk
from gated.console.line import Passwords
from gated.console.people import People, Person, hash_of
from gated.console.serve import Serving, running
from gated.shell.daemon import Settings, daemon
from gated.shell.embedded import Server, embedded_server
from gated.shell.log.sqlite import open_for_writing
from gated.shell.nats_config import inbox_prefix
from gated.shell.policies import read_policy

POLICY = """
version: 1
agents:
  payer: {checks: [privilege], allowed_tools: [refund], approval_required: [refund], resource_budget: {max_calls: 1000000}}
approvals:
  default: {approvers: [group:leads], timeout: 6h}
groups: {leads: [ana, bob]}
"""
PASSWORD = "a password for benchmarks"
PER_RUN = 100


async def open_tickets(server: Server, count: int, first: int = 0) -> None:
    """So many suspended calls, a hundred a run; runs are numbered from `first`."""
    password = server.bus.users["agent:payer"]
    client = await nats.connect(server.bus.url, user="agent:payer", password=password, inbox_prefix="_INBOX.agent.payer")
    heard, done = 0, asyncio.Event()

    async def hear(_: Any) -> None:
        nonlocal heard
        heard += 1
        if heard == count:
            done.set()

    await client.subscribe("gated.out.*.*.agent.payer", cb=hear)
    for run in range(first, first + count // PER_RUN):
        calls = [{"id": f"c{n}", "tool": "refund", "args": {"customer": f"c-{run}-{n}", "amount": n}} for n in range(PER_RUN)]
        data = json.dumps({"type": "intents", "nesting": "explicit", "calls": calls}).encode()
        await client.publish(f"gated.in.run{run}.run{run}.agent.payer", data)
    await done.wait()
    await client.close()


async def timed(times: int, work: Callable[[], Awaitable[Any]]) -> tuple[float, float]:
    """Median and 99th percentile in ms."""
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        await work()
        spent.append((time.perf_counter() - began) * 1000)
    return percentiles(spent)


async def measure(count: int, browser: bool) -> dict[str, float]:
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="gated-bench-") as name:
        folder = Path(name)
        path = folder / "policy.yaml"
        path.write_text(POLICY)
        people = People(folder / "users.json")
        people.put(Person("ana", hash_of(PASSWORD)))
        event_log = await open_for_writing(folder / "log.db")
        users: Any = [("agent", "payer"), ("approver", "ana"), ("console", "")]
        async with embedded_server(folder / "bus", users) as server:
            credentials = {"user": "daemon", "password": server.bus.users["daemon"], "inbox_prefix": inbox_prefix("daemon", "")}
            async with daemon(Settings(server.bus.url, path, credentials), event_log, read_policy(path)):
                await open_tickets(server, count)
                began = time.perf_counter()
                async with running(Serving(people, Passwords(folder / "bus" / "bus.json"), port=0)) as desk:
                    while len(desk.board) < count or not desk.past.ready:  # noqa: ASYNC110 (there is no event for it)
                        await asyncio.sleep(0.01)
                    found["ready_ms"] = (time.perf_counter() - began) * 1000
                    found |= await pages(desk)
                    found |= await in_a_browser(desk, server) if browser else {}
        await event_log.close()
    return found


async def pages(desk: Desk) -> dict[str, float]:
    found: dict[str, float] = {}
    origin = desk.settings.origin
    async with httpx.AsyncClient(base_url=origin, headers={"accept": "text/html", "origin": origin}, timeout=60) as http:
        token = re.findall(r'name="csrf" value="([^"]+)"', (await http.get("/login")).text)[0]
        await http.post("/login", data={"csrf": token, "name": "ana", "password": PASSWORD})
        page = (await http.get("/")).text
        ticket = re.findall(r'href="(/tickets/[^"]+)"', page)[0]

        async def search() -> None:
            found = await http.post("/search", data={"csrf": token, "text": "c-42-17 refund"})
            found.raise_for_status()

        token = re.findall(r'name="csrf" value="([^"]+)"', page)[0]
        for key, path in (("list", "/"), ("last_page", f"/?page={len(desk.board) // 50}"), ("rows", "/rows"), ("ticket", ticket)):
            found[f"{key}_ms_p50"], found[f"{key}_ms_p99"] = await timed(100, partial(http.get, path))
        found["search_ms_p50"], found["search_ms_p99"] = await timed(30, search)
    return found


WATCH = """
window.slow = [];
new PerformanceObserver((list) => window.slow.push(...list.getEntries().map((e) => e.duration))).observe({ type: "longtask" });
window.gaps = [];
let last = performance.now();
const frame = (at) => { window.gaps.push(at - last); last = at; requestAnimationFrame(frame); };
requestAnimationFrame(frame);
"""


async def in_a_browser(desk: Desk, server: Server, seconds: float = 10.0) -> dict[str, float]:
    """How smooth the open list stays in Chromium while a hundred tickets a second open: the longest task and frame gap, in ms."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.by import By

    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"):
        options.add_argument(flag)
    options.binary_location = str(shutil.which("chromium"))
    driver = await asyncio.to_thread(lambda: webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver"))))

    def log_in() -> None:
        driver.get(f"{desk.settings.origin}/login")
        driver.find_element(By.ID, "name").send_keys("ana")
        driver.find_element(By.ID, "password").send_keys(PASSWORD)
        driver.find_element(By.CSS_SELECTOR, "button.go").click()
        driver.execute_script(WATCH)

    try:
        await asyncio.to_thread(log_in)
        for burst in range(int(seconds)):
            await open_tickets(server, PER_RUN, first=1_000_000 + burst)
            await asyncio.sleep(1)
        slow, gaps, shown = await asyncio.to_thread(
            driver.execute_script, "return [window.slow, window.gaps, Number(document.querySelector('[data-open]').textContent)]"
        )
    finally:
        await asyncio.to_thread(driver.quit)
    assert shown == len(desk.board), (shown, len(desk.board))
    return {"browser_longest_task_ms": max(slow, default=0.0), "browser_frame_gap_ms_p99": percentiles(gaps)[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--tickets", type=int, default=10_000, help="open at once")
    parser.add_argument("--browser", action="store_true", help="also how smooth the list stays in Chromium")
    chosen = parser.parse_args()
    found = asyncio.run(measure(chosen.tickets, chosen.browser))
    if chosen.json:
        print(json.dumps(found))
        return
    for key, value in found.items():
        target = "< 100" if key.startswith(("list", "rows", "last")) else ""
        print(f"{key:34} {value:10.1f}  {target:8} {('yes' if value < 100 else 'NO') if target else ''}")


if __name__ == "__main__":
    main()
