"""Barriers in Python: functions of installed packages, found by their entry points."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gated.core.policy import Policy
from gated.core.scenario import run_document
from gated.core.stages.dcbf import unsafe_at_start
from gated.documents import DocumentError, parse_document
from gated.events import AgentId
from gated.shell.policies import load_document, load_stored

CODE = """
import asyncio
import math
from gated.core.runview import View

def few(state: View, *, most: int = 3) -> int:
    return most - state.step_count

def cheap(state: View) -> float:
    return 0.05 - state.cost_usd

def calm(state: View) -> float:
    return -1.0 if any(tool == "panic" for tool, status, digest in state.recent) else 1.0

def meddles(state: View) -> float:
    untouched = not state.labels
    state.labels["seen"] = "yes"
    return 1.0 if untouched else -1.0

def crashes(state: View) -> float:
    raise RuntimeError("no") if state.step_count else RuntimeError("never")

def exits(state: View) -> float:
    raise SystemExit(3)

def gives_up(state: View) -> float:
    raise asyncio.CancelledError

def forever(state: View) -> float:
    return math.inf

def truth(state: View) -> bool:
    return True

def word(state: View) -> str:
    return "1"

constant = 1.0
"""
NAMES = ("few", "cheap", "calm", "meddles", "crashes", "exits", "gives_up", "forever", "truth", "word", "constant")

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a package as pip lays it out: a module and a .dist-info with its entry points."""
    modules: set[str] = set()

    def put(package: str = "acme", version: str = "1.2", code: str = CODE, names: tuple[str, ...] = NAMES) -> None:
        site = tmp_path / f"site-{package}"
        info = site / f"{package}-1.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (site / f"{package}_barriers.py").write_text(code)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        lines = "".join(f"{name} = {package}_barriers:{name}\n" for name in names)
        (info / "entry_points.txt").write_text(f"[gated.barriers]\n{lines}")
        if str(site) not in sys.path:
            monkeypatch.syspath_prepend(str(site))
        modules.add(f"{package}_barriers")

    yield put
    for module in modules:
        sys.modules.pop(module, None)


def policy_text(barrier: str) -> str:
    return f"version: 1\nagents:\n  a:\n    checks: [dcbf]\n    dcbf:\n      barriers:\n        own: {barrier}\n"


def loaded(barrier: str) -> Policy:
    return load_document(parse_document(policy_text(barrier), file="policy.yaml"))


def decided(barrier: str, calls: str, labels: str = "{}") -> list[str]:
    """Runs a scenario in which every call is expected to be allowed; what came instead."""
    steps = ", ".join(f"{{run: {{call: c{n}, tool: {tool}, args: {{}}}}}}" for n, tool in enumerate(calls.split()))
    text = "policy: p.yaml\nscenarios: [{name: n, labels: %s, steps: [%s]}]" % (labels, steps)  # noqa: UP031
    document = parse_document(text, file="s.yaml")
    (result,) = run_document(document, lambda name: parse_document(policy_text(barrier), file=name), 0, load_document)
    return [f"step {failure.step}: {failure.findings[0].reason}" for failure in result.failures]


def test_a_function_of_a_package_decides(install: Install) -> None:
    install()
    assert decided("{python: few}", "x x x") == []
    assert decided("{python: few}", "x x x x") == ["step 4: barriers would be left: own 0 -> -1 (at least 0)"]
    assert decided("{python: few, params: {most: 1}}", "x x")[0].startswith("step 2")
    assert decided("{python: few, margin: 1.5}", "x x")[0].startswith("step 2: barriers would be left: own 0.5 -> -0.5")
    assert decided("{python: cheap}", "x x x x x") == []
    assert decided("{python: cheap}", "x x x x x x")[0].startswith("step 6")
    assert decided("{python: calm}", "x panic")[0].startswith("step 2")


@pytest.mark.parametrize("name", ["crashes", "exits", "gives_up", "forever", "truth", "word"])
def test_what_gives_no_finite_number_is_below_the_edge(install: Install, name: str) -> None:
    install()
    assert decided(f"{{python: {name}}}", "x") == ["step 1: barriers would be left: own -1 -> -1 (at least 0)"]


def test_a_function_cannot_change_the_run(install: Install) -> None:
    install()
    assert decided("{python: meddles}", "x x x") == []


@pytest.mark.parametrize(
    ("barrier", "message"),
    [
        ("{python: nope}", r"policy.yaml:7: no installed package offers a barrier `nope` .*: there are `calm`, `cheap`"),
        ("{python: few, params: {least: 1}}", r"policy.yaml:7: .*does not take these `params`.*least"),
        ("{python: few, provided_by: acme==1.1}", r"wanted from `acme==1.1`, and installed is `acme==1.2`"),
        ("{python: constant}", "is no function"),
        ("{params: {a: 1}, expr: '1'}", "`params` of barrier `own` belongs to `python`"),
        ("{python: few, expr: '1'}", "`expr` and `python`: give exactly one"),
        ("{python: 3}", "text"),
    ],
)
def test_what_cannot_be_had_is_an_error_of_the_policy(install: Install, barrier: str, message: str) -> None:
    install()
    with pytest.raises(DocumentError, match=message):
        loaded(barrier)


def test_a_package_that_does_not_import_is_an_error_of_the_policy(install: Install) -> None:
    install("broken", code="import nothing_of_that_name\n", names=("few",))
    with pytest.raises(DocumentError, match=r"`few` of `broken==1.2` cannot be loaded: ModuleNotFoundError"):
        loaded("{python: few}")


def test_a_name_that_two_packages_offer_is_an_error_of_the_policy(install: Install) -> None:
    install("acme")
    install("rival", names=("few",))
    with pytest.raises(DocumentError, match=r"is offered by `acme==1.2` and `rival==1.2`"):
        loaded("{python: few}")


def test_only_what_a_policy_names_is_imported(install: Install) -> None:
    install("loud", code="raise SystemError('imported')\n", names=("other",))
    install("acme")
    assert loaded("{python: few}").agents


def test_the_version_is_part_of_the_policy(install: Install) -> None:
    install(version="1.2")
    old = loaded("{python: few}")
    assert json.loads(old.text)["agents"]["a"]["dcbf"]["barriers"]["own"]["provided_by"] == "acme==1.2"
    install(version="1.3")
    assert loaded("{python: few}").digest != old.digest


def test_a_recorded_policy_wants_the_version_that_it_was_recorded_with(install: Install) -> None:
    install(version="1.2")
    recorded = loaded("{python: few}")
    assert load_stored(recorded.text, recorded.digest, lenient=False).digest == recorded.digest
    install(version="1.3")
    with pytest.raises(DocumentError, match=r"of the log.*wanted from `acme==1.2`, and installed is `acme==1.3`"):
        load_stored(recorded.text, recorded.digest, lenient=False)
    denying = load_stored(recorded.text, recorded.digest, lenient=True)
    assert denying.digest == recorded.digest
    assert unsafe_at_start(recorded.profile(AgentId("a")).dcbf, "a") == ()
    assert unsafe_at_start(denying.profile(AgentId("a")).dcbf, "a") == ("own",)
