"""Learned barriers out of ONNX files: what the core computes is what a runtime does, and what it could not is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from gated.core.barriers.entries import LayerEntry
from gated.core.barriers.network import Network
from gated.core.policy import Policy
from gated.core.stages.dcbf import unsafe_at_start
from gated.documents import DocumentError, parse_document
from gated.events import AgentId
from gated.shell import onnx_files
from gated.shell.onnx_files import FEATURES, ModelError, read_model, write_model
from gated.shell.policies import load_document, load_stored, read_policy

NAMES = ("steps", "cost_usd", "count.pay")


def graph(nodes: Sequence[Any], constants: dict[str, Any], *, width: int = 3, names: Sequence[str] | None = NAMES) -> bytes:
    """A model of float32 with an input `x` and an output `y`."""
    tensors = [onnx.numpy_helper.from_array(np.asarray(a, dtype=np.float32), name) for name, a in constants.items()]
    made = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
        tensors,
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if names is not None:
        helper.set_model_props(model, {FEATURES: json.dumps(list(names))})
    return bytes(model.SerializeToString())


def node(kind: str, inputs: str, output: str, **options: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], **options)


def network(path: Path, names: Sequence[str] = NAMES) -> Network:
    model = read_model(path)
    return Network(names, [msgspec.convert(layer, LayerEntry) for layer in model.layers])


RNG = np.random.default_rng(5)
W1, B1, W2, B2 = RNG.normal(size=(4, 3)), RNG.normal(size=4), RNG.normal(size=(1, 4)), RNG.normal(size=1)
CONSTANTS = {"w1": W1, "b1": B1, "w2": W2, "b2": B2, "mean": [1.0, 2.0, 3.0], "std": [2.0, 0.5, 4.0], "two": [2.0]}
CHAINS = {
    "linear": [node("Gemm", "x w1 b1", "a", transB=1), node("Gemm", "a w2 b2", "y", transB=1)],
    "relu": [node("Gemm", "x w1 b1", "a", transB=1), node("Relu", "a", "r"), node("Gemm", "r w2 b2", "y", transB=1)],
    "scaled": [
        node("Sub", "x mean", "c"),
        node("Div", "c std", "s"),
        node("Gemm", "s w1 b1", "a", transB=1, alpha=0.5, beta=2.0),
        node("LeakyRelu", "a", "r", alpha=0.125),
        node("Gemm", "r w2", "g", transB=1),
        node("Add", "b2 g", "y"),
    ],
    "tanh": [
        node("Flatten", "x", "f"),
        node("Gemm", "f w1 b1", "a", transB=1),
        node("Tanh", "a", "t"),
        node("Gemm", "t w2 b2", "o", transB=1),
        node("Identity", "o", "y"),
    ],
    "sigmoid at the end": [
        node("Gemm", "x w1 b1", "a", transB=1),
        node("Sigmoid", "a", "t"),
        node("Gemm", "t w2 b2", "o", transB=1),
        node("Mul", "two o", "m"),
        node("Sub", "two m", "n"),
        node("Sigmoid", "n", "y"),
    ],
}


@pytest.mark.parametrize("name", CHAINS)
def test_the_core_computes_what_a_runtime_does(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(graph(CHAINS[name], CONSTANTS))
    session, ours = onnxruntime.InferenceSession(str(path)), network(path)
    for row in RNG.normal(size=(50, 3)) * 5:
        (theirs,) = session.run(None, {"x": row.astype(np.float32)[None]})[0][0]
        assert ours.value([float(x) for x in row.astype(np.float32)]) == pytest.approx(float(theirs), rel=1e-4, abs=1e-4)


def test_matmul_and_bias(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    nodes = [node("MatMul", "x w", "a"), node("Add", "a b", "y")]
    path.write_bytes(graph(nodes, {"w": [[1.0], [2.0], [4.0]], "b": [0.5]}))
    model = read_model(path)
    assert model.layers == [{"weights": [[1, 2, 4]], "bias": [0.5], "activation": "none"}]
    assert model.features == NAMES


def test_what_is_written_is_read_to_the_last_bit(tmp_path: Path) -> None:
    layers = [
        {"weights": (W1 / 3).tolist(), "bias": (B1 / 7).tolist(), "activation": "relu"},
        {"weights": (W2 / 3).tolist(), "bias": (B2 / 7).tolist(), "activation": "none"},
    ]
    path = tmp_path / "m.onnx"
    path.write_bytes(write_model(NAMES, layers))
    model = read_model(path)
    assert (model.layers, model.features) == (layers, NAMES)
    session = onnxruntime.InferenceSession(str(path))
    theirs = session.run(None, {"features": np.array([[1.0, 2.0, 3.0]])})[0][0][0]
    assert network(path).value([1.0, 2.0, 3.0]) == pytest.approx(theirs, rel=1e-12)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("Softmax", "x", "s"), node("Gemm", "s w2", "y")], "is a Softmax: the core evaluates Add, Cast"),
        ([node("Add", "x x", "s"), node("Gemm", "s w3", "y")], "is not a step of one chain"),
        ([node("Div", "mean x", "s"), node("Gemm", "s w3", "y")], "a division by what is computed"),
        ([node("MatMul", "w2 x", "y")], "is a MatMul"),
    ],
)
def test_what_the_core_cannot_evaluate_is_refused(nodes: list[Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(graph(nodes, {"w2": W2, "w3": W1[:3, :1], "mean": [1.0, 2.0, 3.0]}))
    with pytest.raises(ModelError, match=message):
        read_model(path)


def test_weights_in_another_file_are_refused(tmp_path: Path) -> None:
    model = onnx.load_model_from_string(graph(CHAINS["linear"], CONSTANTS))
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../secret")
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match=r"m\.onnx"):
        read_model(path)


@pytest.mark.parametrize("raw", [b"", b"\x80\x04\x95.", b"PK\x03\x04", b"not a model"])
def test_what_is_no_model_is_refused(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.pkl"
    path.write_bytes(raw)
    with pytest.raises(ModelError, match=r"m\.pkl"):
        read_model(path)


def test_a_file_that_is_too_large_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="cannot be read: No such file"):
        read_model(tmp_path / "none.onnx")
    monkeypatch.setattr(onnx_files, "MAX_BYTES", 3)
    (tmp_path / "m.onnx").write_bytes(b"1234")
    with pytest.raises(ModelError, match="has 4 bytes"):
        read_model(tmp_path / "m.onnx")


# --- in a policy -----------------------------------------------------------------------------------------------------


def policy_file(folder: Path, rules: str) -> Path:
    path = folder / "policy.yaml"
    path.write_text(f"version: 1\nagents:\n  a:\n    checks: [dcbf]\n    dcbf: {rules}\n")
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """h = 2.5 - steps"""
    path = tmp_path / "m.onnx"
    path.write_bytes(write_model(["steps"], [{"weights": [[-1.0]], "bias": [2.5], "activation": "none"}]))
    return path


def barrier_values(policy: Policy) -> tuple[str, ...]:
    return tuple(barrier.name for barrier in policy.profile(AgentId("a")).dcbf.barriers)


@pytest.mark.usefixtures("model")
def test_a_policy_holds_the_weights_of_its_model(tmp_path: Path) -> None:
    policy = read_policy(policy_file(tmp_path, "{neural: {model: m.onnx}}"))
    kept = json.loads(policy.text)["agents"]["a"]["dcbf"]["neural"]
    assert kept["layers"] == [{"weights": [[-1]], "bias": [2.5], "activation": "none"}]
    assert kept["features"] == ["steps"]
    (tmp_path / "m.onnx").unlink()
    again = load_stored(policy.text, policy.digest, lenient=False)
    assert again.digest == policy.digest
    assert barrier_values(again)[-1] == "neural"
    assert unsafe_at_start(again.profile(AgentId("a")).dcbf, "a") == ()


def test_other_weights_are_another_policy(tmp_path: Path, model: Path) -> None:
    before = read_policy(policy_file(tmp_path, "{neural: {model: m.onnx}}")).digest
    model.write_bytes(write_model(["steps"], [{"weights": [[-1.0]], "bias": [2.25], "activation": "none"}]))
    assert read_policy(tmp_path / "policy.yaml").digest != before


@pytest.mark.usefixtures("model")
def test_a_model_may_replace_a_standard_barrier(tmp_path: Path) -> None:
    policy = read_policy(policy_file(tmp_path, "{barriers: {privacy: {neural: {model: m.onnx}, margin: 1}}}"))
    assert barrier_values(policy) == ("safety", "privacy", "resource", "scope", "stability")


@pytest.mark.usefixtures("model")
@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("{neural: {model: none.onnx}}", r"policy.yaml:5: .*none.onnx` cannot be read"),
        ("{neural: {model: m.onnx, features: [calls]}}", "was made for the features steps"),
        ("{neural: {model: m.onnx, sha256: %s}}" % ("0" * 64), "not the one that `sha256` wants"),
        ("{barriers: {x: {neural: {model: m.onnx}, expr: '1'}}}", "`expr` and `neural`: give exactly one"),
    ],
)
def test_a_model_that_is_not_the_one_is_an_error_of_the_policy(tmp_path: Path, rules: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        read_policy(policy_file(tmp_path, rules))


def test_a_model_without_features_needs_them_in_the_policy(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(graph(CHAINS["relu"], CONSTANTS, names=None))
    with pytest.raises(DocumentError, match="1 to 64 features, not 0"):
        read_policy(policy_file(tmp_path, "{neural: {model: m.onnx}}"))
    with pytest.raises(DocumentError, match="does not take the 2 values"):
        read_policy(policy_file(tmp_path, "{neural: {model: m.onnx, features: [steps, calls]}}"))
    assert read_policy(policy_file(tmp_path, "{neural: {model: m.onnx, features: [steps, calls, tools]}}"))


def test_without_the_package_it_says_what_to_install(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnx", None)
    document = parse_document("version: 1\nagents: {a: {dcbf: {neural: {model: m.onnx}}}}", file=str(tmp_path / "p.yaml"))
    with pytest.raises(DocumentError, match=r"install `gated\[neural\]`"):
        load_document(document)
