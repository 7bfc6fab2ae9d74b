"""The servers and workers that a chaos run hurts: processes, each in a network namespace where the machine allows it."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gated.shell.nats_binary import server_binary
from gated.shell.nats_config import User, UserRole, login, users_block

USERS: list[tuple[UserRole, str]] = [
    ("daemon", ""),
    ("agent", "mailer"),
    ("agent", "counter"),
    ("agent", "opener"),
    ("agent", "payer"),
    ("approver", "bob"),
]


class Network:
    """A bridge with a namespace for each node; without the right to make them, everything is on loopback."""

    def __init__(self) -> None:
        self.tag = f"g{os.getpid() % 100_000}"
        self.nodes: dict[str, str] = {}
        self.octet = 1 + secrets.randbelow(250)
        self.isolated = self._make()

    def _make(self) -> bool:
        if shutil.which("ip") is None or os.geteuid() != 0:
            return False
        bridge = f"{self.tag}br"
        return _run("ip", "link", "add", bridge, "type", "bridge") and all(
            (
                _run("ip", "addr", "add", f"10.77.{self.octet}.1/24", "dev", bridge),
                _run("ip", "link", "set", bridge, "up"),
            )
        )

    def node(self, name: str) -> str:
        """The address of a node."""
        if name in self.nodes:
            return self.nodes[name]
        if not self.isolated:
            self.nodes[name] = "127.0.0.1"
            return "127.0.0.1"
        space, outside, inside = f"{self.tag}{name}", f"{self.tag}{name}o", f"{self.tag}{name}i"
        address = f"10.77.{self.octet}.{10 + len(self.nodes)}"
        for command in (
            f"ip netns add {space}",
            f"ip link add {outside} type veth peer name {inside}",
            f"ip link set {inside} netns {space}",
            f"ip link set {outside} master {self.tag}br up",
            f"ip -n {space} link set lo up",
            f"ip -n {space} addr add {address}/24 dev {inside}",
            f"ip -n {space} link set {inside} up",
        ):
            if not _run(*command.split()):
                raise RuntimeError(f"cannot make a network namespace: {command}")
        self.nodes[name] = address
        return address

    def command(self, name: str, command: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", f"{self.tag}{name}", *command] if self.isolated else list(command)

    def cut(self, name: str, *, off: bool) -> None:
        """Take a node off the network, or put it back."""
        _run("ip", "link", "set", f"{self.tag}{name}o", "down" if off else "up")

    def remove(self) -> None:
        if self.isolated:
            for name in self.nodes:
                _run("ip", "netns", "del", f"{self.tag}{name}")
                _run("ip", "link", "del", f"{self.tag}{name}o")
            _run("ip", "link", "del", f"{self.tag}br")


def _run(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Node:
    """One process that is stopped, killed, cut off and started again."""

    def __init__(self, name: str, network: Network, command: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.name, self._network, self._folder = name, network, folder
        self._command, self._environment = network.command(name, command), environment
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self.process is None or self.process.poll() is not None:
            with (self._folder / f"{self.name}.out").open("ab") as out:
                self.process = subprocess.Popen(
                    self._command, env={**os.environ, **self._environment}, stdout=out, stderr=out, start_new_session=True
                )

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(10)

    def end(self) -> None:
        """Stop it as a service is stopped; one that cannot, since its servers are away, is killed."""
        self.signal(signal.SIGTERM)
        try:
            if self.process is not None:
                self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def cut(self, *, off: bool) -> None:
        self._network.cut(self.name, off=off)


class Cluster:
    """`replicas` servers (one or three) and three workers."""

    def __init__(self, folder: Path, replicas: int, policy: Path, partitions: int = 64) -> None:
        self.folder, self.network = folder, Network()
        self.passwords = {login(role, name): secrets.token_urlsafe(12) for role, name in USERS}
        names = [f"s{n + 1}" for n in range(replicas)]
        addresses = {name: self.network.node(name) for name in names}
        ports = {name: (4222, 6222) if self.network.isolated else _free_ports() for name in names}
        self.url = ",".join(f"nats://{addresses[name]}:{ports[name][0]}" for name in names)
        routes = [f"nats-route://{addresses[name]}:{ports[name][1]}" for name in names]
        self.servers = []
        for name in names:
            config = folder / f"{name}.conf"
            config.write_text(self._config(name, addresses[name], *ports[name], routes))
            self.servers.append(Node(name, self.network, [server_binary(), "-c", str(config)], folder, {}))
        self.workers = [self._worker(f"w{n + 1}", policy, replicas, partitions) for n in range(3)]

    def _config(self, name: str, address: str, port: int, route_port: int, routes: list[str]) -> str:
        users = users_block([User(role, who, self.passwords[login(role, who)]) for role, who in USERS])
        others = f'cluster {{ name: "chaos", listen: "{address}:{route_port}", routes: {routes} }}' if len(routes) > 1 else ""
        return f"""
server_name: "{name}"
listen: "{address}:{port}"
max_payload: 2097152
ping_interval: "1s"
ping_max: 2
log_file: "{self.folder}/{name}.log"
jetstream {{ store_dir: "{self.folder}/{name}" }}
{others}
authorization {{ {users} }}
"""

    def _worker(self, name: str, policy: Path, replicas: int, partitions: int) -> Node:
        self.network.node(name)
        options = ["--log", "nats:", "--policy", str(policy), "--name", name, "--replicas", str(replicas)]
        options += ["--partitions", str(partitions), "--keys", str(self.folder / "keys")]
        environment = {
            "GATED_NATS_URL": self.url,
            "GATED_NATS_USER": "daemon",
            "GATED_NATS_PASSWORD": self.passwords["daemon"],
        }
        return Node(name, self.network, [sys.executable, "-m", "gated", "serve", *options], self.folder, environment)

    def start(self) -> None:
        for node in (*self.servers, *self.workers):
            if node.name == "w1":
                time.sleep(1.0 if len(self.servers) == 1 else 3.0)
            node.start()

    def heal(self) -> None:
        """Everything runs and is connected again."""
        for node in (*self.servers, *self.workers):
            node.cut(off=False)
            node.signal(signal.SIGCONT)
            node.start()

    def end(self) -> None:
        for node in (*self.workers, *self.servers):
            node.signal(signal.SIGCONT)
            node.kill()
        self.network.remove()


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        two.bind(("127.0.0.1", 0))
        return one.getsockname()[1], two.getsockname()[1]
