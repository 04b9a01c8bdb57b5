"""Probes forward, one backward pass per output: the linear part exactly, the rest from the probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..covariance import Factors, Sources
from ..gaussian import Gaussian
from .arguments import Arguments
from .options import check_distinct, check_keys, whole_number, whole_numbers_if_given
from .pooling import pooled
from .response import Residual, Scheme, respond, stacked_output
from .sample_check import SampleCheck
from .sketch import probe

__all__ = ["adjoint"]


def adjoint(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    probes: int = 16,
    seed: int = 0,
    outputs: Sequence[int] | None = None,
    rank: int | None = None,
    keys: Sequence[int] | None = None,
    chunk: int | None = None,
    check: int = 8,
) -> Any:
    """``J Σ Jᵀ + T Tᵀ``, with the statistical linearisation ``J`` and what it leaves of each probe.

    The probes of :func:`~uaprop.methods.sketch.sketch` go forward and give every nonlinearity its
    marginals and gains; a backward pass per output through the gains gives ``J``. The columns of
    ``T`` are the probes at the output minus ``J`` times the probes at the input, with their variances
    steadied (:mod:`~uaprop.methods.pooling`).

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        probes: how many; the error that chance causes falls with their square root.
        seed: of the probes' signs; the same seed gives the same answer.
        outputs: which outputs of each batch element are wanted; all by default.
        rank: with more outputs than this, the response along that many main directions of the outputs
            (:mod:`~uaprop.methods.linear_part`), a backward and a forward derivative for each, instead of a
            backward pass for every output.
        keys: an integer for each batch element, from which its signs are derived together with the seed; by
            default those that do not influence each other have the same signs. In either case the result of
            one depends neither on its neighbours nor on its position.
        chunk: batch elements at a time; bounds the memory. The result does not depend on it.
        check: how many samples go through the model beside it, for standard errors and a warning where the
            result is off (:mod:`~uaprop.methods.sample_check`); at least 4, or 0 for none. Means and
            variances do not depend on it.

    Returns:
        The model's answer, in Gaussians with a dense covariance, attribution and standard errors.
    """
    whole_number("probes", probes, 2)
    whole_number("seed", seed, 0)
    whole_numbers_if_given(chunk=chunk, rank=rank)
    beside = SampleCheck("adjoint", check, seed, keys, chunk, outputs)
    arguments = Arguments(args, kwargs)
    check_keys(keys, arguments)
    independent = False
    sources = Sources(probes, seed, linearised=True)

    @torch.no_grad()
    def draw(piece: Arguments, part: slice, items: bool) -> list[Tensor]:
        nonlocal sources, independent
        independent = items
        if not items:
            check_distinct(keys)
        own = None if keys is None else keys[part]
        sources = Sources(probes, seed, True, items, own)
        return [probe(x, sources).values for x in piece.gaussians]

    def carry(mean: Tensor, stack: Tensor | None) -> Gaussian:
        assert stack is not None
        sources.restart()
        return Gaussian._from_covariance(mean, Factors(stack, (sources,)))

    options: dict[str, Any] = {"probes": probes, "seed": seed, "outputs": outputs, "rank": rank}
    options["check"] = check
    scheme = Scheme("adjoint", options, carry, stacked_output, _residual, probes, rank)
    answer = respond(scheme, model, arguments, draw, outputs, chunk)
    return beside(answer, model, arguments, independent)


def _residual(mean: Tensor, unexplained: Tensor | None, linear: Tensor) -> Residual:
    assert unexplained is not None
    return Residual(mean, pooled(unexplained, linear, len(unexplained))[0])
