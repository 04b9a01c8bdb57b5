"""Random probes through the whole network: every output's variance from one pass, whatever their number."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..covariance import Diagonal, Factors, Sources
from ..covariance.sources import decoded
from ..gaussian import Gaussian
from ..numerics.chance import RandomNumbers, seeded
from ..provenance import Provenance
from .answer import cut_like
from .arguments import Arguments, explained, is_gaussian, mapped
from .batch_independence import BatchItems, default_chunk
from .options import check_distinct, check_keys, whole_number, whole_numbers_if_given
from .sample_check import SampleCheck

__all__ = ["probe", "sketch"]

_FEWEST = 4  # batch elements: with fewer the trial takes longer than it saves


def sketch(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    probes: int = 16,
    seed: int = 0,
    keys: Sequence[int] | None = None,
    chunk: int | None = None,
    check: int = 8,
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
        keys: an integer for each batch element, from which its signs are derived together with the seed; by
            default those that do not influence each other have the same signs. In either case the result of
            one depends neither on its neighbours nor on its position.
        chunk: batch elements at a time, for a model whose batch elements do not influence each other;
            bounds the memory. The result does not depend on it.
        check: how many samples go through the model beside it, for standard errors and a warning where the
            result is off (:mod:`~uaprop.methods.sample_check`); at least 4, or 0 for none. Means and
            variances do not depend on it.

    Returns:
        The model's answer, in Gaussians whose elements are correlated, with standard errors.

    Raises:
        ValueError: if the batch is to be cut but its elements influence each other.
    """
    whole_number("probes", probes, 2)
    whole_number("seed", seed, 0)
    whole_numbers_if_given(chunk=chunk)
    own_error = (2 * probes) ** -0.5
    beside = SampleCheck("sketch", check, seed, keys, chunk, own_error=own_error)
    arguments = Arguments(args, kwargs)
    check_keys(keys, arguments)
    items = BatchItems(model, arguments)
    if chunk is None:
        elements = probes * sum(x.numel() for x in arguments.gaussians)
        chunk = default_chunk(items, elements, _FEWEST)
    else:
        items.check_cut(chunk)
    shared = any(isinstance(x.cov, Factors) for x in arguments.gaussians)  # noise of several items
    if shared or not items.are_rowwise:
        check_distinct(keys)
    sources = Sources(probes, seed, items=items.are_rowwise and not shared, keys=keys)
    random = [Gaussian._from_covariance(x.loc, probe(x, sources)) for x in arguments.gaussians]
    encoded = Arguments(*arguments.filled(random))

    answers, lengths = [], []
    for _, piece in encoded.pieces(chunk):
        sources.restart()
        answers.append(piece.run(model, piece.gaussians))
        lengths.append(piece.batch or 0)
    whole = answers[0]
    if len(answers) > 1:
        whole = pytree.tree_map(functools.partial(_joined, lengths), *answers, is_leaf=is_gaussian)
    if items.are_rowwise and not shared:
        whole = mapped(functools.partial(_decorrelated, seed), whole)
    told = Provenance("sketch", {"probes": probes, "seed": seed, "check": check})
    return beside(explained(whole, told), model, arguments, items.are_rowwise and not shared)


def _decorrelated(seed: int, y: Gaussian) -> Gaussian:
    """Items that had the same signs, each with signs of its own for all of its factors at once.

    ``Σ_r (s_r F_r)(s_r F_r)ᵀ = Σ_r F_r F_rᵀ``: nothing changes for an item, but items are uncorrelated, for
    whatever is done with them afterwards.

    Returns:
        The same Gaussian but for that.
    """
    values = y.cov.values
    shape = (*values.shape[:2], *[1] * (values.ndim - 2))
    signs = 2 * RandomNumbers(seeded(seed, 8)).bits(1, shape)[0].to(values) - 1
    return Gaussian._from_covariance(y.loc, Factors(values * signs, y.cov.sources))


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
        return Gaussian._from_covariance(
            torch.cat([y.loc for y in answers]), Factors(values, first.cov.sources)
        )
    return torch.cat(answers) if cut_like(lengths, answers) else first
