"""What a policy's barriers only name: Python functions of installed packages, and learned models in ONNX files.

A package offers a function under the entry point group `gated.barriers`; only those that a policy names are ever imported.
The package and its version are written into the policy as it is recorded (`provided_by`), so that its digest stands for the
code that decided, and a log is never replayed with another version without saying so. A model's weights are written into
it whole, for the same reason: replaying needs neither the file nor a library that reads it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path as FilePath
from typing import Any, Final, NoReturn

from gated.documents import Document, DocumentError
from gated.shell.onnx_files import ModelError, read_model

GROUP: Final = "gated.barriers"
Path = tuple[str | int, ...]
Functions = dict[str, Callable[..., Any]]


class FunctionMissing(ValueError):
    """A barrier's function that cannot be had here, or not in the version that the policy names."""


def complete(document: Document) -> tuple[Document, Functions]:
    """The document with what it names from outside written into it, and the functions. Raises `DocumentError`."""
    data, functions = copy.deepcopy(document.data), Functions()
    for path, barrier in _barriers(data):
        name = barrier.get("python")
        if isinstance(name, str):
            functions[name], barrier["provided_by"] = _at(document, (*path, "python"), name, barrier.get("provided_by"))
        neural = barrier.get("neural")
        if isinstance(neural, dict) and isinstance(neural.get("model"), str) and "layers" not in neural:
            _inline(document, (*path, "neural", "model"), neural)
    return Document(data, document.file, document.place), functions


def _inline(document: Document, path: Path, neural: dict[str, Any]) -> None:
    """Write what a model's file holds into the policy. The file lies beside the policy's."""
    file = FilePath(document.file_of(path)).parent / neural["model"]
    try:
        model = read_model(file)
        if neural.get("sha256", model.sha256) != model.sha256:
            raise ModelError(f"`{file}` has the SHA-256 {model.sha256}, not the one that `sha256` wants")
        if model.features and tuple(neural.get("features", model.features)) != model.features:
            raise ModelError(f"`{file}` was made for the features {', '.join(model.features)}")
    except ModelError as error:
        raise DocumentError(document.file_of(path), document.line(path), str(error)) from error
    neural |= {"layers": model.layers, "sha256": model.sha256, "features": list(neural.get("features", model.features))}


def stored_functions(data: Any, *, lenient: bool) -> Functions:
    """The functions of a recorded policy. `lenient`: one that cannot be had raises when it is called, which denies."""
    functions = Functions()
    for _, barrier in _barriers(data):
        name = barrier.get("python")
        if isinstance(name, str):
            try:
                functions[name], _ = function_of(name, barrier.get("provided_by"))
            except FunctionMissing as error:
                if not lenient:
                    raise
                functions[name] = _missing(error)
    return functions


def function_of(name: str, wanted: object = None) -> tuple[Callable[..., Any], str]:
    """The function of an entry point, and the package and version that offer it. Raises `FunctionMissing`."""
    offered = {_provider(point): point for point in entry_points(group=GROUP) if point.name == name}
    if not offered:
        known = ", ".join(f"`{n}`" for n in sorted({point.name for point in entry_points(group=GROUP)})) or "none"
        raise FunctionMissing(f"no installed package offers a barrier `{name}` (group `{GROUP}`): there are {known}")
    if len(offered) > 1:
        raise FunctionMissing(f"the barrier `{name}` is offered by {' and '.join(f'`{p}`' for p in sorted(offered))}")
    ((provider, point),) = offered.items()
    if wanted is not None and wanted != provider:
        raise FunctionMissing(f"the barrier `{name}` is wanted from `{wanted}`, and installed is `{provider}`")
    return _loaded(name, point, provider), provider


def _provider(point: EntryPoint) -> str:
    return f"{point.dist.name}=={point.dist.version}" if point.dist is not None else point.value


def _loaded(name: str, point: EntryPoint, provider: str) -> Callable[..., Any]:
    try:
        function = point.load()
    except Exception as error:
        raise FunctionMissing(
            f"the barrier `{name}` of `{provider}` cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not callable(function):
        raise FunctionMissing(f"the barrier `{name}` of `{provider}` is no function")
    return function  # type: ignore[no-any-return]


def _missing(error: FunctionMissing) -> Callable[..., NoReturn]:
    def raises(state: object, **params: object) -> NoReturn:
        raise error

    return raises


def _at(document: Document, path: Path, name: str, wanted: object) -> tuple[Callable[..., Any], str]:
    try:
        return function_of(name, wanted)
    except FunctionMissing as error:
        raise DocumentError(document.file_of(path), document.line(path), str(error)) from error


def _barriers(data: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every entry of every `dcbf.barriers`, and `dcbf` itself for its `neural`, whatever else the document is."""
    agents = data.get("agents") if isinstance(data, dict) else None
    places: list[tuple[Path, Any]] = [(("defaults",), data.get("defaults") if isinstance(data, dict) else None)]
    places += [(("agents", name), agent) for name, agent in agents.items()] if isinstance(agents, dict) else []
    for path, agent in places:
        rules = agent.get("dcbf") if isinstance(agent, dict) else None
        if not isinstance(rules, dict):
            continue
        if "neural" in rules:
            yield (*path, "dcbf"), rules
        barriers = rules.get("barriers")
        for name, barrier in barriers.items() if isinstance(barriers, dict) else ():
            if isinstance(barrier, dict):
                yield (*path, "dcbf", "barriers", name), barrier
