"""Gaussians as plain tensors and text, for pickles and files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from .attribution import Attribution, Response
from .covariance import Covariance, Dense, Diagonal, Factors, Finished, Sources
from .covariance.finished import Block
from .covariance.origin import Origin
from .provenance import Provenance, StandardError

__all__ = ["FORMAT", "State", "packed", "unpacked"]

FORMAT = "uaprop gaussian 1"
_BLOCKS = {"finished": Finished, "dense": Dense}


class State(NamedTuple):
    """What a Gaussian consists of.

    Attributes:
        notes: what is no tensor; JSON can hold it.
        tensors: by name.
        sources: the noise sources of factors; in a pickle they are shared with other Gaussians.
    """

    notes: dict[str, Any]
    tensors: dict[str, Tensor]
    sources: tuple[Sources, ...] = ()


def packed(mean: Tensor, cov: Covariance, provenance: Provenance | None) -> State:
    """A Gaussian taken apart.

    A covariance of ``method="full"`` becomes a result's, which has the same matrices but is not carried
    through further operations: what it has in common with other tensors of the pass would be lost.

    Returns:
        Its parts, without what only other parts of a batch need.

    Raises:
        TypeError: if it is only a value inside of a pass.
    """
    state = State({"format": FORMAT}, {"mean": mean})
    cov = cov.stored()
    if isinstance(cov, Finished):
        state = _with_blocks(
            state, cov.compact(), "dense" if isinstance(cov, Dense) else "finished"
        )
    elif isinstance(cov, Factors):
        state.notes["covariance"] = "factors"
        state.tensors["factors"] = cov.values
        state = state._replace(sources=cov.sources)
    elif type(cov) is Diagonal:
        state.notes["covariance"] = "diagonal"
        state.tensors["var"] = cov.var
    else:
        raise TypeError(
            f"a Gaussian with a {type(cov).__name__.lower()} covariance exists only while a model runs, and "
            "is not stored; store what ua.propagate returns"
        )
    if provenance is not None:
        _add_provenance(state, provenance.evaluated())
    return state


def _with_blocks(state: State, cov: Finished, name: str) -> State:
    state.notes["covariance"] = name
    state.notes["blocks"] = [(block.groups, block.size) for block in cov.blocks]
    state.tensors["var"] = cov.var
    if cov.origin.index is not None:
        state.tensors["origin"] = cov.origin.index
    for i, block in enumerate(cov.blocks):
        if block.dense is not None:
            state.tensors[f"dense.{i}"] = block.dense
    return state


def _add_provenance(state: State, told: Provenance) -> None:
    state.notes["provenance"] = {
        "method": told.method,
        "options": {name: _plain(value) for name, value in told.options.items()},
        "reason": told.reason,
        "entrance": told.entrance,
        "linearised": list(told.linearised),
        "without_nominal": told.without_nominal,
    }
    if told.nominal is not None:
        state.tensors["nominal"] = told.nominal
    if isinstance(told.standard_error, StandardError):
        state.tensors["error.mean"], state.tensors["error.std"] = told.standard_error
    shares = []
    for i, share in enumerate(told.shares):
        compact = share.compact()
        if compact.origin.index is not None:
            state.tensors[f"share.{i}.origin"] = compact.origin.index
        for j, response in enumerate(compact.responses):
            name = f"share.{i}.{j}"
            state.tensors[f"{name}.rows"] = response.rows
            state.tensors[f"{name}.pushed"] = response.pushed
            if response.weights is not None:
                state.tensors[f"{name}.weights"] = response.weights
        shares.append([list(response.shape) for response in compact.responses])
    state.notes["shares"] = shares


def _plain(value: Any) -> Any:
    """An option as JSON has it; anything else as text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value)


def unpacked(state: State) -> tuple[Tensor, Covariance, Provenance | None]:
    """The parts of a Gaussian put together again.

    Returns:
        Mean, covariance and provenance.

    Raises:
        ValueError: if they do not fit each other.
    """
    notes, tensors, sources = state
    if notes.get("format") != FORMAT:
        raise ValueError(f"not a {FORMAT!r}, but {notes.get('format')!r}")
    try:
        mean, kind = tensors["mean"], notes["covariance"]
        cov = _covariance(kind, notes, tensors, sources)
        told = _provenance(notes, tensors) if "provenance" in notes else None
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"a part of the Gaussian is missing or damaged: {error!r}") from error
    if cov.var.shape != mean.shape:
        raise ValueError(
            f"the mean has shape {tuple(mean.shape)} but the variances {tuple(cov.var.shape)}"
        )
    if told is not None and told.nominal is not None and told.nominal.shape != mean.shape:
        raise ValueError(
            f"the mean has shape {tuple(mean.shape)} but the nominal output {tuple(told.nominal.shape)}"
        )
    return mean, cov, told


def _covariance(
    kind: str, notes: Mapping[str, Any], tensors: Mapping[str, Tensor], sources: tuple[Sources, ...]
) -> Covariance:
    if kind == "diagonal":
        return Diagonal(tensors["var"])
    if kind == "factors":
        return Factors(tensors["factors"], sources)
    var = tensors["var"]
    sizes = enumerate(notes["blocks"])
    blocks = [Block(tensors.get(f"dense.{i}"), groups, size) for i, (groups, size) in sizes]
    origin = Origin(tensors.get("origin"))
    total = sum(map(len, blocks))
    index = origin.of(var)
    if index.shape != var.shape or bool(((index < -1) | (index >= total)).any()):
        raise ValueError("the covariance does not fit the variances")
    for block in blocks:
        shape = (block.groups, block.size, block.size)
        if block.dense is not None and block.dense.shape != shape:
            raise ValueError(
                f"a covariance has shape {tuple(block.dense.shape)} instead of {shape}"
            )
    return _BLOCKS[kind].of_blocks(var, blocks, origin)


def _provenance(notes: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Provenance:
    told = notes["provenance"]
    error = None
    if "error.mean" in tensors:
        error = StandardError(tensors["error.mean"], tensors["error.std"])
    shares = []
    for i, shapes in enumerate(notes.get("shares", ())):
        responses = [
            Response(
                tensors[f"share.{i}.{j}.rows"],
                tensors[f"share.{i}.{j}.pushed"],
                tensors.get(f"share.{i}.{j}.weights"),
                tuple(shape),
            )
            for j, shape in enumerate(shapes)
        ]
        shares.append(Attribution(tuple(responses), Origin(tensors.get(f"share.{i}.origin"))))
    return Provenance(
        told["method"],
        told["options"],
        told["reason"],
        told["entrance"],
        tuple(told["linearised"]),
        error,
        tuple(shares),
        tensors.get("nominal"),  # files had none at first
        told.get("without_nominal", ""),
    )
