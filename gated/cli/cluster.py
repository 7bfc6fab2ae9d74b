"""`gated cluster …`: the workers that share a log, and who has which partition."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from msgspec import Struct
from nats.errors import Error as NatsError

from gated import wire
from gated.cli.help import group
from gated.cli.operator import Creds
from gated.cli.output import NO, Authority, Json, Prefix, fail, run_async, say, say_json, table, telling
from gated.cli.passwords import NoPassword, PasswordFile
from gated.cli.shared import taking
from gated.shell.connection import connect
from gated.shell.login import login
from gated.units import some

app = group("The workers that share a log on the bus.", "gated cluster status --nats nats://bus:4222 --user operator:ann")

Url = Annotated[str, typer.Option("--nats", envvar="GATED_NATS_URL", help="URL of the NATS cluster; several with commas.")]
User = Annotated[str, typer.Option(envvar="GATED_NATS_USER", help="Who asks: `operator:NAME`.")]

ANSWER_SECONDS = 20.0


class Bus(Struct, frozen=True):
    """The cluster's server, and as whom to ask there."""

    url: str
    prefix: str
    login: dict[str, Any]


def bus_of(
    url: Url = "",
    user: User = "",
    password_file: PasswordFile = None,
    password: NoPassword = None,
    creds: Creds = None,
    tls_ca: Authority = None,
    prefix: Prefix = wire.PREFIX,
) -> Bus:
    """The options of both commands."""
    with telling():
        asked = login(url, user=user or None, password_file=password_file, creds=creds, ca=tls_ca)
    return Bus(asked.url, prefix, asked.credentials)


@app.command("status", epilog="Example: GATED_NATS_PASSWORD=… gated cluster status --nats nats://bus:4222 --user operator:ann")
@taking(bus_of)
def status(
    bus: Bus,
    *,
    all_: Annotated[bool, typer.Option("--all", help="Every partition, also those where nothing waits.")] = False,
    json_: Json = False,
) -> None:
    """Workers, and of every partition its owner, how far it is behind, and since when it has its owner.

    Exit status 1 where inputs wait and no worker has their partition.
    """
    found = run_async(lambda: _ask(bus, "cluster.status", {}))
    stuck = [one for one in found["partitions"] if one["lag"] and one["owner"] is None]
    if json_:
        say_json(found)
    else:
        _print_status(found, stuck, all_)
    if stuck:
        raise typer.Exit(NO)


def _print_status(found: dict[str, Any], stuck: list[dict[str, Any]], every: bool) -> None:
    leases = {one["partition"]: one["lease_age_s"] for one in found["partitions"]}
    rows = []
    for beat in found["workers"]:
        ages = [leases[p] for p in beat["owns"] if leases.get(p) is not None]
        lag = sum(one["lag"] for one in found["partitions"] if one["owner"] == beat["worker"])
        failed = beat.get("reload_failed")  # workers of before do not say
        age = _span(min(ages), max(ages)) if ages else "-"
        rows.append(
            (
                beat["worker"],
                beat["state"],
                len(beat["owns"]),
                lag,
                age,
                beat["records"],
                f"{beat['host']} {beat['pid']}",
                beat["why"] or (f"policy.reload_failed: {failed}" if failed else ""),
            )
        )
    table(("worker", "state", "partitions", "lag", "lease age", "records", "host, process", "trouble"), rows)
    shown = [one for one in found["partitions"] if every or one["lag"]]
    if shown:
        say("")
        table(
            ("partition", "owner", "lag", "lease age", "leased to"),
            (
                (one["partition"], one["owner"] or "-", one["lag"], _seconds(one["lease_age_s"]), one["leased_to"] or "-")
                for one in shown
            ),
        )
    idle = sum(one["owner"] is None for one in found["partitions"])
    replicas = "no replicas" if found["replicas"] == 1 else f"{found['replicas']} replicas"
    partitions = f"{some(len(found['partitions']), 'partition')}, {idle} of them idle"
    say(f"{partitions}; {replicas}; {some(found['lag'], 'input')} not settled")
    if stuck:
        say(f"[red]inputs wait and nobody has their partition[/]: {', '.join(str(one['partition']) for one in stuck)}")


def _span(least: float, most: float) -> str:
    return f"{least:.0f} s" if round(least) == round(most) else f"{least:.0f}-{most:.0f} s"


def _seconds(age: float | None) -> str:
    return "-" if age is None else f"{age:.1f} s"


@app.command("drain", epilog="Example: gated cluster drain web1-4711-a3f0 --nats nats://bus:4222 --user operator:ann")
@taking(bus_of)
def drain(
    worker: Annotated[str, typer.Argument(help="The worker, as `gated cluster status` names it.")],
    *,
    bus: Bus,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take its share again.")] = False,
    json_: Json = False,
) -> None:
    """Let a worker hand its partitions over and take no more; it can be stopped then without anybody waiting."""
    done = run_async(lambda: _ask(bus, "cluster.drain", {"worker": worker, "undo": undo}))
    if json_:
        say_json(done)
    elif undo:
        say(f"worker {worker} takes part again")
    else:
        say(f"worker {worker} handed over {some(done['released'] - done['left'], 'partition')}")
    if done["left"] and not undo:
        fail(f"worker `{worker}` still has {some(done['left'], 'partition')}", NO)


async def _ask(bus: Bus, verb: str, question: dict[str, Any]) -> Any:
    client = await connect(bus.url, "gated cluster", lambda: None, **bus.login)
    try:
        answer = await client.request(f"{bus.prefix}.api.{verb}", json.dumps(question).encode(), timeout=ANSWER_SECONDS)
    except (NatsError, TimeoutError) as error:
        why = str(error) or "no answer in time"
        fail(f"no worker answers `{verb}` on {bus.url}: {why}; is `gated serve --log nats:` running?")
    finally:
        await client.close()
    if answer.headers and "Nats-Service-Error" in answer.headers:
        fail(answer.headers["Nats-Service-Error"], NO)
    return json.loads(answer.data)
