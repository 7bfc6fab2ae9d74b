"""The documents are true: the blocks of each that says so run in order in an empty folder, and the README's policy loads."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gated.core.policy import load_text
from patience import PATIENCE, blocking_until

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)(?: ([^\n]*))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(path: Path) -> list[tuple[str, str, str]]:
    return [(m[1], m[2] or "", m[3]) for m in BLOCK.finditer(path.read_text())]


def test_the_readme_policy_loads_and_decides() -> None:
    (text,) = [body for kind, _, body in blocks(ROOT / "README.md") if kind == "yaml"]
    policy = load_text(text, "policy.yaml")
    assert sorted(policy.agents) == ["analyst"]


def test_the_examples_of_frameworks_are_code_and_configuration() -> None:
    """Their imports and definitions run; what they would start is started in the adapters' own tests."""
    for kind, _, body in blocks(ROOT / "docs" / "frameworks.md"):
        if kind == "python":
            exec(compile(body, "frameworks.md", "exec"), {"__name__": "frameworks"})
        else:
            assert json.loads(body)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("tutorial.md", "Read a.py before writing.\nwrote a.py\n"),
        ("approvals.md", "is approved by ana: `refund` may run now\npaid 20 to kim\n"),
        ("policies.md", "Write deny\nRead ran\nWrite ran\nsend_email ran\nsend_email suspend\n"),
    ],
)
def test_a_document_runs(tmp_path: Path, document: str, said: str) -> None:
    """Block by block; what its agent says must come out somewhere."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    running: list[subprocess.Popen[bytes]] = []
    heard = ""
    try:
        for kind, option, body in blocks(ROOT / "docs" / document):
            if option.startswith("file="):
                (tmp_path / option.removeprefix("file=")).write_text(body)
            elif kind == "sh" and option == "background":
                running.append(subprocess.Popen(body.split(), cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL))
                _wait_for(tmp_path / ".gated" / "bus" / "bus.json", environment, tmp_path)
            elif kind == "sh":
                done = subprocess.run(
                    ["bash", "-e", "-c", body], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, f"{body}\n{done.stdout}\n{done.stderr}"
                heard += done.stdout
    finally:
        for process in running:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0
    assert running
    assert said in heard


def _wait_for(file: Path, environment: dict[str, str], folder: Path) -> None:
    def up() -> bool:
        doctor = subprocess.run(["gated", "doctor"], cwd=folder, env=environment, capture_output=True, check=False)
        return doctor.returncode == 0

    blocking_until(file.exists)
    blocking_until(up)
