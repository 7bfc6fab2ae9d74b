"""The image and the compose file in Docker with Compose, as an operator runs them.

Needs Docker and the base images that the two files name (stored there, or to be pulled); elsewhere it is skipped, and says
that nothing was run.
"""

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from deploy.test_permissions import NATS, POLICY, certificate, environment, secret
from patience import blocking_until

DEPLOY = NATS.parent
ROOT = DEPLOY.parent
FACES = (("docker", ("docker", "compose")),)
AGENT = """
import ssl, sys, anyio
from gated.client.gate import connect
from gated.shell.nats_config import inbox_prefix

async def ask():
    context = ssl.create_default_context(cafile="/ca.crt")
    login = {"user": "agent:support", "password": sys.argv[2], "inbox_prefix": inbox_prefix("agent", "support")}
    async with connect("tls://nats:4222", agent="support", timeout=60, tls=context, **login) as gate:
        print([(await gate.run(run=sys.argv[1]).check(tool, {})).decision for tool in ("look", "touch")])

anyio.run(ask)
"""
INSIDE = """
id -u
touch /opt/x /etc/x /data/x /run/secrets/x 2>&1 | grep -c 'Read-only file system'
grep -E '^(CapPrm|CapEff|CapBnd|NoNewPrivs):' /proc/1/status | tr -d '\\t'
tr '\\0' '\\n' </proc/1/environ | grep -c '^GATED_NATS_PASSWORD=' || true
ls -ldn /data/keys | cut -d' ' -f1,3
"""


class Engine:
    """A container engine, and one project of its own in it."""

    def __init__(self, name: str, compose: tuple[str, ...], folder: Path) -> None:
        self.name, self._compose, self._folder = name, compose, folder
        self.project = f"gated-test-{uuid.uuid4().hex[:8]}"

    def run(self, *arguments: str) -> str:
        return _said([self.name, *arguments], self._folder)

    def compose(self, *arguments: str) -> str:
        return _said([*self._compose, "-p", self.project, *arguments], self._folder)

    def containers(self, service: str) -> list[str]:
        labels = (f"label=com.docker.compose.{key}" for key in (f"project={self.project}", f"service={service}"))
        return self.run("ps", "-q", *(word for label in labels for word in ("--filter", label))).split()

    def works(self, worker: str) -> bool:
        return "gated works" in self.run("logs", worker)

    def healthy(self, worker: str) -> bool:
        return self.run("inspect", "-f", "{{.State.Health.Status}}", worker).strip() == "healthy"

    def volumes(self) -> set[str]:
        return set(self.run("volume", "ls", "-q").split())

    def ask(self, run: str) -> str:
        """What an agent on the network of the bus is told on a call that it may make, and on one that it may not."""
        image = self.run("inspect", "-f", "{{.Image}}", self.containers("worker")[0]).strip()
        ca = self._folder / "secrets" / "ca.crt"
        place = ("--rm", "--network", f"{self.project}_bus", "--read-only", "-v", f"{ca}:/ca.crt:ro", "--entrypoint", "python")
        return self.run("run", *place, image, "-c", AGENT, run, secret("agent", "support")).strip()


def _said(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def _answers(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


def _found() -> tuple[str, tuple[str, ...]]:
    """An engine that answers and its compose; else the test is skipped."""
    for name, compose in FACES:
        if _answers(name, "info") and _answers(*compose, "version"):
            return name, compose
    pytest.skip("NOT RUN: the image and the compose file. No Docker with Compose is here")


def _want_bases(name: str) -> None:
    """That the engine has or gets what the image and the compose file begin with; else the test is skipped."""
    bases = set(re.findall(r"^FROM (\S+)", (DEPLOY / "docker" / "Dockerfile").read_text(), re.MULTILINE))
    bases.add(yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())["services"]["nats"]["image"])
    for base in sorted(bases):
        if not _answers(name, "image", "inspect", base) and not _answers(name, "pull", base):
            pytest.skip(f"NOT RUN: the image and the compose file. {name} is here, and neither has nor gets `{base}`")


def _sources(folder: Path) -> Path:
    """What the image is built from and the compose file mounts, with secrets and a policy; gives the compose file's folder."""
    for name in ("gated", "examples/policies", "deploy"):
        shutil.copytree(ROOT / name, folder / name)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    docker = folder / "deploy" / "docker"
    (docker / "policy").mkdir()
    (docker / "policy" / "policy.yaml").write_text(POLICY)
    secrets = docker / "secrets"
    secrets.mkdir()
    certificate(secrets, "nats")
    shutil.copy(secrets / "server.crt", secrets / "ca.crt")
    users = {name: value for name, value in environment(secrets).items() if value.startswith('"')}
    (secrets / "nats.env").write_text("".join(f"{name}='{value}'\n" for name, value in users.items()))
    (secrets / "daemon.password").write_text(secret("daemon", "") + "\n")
    for path in secrets.iterdir():  # as the head of the compose file says; who is not root cannot give files away
        path.chmod(0o444 if path.suffix == ".crt" or os.getuid() else 0o400)
    if not os.getuid():
        os.chown(secrets / "daemon.password", 10001, 0)
    return docker


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    name, compose = _found()
    _want_bases(name)
    made = Engine(name, compose, _sources(tmp_path))
    try:
        yield made
    finally:
        made.compose("down", "-v")


@pytest.mark.timeout(1200)
def test_the_composed_gate_decides_and_goes_on_after_kills_and_an_upgrade(engine: Engine) -> None:
    before = engine.volumes()
    engine.compose("build")
    engine.compose("up", "-d", "--scale", "worker=2")
    workers = engine.containers("worker")
    assert len(workers) == 2
    for worker in workers:
        blocking_until(partial(engine.works, worker), partial(engine.compose, "logs"))
        blocking_until(partial(engine.healthy, worker), partial(engine.run, "inspect", worker))
        said = engine.run("exec", worker, "sh", "-c", INSIDE).split()
        none = [f"{capabilities}:{0:016x}" for capabilities in ("CapPrm", "CapEff", "CapBnd")]
        assert said == ["10001", "4", *none, "NoNewPrivs:1", "0", "drwx------", "10001"]
    assert engine.ask("r") == "['allow', 'deny']"

    engine.run("restart", "-t", "0", workers[0])  # SIGKILL
    assert engine.ask("r") == "['allow', 'deny']"
    engine.run("restart", "-t", "0", *engine.containers("nats"))
    assert engine.ask("r") == "['allow', 'deny']"

    engine.run("stop", workers[1])  # SIGTERM
    assert engine.run("inspect", "-f", "{{.State.ExitCode}}", workers[1]).strip() == "0"
    engine.compose("down")
    engine.compose("up", "-d", "--scale", "worker=2")  # others than before, which find the log and the keys
    assert set(engine.containers("worker")).isdisjoint(workers)
    assert engine.ask("r") == "['allow', 'deny']"
    assert engine.volumes() - before == {f"{engine.project}_{name}" for name in ("nats", "keys")}
