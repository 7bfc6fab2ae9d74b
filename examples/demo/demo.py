"""A story in eight scenes: agents ask a real gate, over a real bus, through the public SDK; then its log is read.

Run it with `scripts/demo`. It starts the gate in a folder of its own and ends with exit status 0 if every scene came out right.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from gated.client import Call, Denied, Gate, Verdict, connect

HERE = Path(__file__).parent
GATED = [sys.executable, "-m", "gated"]


COLOURS = sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def painted(text: str, code: int) -> str:
    return f"\033[{code}m{text}\033[0m" if COLOURS else text


def scene(title: str) -> None:
    print(f"\n{painted(title, 1)}")


def told(verdict: Verdict, what: str) -> None:
    colour = {"allow": 32, "deny": 31, "suspend": 33}[verdict.decision]
    why = f"  {verdict.code}: {verdict.reason}" if verdict.code else ""
    print(f"  {painted(f'{verdict.decision:7}', colour)} {what}{why}")


def expect(holds: bool, what: str) -> None:
    if not holds:
        sys.exit(f"the demo did not come out as it must: {what}")


async def analyst(gate: Gate) -> None:
    async with gate.run(task="Which orders are late?", run="report") as run:
        scene("1  A call that is allowed")
        verdict = await run.check("query_metrics", {"table": "analytics.orders"})
        told(verdict, "query_metrics analytics.orders")
        expect(verdict.decision == "allow", "the orders may be read")
        await run.report(verdict.call, "success", content="12 orders are late")

        scene("2  A table outside the agent's data scope")
        verdict = await run.check("query_metrics", {"table": "hr.salaries"})
        told(verdict, "query_metrics hr.salaries")
        expect(verdict.code == "privilege.data_scope", "salaries are out of scope")


async def mailer(gate: Gate) -> None:
    scene("3  A batch of five mails, of which exactly two go out")
    async with gate.run(task="Tell the customers", run="mails") as run:
        verdicts = await run.check_batch([Call("send_email", {"to": f"customer{n}"}) for n in range(5)])
        for number, verdict in enumerate(verdicts):
            told(verdict, f"send_email customer{number}")
        expect([v.decision for v in verdicts] == ["allow"] * 2 + ["deny"] * 3, "two of five")


async def crowd(data: Path) -> None:
    scene("4  A hundred batches at once on one run: the same two")
    async with connect(agent="mailer", data=data) as gate, gate.run(task="Tell everyone", run="crowd") as run:
        started = time.perf_counter()
        batches = await asyncio.gather(*(run.check_batch([Call("send_email", {"to": f"c{n}"})]) for n in range(100)))
        spent = time.perf_counter() - started
        counted = Counter(verdict.decision for batch in batches for verdict in batch)
        print(f"  {counted['allow']} allowed, {counted['deny']} denied, {spent * 1000:.0f} ms for all of them")
        expect(counted == {"allow": 2, "deny": 98}, "two of a hundred")


async def worker(gate: Gate) -> None:
    scene("5  A step budget of six, and ten calls at the same time")
    async with gate.run(task="Work", run="steps") as run:
        asked = await asyncio.gather(*(run.check("work", {"part": n}) for n in range(10)))
        for verdict in sorted(asked, key=lambda v: v.decision):
            told(verdict, "work")
        expect(Counter(v.decision for v in asked) == {"allow": 6, "deny": 4}, "six steps")
        for verdict in asked:
            if verdict.decision == "allow":
                await run.report(verdict.call, "success")

        scene("6  A finished run takes no more calls")
        await run.finish()
        guarded = run.guard(lambda part: part, tool="work")
        try:
            await guarded(part=11)
        except Denied as denied:
            told(denied.verdict, "work")
            expect(denied.verdict.code == "lifecycle.run_completed", "the run is over")
        else:
            expect(False, "a finished run is closed")


class Command:
    """`gated …`, started at once and shown when its turn comes."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self.process = subprocess.Popen([*GATED, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def show(self, status: int = 0) -> None:
        print(f"  $ gated {' '.join(self.arguments)}", flush=True)
        said, _ = self.process.communicate()
        print("".join(f"  {line}\n" for line in said.splitlines()), end="")
        expect(self.process.returncode == status, f"`gated {self.arguments[0]}` ends with {self.process.returncode}")


def audit(log: Path) -> None:
    copy = tampered_copy(log)
    show, replay = Command("runs", "show", str(log), "mails"), Command("replay", str(log))
    verify, verify_copy = Command("verify", str(log)), Command("verify", str(copy))
    scene("7  What the log says, and every verdict derived again")
    show.show()
    replay.show()
    verify.show()
    scene("8  One byte changed in a copy of the log")
    verify_copy.show(status=1)


def tampered_copy(log: Path) -> Path:
    copy = log.with_name("tampered.db")
    with sqlite3.connect(log) as source, sqlite3.connect(copy) as target:
        source.backup(target)
        target.execute("drop trigger records_no_update")
        target.execute(
            "update records set body = cast(replace(cast(body as text), 'customer4', 'customer5') as blob) where run = 'mails'"
        )
        target.commit()
    return copy


async def main() -> None:
    data = Path(tempfile.mkdtemp(prefix="gated-demo-"))
    daemon = start_gate(data)
    try:
        await until_up(data, daemon)
        async with connect(agent="analyst", data=data) as gate:
            await analyst(gate)
        async with connect(agent="mailer", data=data) as gate:
            await mailer(gate)
        await crowd(data)
        async with connect(agent="worker", data=data) as gate:
            await worker(gate)
    finally:
        daemon.terminate()
        await asyncio.to_thread(daemon.wait, 20)
    audit(data / "log.db")
    shutil.rmtree(data)
    print(f"\n{painted('That is the gate.', 1)} Now write your own policy: docs/tutorial.md")


def start_gate(data: Path, policy: Path = HERE / "policy.yaml") -> subprocess.Popen[bytes]:
    command = [*GATED, "up", "--policy", str(policy), "--data", str(data), "--no-console"]
    with (data / "daemon.out").open("w") as out:
        return subprocess.Popen(command, stdout=out, stderr=out)


async def until_up(data: Path, daemon: subprocess.Popen[bytes]) -> None:
    for _ in range(1200):
        if "is up" in (data / "daemon.out").read_text():
            return
        if daemon.poll() is not None:
            break
        await asyncio.sleep(0.05)
    sys.exit(f"the gate did not start:\n{(data / 'daemon.out').read_text()}")


if __name__ == "__main__":
    asyncio.run(main())
