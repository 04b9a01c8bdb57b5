"""Random probes through the whole network: every output's variance from one pass, whatever their number."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..covariance import Diagonal, Factors, Sources
from ..covariance.postponed import postponing
from ..covariance.sources import decoded
from ..gaussian import Gaussian
from ..provenance import Provenance
from .answer import cut_like
from .apart import check_apart, default_chunk
from .arguments import Arguments, explained, is_gaussian
from .diagonal import settle
from .options import whole_number

__all__ = ["probe", "sketch"]

_FEWEST = 4  # batch elements: with fewer the trial takes longer than it saves


def sketch(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    probes: int = 16,
    seed: int = 0,
    chunk: int | None = None,
) -> Any:
    """Factors over ``probes`` shared sources (:mod:`~uaprop.covariance.factors`).

    Every input element has a random sign at each probe, so that the probes' average product is the
    input's covariance. The answer's standard deviations have a relative error of about
    ``1/√(2·probes)`` from chance alone.

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        probes: how many, at least 2.
        seed: of the probes' signs; the same seed gives the same answer.
        chunk: batch elements at a time, for a model whose batch elements do not influence each other;
            bounds the memory. The answer does not depend on it. By default the model is run on the means
            of a large batch, to see whether it may be cut.

    Returns:
        The model's answer, in Gaussians whose elements are correlated.
    """
    whole_number("probes", probes, 2)
    whole_number("seed", seed, 0)
    arguments = Arguments(args, kwargs)
    if chunk is not None:
        whole_number("chunk", chunk, 1)
        check_apart(model, arguments, chunk)
    else:
        chunk = default_chunk(model, arguments, probes, _FEWEST)
    sources = Sources(probes, seed)
    random = [Gaussian.from_covariance(x.loc, probe(x, sources)) for x in arguments.gaussians]
    encoded = Arguments(*arguments.filled(random))

    answers, lengths = [], []
    for _, piece in encoded.pieces(chunk):
        sources.restart()
        with postponing():
            answers.append(piece.run(model, piece.gaussians))
            settle(answers[-1])
        lengths.append(piece.batch or 0)
    whole = answers[0]
    if len(answers) > 1:
        whole = pytree.tree_map(functools.partial(_joined, lengths), *answers, is_leaf=is_gaussian)
    return explained(whole, Provenance("sketch", {"probes": probes, "seed": seed}))


def probe(x: Gaussian, sources: Sources) -> Factors:
    """The covariance of an input, spread over the sources.

    Returns:
        Factors whose covariance is the input's, exactly or on average over the signs.
    """
    if isinstance(x.cov, Diagonal):
        return Factors.signs(x.cov.var, sources)
    if isinstance(x.cov, Factors):
        values, known = x.cov.values, x.cov.sources
        if len(known) == 1:
            values = decoded(values, known[0])
        return Factors.codes(values, sources)
    return Factors.dense_signs(x.cov.dense(), x.shape, sources)


def _joined(lengths: Sequence[int], *answers: Any) -> Any:
    """The answers of several pieces of a batch as one."""
    first = answers[0]
    if is_gaussian(first):
        values = torch.cat([y.cov.values for y in answers], 1)
        return Gaussian.from_covariance(
            torch.cat([y.loc for y in answers]), Factors(values, first.cov.sources)
        )
    return torch.cat(answers) if cut_like(lengths, answers) else first
