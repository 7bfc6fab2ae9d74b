"""ONNX files of learned barriers: read as plain layers, and written.

Only what the core can evaluate to the last bit is taken: a chain from one input to one output of affine steps and simple
activations. Anything else is an error that names the node. Weights in other files are refused, since a model must not name
paths; pickled models are never read at all. Needs the extra `gated[neural]` (`onnx`, `numpy`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

MAX_BYTES: Final = 1 << 20
FEATURES: Final = "gated.features"  # the metadata of a model that holds the names of its features, as a JSON list
OPSET: Final = 17
_ACTIVATIONS: Final = {"Relu": "relu", "LeakyRelu": "leaky_relu", "Tanh": "tanh", "Sigmoid": "sigmoid"}
_SHAPES: Final = frozenset({"Identity", "Flatten", "Squeeze", "Reshape", "Cast"})  # that leave the values of one row alone


class ModelError(ValueError):
    """A file that is no model, or one that the core could not evaluate."""


class Model(Struct, frozen=True):
    """`layers` in the form of the policy; `features` as the file names them (it may name none)."""

    features: tuple[str, ...]
    layers: list[dict[str, Any]]
    sha256: str


def read_model(path: Path) -> Model:
    """Raises `ModelError`."""
    onnx = _onnx()
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ModelError(f"`{path}` cannot be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise ModelError(f"`{path}` has {len(raw)} bytes: at most {MAX_BYTES} are read")
    try:
        proto = onnx.load_model_from_string(raw)
        onnx.checker.check_model(proto)
    except Exception as error:
        raise ModelError(f"`{path}` is no ONNX model: {str(error).splitlines()[0][:200] or type(error).__name__}") from error
    try:
        layers = _Chain(onnx, proto.graph).layers()
    except ModelError as error:
        raise ModelError(f"`{path}`: {error}") from error
    return Model(_features(path, proto), layers, hashlib.sha256(raw).hexdigest())


def _onnx() -> Any:
    try:
        import onnx
        import onnx.checker
        import onnx.numpy_helper
    except ImportError as error:
        raise ModelError(f"learned barriers need `{error.name}`: install `gated[neural]`") from error
    return onnx


def _features(path: Path, proto: Any) -> tuple[str, ...]:
    said = {item.key: item.value for item in proto.metadata_props}.get(FEATURES)
    if said is None:
        return ()
    try:
        names = json.loads(said)
    except ValueError as error:
        raise ModelError(f"`{path}`: its `{FEATURES}` is no JSON") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelError(f"`{path}`: its `{FEATURES}` is no list of names")
    return tuple(names)


class _Chain:
    """Follows the values of one row from the input of a graph to its output. Consecutive affine steps become one layer."""

    def __init__(self, onnx: Any, graph: Any) -> None:
        import numpy

        self._numpy, self._graph = numpy, graph
        self._constants: dict[str, Any] = {}
        for tensor in graph.initializer:
            self._constants[tensor.name] = self._array(onnx, tensor)
        for node in graph.node:
            if node.op_type == "Constant":
                self._constants[node.output[0]] = self._array(onnx, node.attribute[0].t)
        self._weights: Any = None  # of the layer that is being made: rows of weights, and the bias
        self._bias: Any = None
        self._made: list[dict[str, Any]] = []

    def _array(self, onnx: Any, tensor: Any) -> Any:
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            raise ModelError(f"the weights `{tensor.name}` are in another file")
        return onnx.numpy_helper.to_array(tensor).astype(self._numpy.float64)

    def layers(self) -> list[dict[str, Any]]:
        inputs = [value for value in self._graph.input if value.name not in self._constants]
        if len(inputs) != 1 or len(self._graph.output) != 1:
            raise ModelError(f"it has {len(inputs)} inputs and {len(self._graph.output)} outputs, and must have one of each")
        width = self._width(inputs[0])
        self._weights, self._bias = self._numpy.eye(width), self._numpy.zeros(width)
        at = inputs[0].name
        for node in self._graph.node:
            if node.op_type != "Constant":
                at = self._step(node, at)
        if at != self._graph.output[0].name:
            raise ModelError(f"its nodes end in `{at}`, not in its output `{self._graph.output[0].name}`")
        if not self._made or not self._is_nothing():
            self._close("none", 0.01)
        return self._made

    @staticmethod
    def _width(value: Any) -> int:
        sizes = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        if not sizes or sizes[-1] < 1 or any(size > 1 for size in sizes[:-1]):
            raise ModelError(f"its input `{value.name}` is not one row of features, with their number")
        return int(sizes[-1])

    def _step(self, node: Any, at: str) -> str:
        given = [name for name in node.input if name]
        others = [name for name in given if name != at]
        if given.count(at) != 1 or any(name not in self._constants for name in others) or len(node.output) != 1:
            raise ModelError(f"node `{node.name or node.op_type}` is not a step of one chain: it takes {', '.join(given)}")
        options = {attribute.name: attribute for attribute in node.attribute}
        constants = [self._constants[name] for name in others]
        try:
            self._apply(node, given.index(at), constants, options)
        except (ValueError, IndexError) as error:
            if isinstance(error, ModelError):
                raise
            raise ModelError(f"node `{node.name or node.op_type}`: its shapes do not fit: {error}") from error
        return str(node.output[0])

    def _apply(self, node: Any, position: int, constants: list[Any], options: Mapping[str, Any]) -> None:
        kind = node.op_type
        if kind in _ACTIVATIONS:
            self._close(_ACTIVATIONS[kind], options["alpha"].f if "alpha" in options else 0.01)
        elif kind == "Gemm" and position == 0:
            self._gemm(constants, options)
        elif kind == "MatMul" and position == 0:
            self._affine(constants[0].T, 0.0)
        elif kind in _ELEMENTWISE:
            self._elementwise(kind, position, constants[0].reshape(-1))
        elif kind not in _SHAPES:
            known = ", ".join(sorted({*_ACTIVATIONS, *_SHAPES, *_ELEMENTWISE, "Gemm", "MatMul"}))
            raise ModelError(f"node `{node.name or kind}` is a {kind}: the core evaluates {known}")

    def _gemm(self, constants: list[Any], options: Mapping[str, Any]) -> None:
        alpha = options["alpha"].f if "alpha" in options else 1.0
        beta = options["beta"].f if "beta" in options else 1.0
        if "transA" in options and options["transA"].i:
            raise ModelError("a Gemm with `transA` is not one row of values")
        weights = constants[0] if "transB" in options and options["transB"].i else constants[0].T
        self._affine(alpha * weights, beta * constants[1].reshape(-1) if len(constants) > 1 else 0.0)

    def _elementwise(self, kind: str, position: int, other: Any) -> None:
        width = len(self._bias)
        if len(other) not in (1, width):
            raise ValueError(f"{len(other)} values against {width}")
        scale, shift = _ELEMENTWISE[kind](self._numpy.broadcast_to(other, (width,)), position)
        self._affine(self._numpy.diag(self._numpy.broadcast_to(scale, (width,))), shift)

    def _affine(self, weights: Any, shift: Any) -> None:
        self._bias = weights @ self._bias + shift
        self._weights = weights @ self._weights

    def _close(self, activation: str, slope: float) -> None:
        made = {"weights": self._weights.tolist(), "bias": self._bias.tolist(), "activation": activation}
        if activation == "leaky_relu":
            made["slope"] = slope
        self._made.append(made)
        width = len(self._bias)
        self._weights, self._bias = self._numpy.eye(width), self._numpy.zeros(width)

    def _is_nothing(self) -> bool:
        return bool((self._weights == self._numpy.eye(len(self._bias))).all() and not self._bias.any())


def _minus(other: Any, position: int) -> tuple[Any, Any]:
    return (1.0, -other) if position == 0 else (-1.0, other)


def _over(other: Any, position: int) -> tuple[Any, Any]:
    if position != 0:
        raise ModelError("a division by what is computed is not affine")
    return 1.0 / other, 0.0


_ELEMENTWISE: Final[Mapping[str, Callable[[Any, int], tuple[Any, Any]]]] = {
    "Add": lambda other, position: (1.0, other),
    "Sub": _minus,
    "Mul": lambda other, position: (other, 0.0),
    "Div": _over,
}


def write_model(features: Sequence[str], layers: Sequence[Mapping[str, Any]]) -> bytes:
    """The ONNX file of a network with weights in double precision, so that what is read back is what was written."""
    onnx = _onnx()
    helper, kind = onnx.helper, onnx.TensorProto.DOUBLE
    nodes, weights, at = [], [], "features"
    for number, layer in enumerate(layers):
        rows, width = layer["weights"], len(layer["bias"])
        weights.append(helper.make_tensor(f"w{number}", kind, (width, len(rows[0])), [x for row in rows for x in row]))
        weights.append(helper.make_tensor(f"b{number}", kind, (width,), layer["bias"]))
        last = number == len(layers) - 1 and layer["activation"] == "none"
        nodes.append(helper.make_node("Gemm", [at, f"w{number}", f"b{number}"], ["h" if last else f"s{number}"], transB=1))
        at = f"s{number}"
        if layer["activation"] != "none":
            name = next(onnx_name for onnx_name, ours in _ACTIVATIONS.items() if ours == layer["activation"])
            at = "h" if number == len(layers) - 1 else f"a{number}"
            nodes.append(helper.make_node(name, [f"s{number}"], [at]))
    graph = helper.make_graph(
        nodes,
        "barrier",
        [helper.make_tensor_value_info("features", kind, (1, len(features)))],
        [helper.make_tensor_value_info("h", kind, (1, 1))],
        weights,
    )
    model = helper.make_model(graph, producer_name="gated", opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    helper.set_model_props(model, {FEATURES: json.dumps(list(features))})
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())
