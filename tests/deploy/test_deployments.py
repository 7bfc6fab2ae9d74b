"""What `deploy/` starts: command lines that `gated` takes, nothing as root, no secret in an argument; a worker that decides on
the server of `deploy/nats` over TLS, its password from a file."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import typer
import yaml

from deploy.real_server import Address, bus_user, running
from deploy.test_permissions import NATS, POLICY, certificate, environment, secret
from gated import wire
from gated.cli.daemon import app
from gated.client.gate import connect
from gated.shell import readiness
from gated.shell.log import LogUnavailable, jetstream
from gated.shell.log.jetstream_streams import SetupError
from gated.shell.nats_client import SturdyClient
from gated.shell.nats_config import inbox_prefix
from patience import PATIENCE, blocking_until
from ports import own_port

DEPLOY = NATS.parent
ROOT = DEPLOY.parent


def check_serve(arguments: list[str]) -> None:
    """That `gated serve` takes these arguments, and that no secret stands in them."""
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    assert arguments[0] == "serve"
    command.make_context("serve", arguments[1:])  # ends the test with the usage where it does not
    assert not any("password" in argument for argument in arguments)


# --- systemd ----------------------------------------------------------------------------------------------------------


def test_the_unit_starts_what_gated_takes_and_keeps_its_password_in_a_file() -> None:
    text = (DEPLOY / "systemd" / "gated.service").read_text()
    commands = re.findall(r"^(?:# )?ExecStart=/usr/bin/gated (.*)$", text, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        check_serve(shlex.split(command))
    for line in ("DynamicUser=yes", "NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet="):
        assert f"\n{line}\n" in text
    assert "GATED_NATS_PASSWORD=" not in text


# What the unit may say, as systemd.unit(5), systemd.service(5) and systemd.exec(5) name it, with the values that it must have
# where it would expose more with others; None: any. A misspelt name would be passed over by systemd with a line in its log.
UNIT: dict[str, dict[str, list[str] | None]] = {
    "Unit": dict.fromkeys(("Description", "Documentation", "Wants", "After")),
    "Install": {"WantedBy": ["multi-user.target"]},
    "Service": {
        **dict.fromkeys(("Type", "ExecStart", "ExecReload", "Restart", "RestartSec", "TimeoutStopSec", "StateDirectory")),
        "EnvironmentFile": ["/etc/gated/gated.env"],
        "LoadCredential": ["nats.password:/etc/gated/nats.password"],
        "Environment": ["GATED_NATS_PASSWORD_FILE=%d/nats.password"],
        "LimitNOFILE": ["65536"],
        "StateDirectoryMode": ["0700"],
        "UMask": ["0077"],
        "ProtectSystem": ["strict"],
        "ProtectProc": ["invisible"],
        "ProcSubset": ["pid"],
        "RestrictAddressFamilies": ["AF_INET AF_INET6 AF_UNIX"],
        "CapabilityBoundingSet": [""],
        "AmbientCapabilities": [""],
        "SystemCallArchitectures": ["native"],
        "SystemCallFilter": ["@system-service", "~@privileged @resources"],
        **{key: ["yes"] for key in ("DynamicUser", "NoNewPrivileges", "PrivateTmp", "PrivateDevices", "PrivateUsers")},
        **{key: ["yes"] for key in ("ProtectHome", "ProtectHostname", "ProtectClock", "ProtectKernelTunables")},
        **{key: ["yes"] for key in ("ProtectKernelModules", "ProtectKernelLogs", "ProtectControlGroups")},
        **{key: ["yes"] for key in ("RestrictNamespaces", "RestrictRealtime", "RestrictSUIDSGID", "LockPersonality")},
        "RemoveIPC": ["yes"],
    },
}


def test_the_unit_says_what_systemd_knows_and_exposes_little() -> None:
    """`systemd-analyze security` gives it 1.3: what is left is the network mostly, which a daemon on a bus is for."""
    said: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in (DEPLOY / "systemd" / "gated.service").read_text().splitlines():
        if found := re.fullmatch(r"\[(\w+)\]", line):
            section = found[1]
            said[section] = {}
        elif line and not line.startswith("#"):
            name, equals, value = line.partition("=")
            assert equals, line
            said[section].setdefault(name, []).append(value)
    assert {section: set(names) for section, names in said.items()} == {section: set(names) for section, names in UNIT.items()}
    must = [(section, name, values) for section, names in UNIT.items() for name, values in names.items() if values is not None]
    assert [(section, name, said[section][name]) for section, name, _ in must] == must


# --- containers -------------------------------------------------------------------------------------------------------


def test_the_image_is_not_root_and_starts_what_gated_takes() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    assert re.search(r"^USER 10001$", text, re.MULTILINE)
    assert not re.search(r"^VOLUME", text, re.MULTILINE)  # each container would leave one without a name behind
    command = re.search(r"^CMD (\[.*\])$", text, re.MULTILINE)
    assert command is not None
    check_serve(yaml.safe_load(command[1]))


def test_the_image_is_healthy_where_the_process_in_it_decides() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    file = re.search(r"^ENV GATED_HEALTH_FILE=(\S+)$", text, re.MULTILINE)
    probe = re.search(r"^HEALTHCHECK .*CMD (\[.*\])$", text, re.MULTILINE)
    assert file is not None
    assert probe is not None
    check_probe(yaml.safe_load(probe[1]), file[1])
    assert file[1].startswith("/dev/shm/")  # the one place that can be written under a read-only root without a mount
    composed = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    assert "healthcheck" not in composed["services"]["worker"]  # it is the image's
    assert "GATED_HEALTH_FILE" not in composed["services"]["worker"]["environment"]


def check_probe(command: list[str], file: str, *, alive: bool = False) -> None:
    """That a probe asks what there is, about the file of the process beside it."""
    assert command[:3] == ["python", "-m", readiness.__name__]
    assert [word for word in command[3:] if word != "--alive"] == [file]
    assert ("--alive" in command) is alive


def test_the_image_is_built_from_all_that_a_wheel_is_made_of() -> None:
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in line.split()}
    built = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = built["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {"pyproject.toml", built["project"]["readme"], "gated", *wheel["force-include"]} <= copied
    assert all((ROOT / name).exists() for name in copied)
    sent = (DEPLOY / "docker" / "Dockerfile.dockerignore").read_text().split()
    assert sent[0] == "*"  # no secret and no .venv goes to the engine
    assert {name.removeprefix("!") for name in sent if name.startswith("!")} == copied


def test_the_compose_file_gives_nobody_more_than_it_needs() -> None:
    composed = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
    check_serve(composed["services"]["worker"]["command"])
    for service in composed["services"].values():
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "ports" not in service
        assert set(service.get("secrets", ())) <= set(composed["secrets"])
    assert "GATED_NATS_PASSWORD" not in composed["services"]["worker"]["environment"]


def manifests() -> Iterator[dict[str, Any]]:
    for path in (DEPLOY / "kubernetes").glob("workers.yaml"):
        yield from yaml.safe_load_all(path.read_text())


def test_the_workers_on_kubernetes_are_not_root_and_keep_nothing() -> None:
    found = {manifest["kind"]: manifest for manifest in manifests()}
    assert set(found) == {"Deployment", "PodDisruptionBudget", "NetworkPolicy"}
    pod = found["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    check_serve(container["args"])
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert all(mount.get("readOnly") or mount["name"] == "tmp" for mount in container["volumeMounts"])
    file = container["args"][container["args"].index("--health-file") + 1]
    assert any(mount["mountPath"] == str(Path(file).parent) and not mount.get("readOnly") for mount in container["volumeMounts"])
    for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
        check_probe(container[kind]["exec"]["command"], file, alive=kind == "livenessProbe")
        assert container[kind]["timeoutSeconds"] >= 5
    startup = container["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 120  # servers that elect, a long log
    assert {variable["name"] for variable in container["env"]} == {
        "GATED_NATS_URL",
        "GATED_NATS_USER",
        "GATED_NATS_PASSWORD_FILE",
        "GATED_NATS_CA",
    }
    selector = found["Deployment"]["spec"]["selector"]["matchLabels"]
    assert found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"] == selector


def test_the_values_of_the_nats_chart_say_what_the_configuration_says() -> None:
    values = yaml.safe_load((DEPLOY / "kubernetes" / "nats-values.yaml").read_text())
    assert values["config"]["cluster"] == {
        "enabled": True,
        "replicas": 3,
        "tls": {"enabled": True, "secretName": "nats-tls", "merge": {"verify": True, "min_version": "1.3"}},
    }
    assert values["tlsCA"]["enabled"] is True  # else no server could verify another
    mounted = {each["value"]["name"]: each["value"] for each in values["container"]["patch"]}
    volumes = {each["value"]["name"]: each["value"] for each in values["podTemplate"]["patch"]}
    included = values["config"]["merge"]["accounts"]["GATED"]["$include"]
    assert os.path.normpath(f"/etc/nats-config/{included}") == f"{mounted['users']['mountPath']}/users.conf"
    assert volumes["users"]["configMap"]["name"] == "nats-users"
    text = (NATS / "gated.conf").read_text()
    for key in ("max_payload", "write_deadline", "max_connections"):
        said = re.search(rf"^{key}: (.*)$", text, re.MULTILINE)
        assert said is not None
        assert str(values["config"]["merge"][key]).strip("<> ") == said[1].strip('"')


# --- for real ---------------------------------------------------------------------------------------------------------


async def test_a_worker_decides_on_the_deployed_server_over_tls(tmp_path: Path) -> None:
    context = certificate(tmp_path)
    (tmp_path / "policy.yaml").write_text(POLICY)
    (tmp_path / "password").write_text(secret("daemon", "") + "\n")
    with running(NATS / "gated.conf", tmp_path, environment(tmp_path)) as host:
        told = {
            "GATED_NATS_URL": f"tls://{host}",
            "GATED_NATS_USER": "daemon",
            "GATED_NATS_PASSWORD_FILE": str(tmp_path / "password"),
            "GATED_NATS_CA": str(tmp_path / "server.crt"),
        }
        command = [sys.executable, "-m", "gated", "serve", "--log", "nats:", "--policy", str(tmp_path / "policy.yaml")]
        command += ["--partitions", "4", "--keys", str(tmp_path / "keys"), "--health-file", str(tmp_path / "health")]
        worker = _started(command, told, tmp_path / "worker")
        try:
            await anyio.to_thread.run_sync(_heard, tmp_path / "worker", "gated works")
            credentials: dict[str, Any] = {"user": "agent:support", "password": secret("agent", "support"), "tls": context}
            credentials["inbox_prefix"] = inbox_prefix("agent", "support")
            async with connect(f"tls://{host}", agent="support", timeout=20, **credentials) as gate:
                assert (await gate.run(run="r").check("look", {})).decision == "allow"
                assert (await gate.run(run="r").check("touch", {})).decision == "deny"
            assert probed(tmp_path / "health") == (0, "ok\n")
            async with bus_user_of(host, context) as auditor:
                said = await auditor.client.request("$JS.API.STREAM.INFO.GATED_LOG", b"", timeout=PATIENCE)
                assert b'"deny_delete":true' in said.data
                assert await auditor.denied_publishing([f"{wire.PREFIX}.write.x.log.1.t", "$JS.API.STREAM.PURGE.GATED_LOG"]) == {
                    f"{wire.PREFIX}.write.x.log.1.t",
                    "$JS.API.STREAM.PURGE.GATED_LOG",
                }
        finally:
            worker.terminate()
            assert await anyio.to_thread.run_sync(worker.wait, PATIENCE) == 0
    status, said = probed(tmp_path / "health")
    assert (status, "No such file" in said) == (1, True)


def probed(file: Path, *more: str) -> tuple[int, str]:
    """What a probe of the image, or of the manifests, comes to."""
    command = [sys.executable, "-m", readiness.__name__, *more, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    return done.returncode, done.stdout


def _started(command: list[str], told: dict[str, str], output: Path) -> "subprocess.Popen[bytes]":
    with output.open("w") as out:
        return subprocess.Popen(command, env={**os.environ, **told}, stdout=out, stderr=out)


def bus_user_of(host: str, context: Any) -> Any:
    return bus_user(Address(f"tls://{host}", context), "auditor", "audit", secret("auditor", "audit"))


def _heard(path: Path, text: str) -> None:
    blocking_until(lambda: text in path.read_text(), path.read_text)


async def test_three_servers_of_the_cluster_configuration_hold_a_log_of_three_replicas(tmp_path: Path) -> None:
    context = certificate(tmp_path)
    ports = [own_port() for _ in range(3)]
    routes = "[" + ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in ports) + "]"
    with ExitStack() as servers:
        hosts = []
        for number, port in enumerate(ports):
            folder = tmp_path / f"n{number}"
            folder.mkdir()
            told = {
                **environment(tmp_path),
                "GATED_STORE": f'"{folder}/store"',
                "GATED_SERVER": f'"n{number}"',
                "GATED_CLUSTER_LISTEN": f'"127.0.0.1:{port}"',
                "GATED_ROUTES": routes,
                "GATED_TLS_CA": str(tmp_path / "server.crt"),
            }
            hosts.append(servers.enter_context(running(NATS / "cluster.conf", folder, told)))
        async with bus_user(Address(f"tls://{hosts[0]}", context), "daemon", password=secret("daemon", "")) as daemon:
            log = await _opened(daemon.client)
            assert log.replicas == 3
            assert len(log.info["cluster"]["replicas"]) == 2


class _Made(NamedTuple):
    replicas: int
    info: dict[str, Any]


async def _opened(client: SturdyClient) -> _Made:
    """A log of three replicas, once the servers have a leader."""
    for _ in range(60):
        try:
            log = await jetstream.open_for_writing(client, "w", partitions=1, replicas=3)
            info = await log.api.ask("STREAM.INFO.GATED_LOG")
            return _Made(info["config"]["num_replicas"], info)
        except (LogUnavailable, SetupError):  # no leader yet, or fewer than three servers have met
            await anyio.sleep(0.5)
    raise AssertionError("the servers do not form a cluster")
