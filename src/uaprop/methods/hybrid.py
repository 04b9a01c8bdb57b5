"""Real draws for what is not linear, the linear response for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..covariance.ensemble import Ensemble
from ..gaussian import Gaussian
from ..numerics.chance import RandomNumbers, reseeded
from .arguments import Arguments
from .options import check_distinct, check_keys, whole_number, whole_numbers_if_given
from .pooling import pooled
from .response import Residual, Scheme, respond, stacked_output
from .samples import centred

__all__ = ["hybrid"]


def hybrid(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    samples: int = 16,
    seed: int = 0,
    outputs: Sequence[int] | None = None,
    rank: int | None = None,
    keys: Sequence[int] | None = None,
    chunk: int | None = None,
) -> Any:
    """Monte Carlo of ``f(x + ε) - J ε``, whose linear part is known exactly.

    ``samples`` draws go through the unmodified model. Every operation's derivative is averaged over
    them, and a backward pass per output through these averages gives the response ``J``. With
    ``r_i = f(x + ε_i) - J ε_i`` the mean is that of ``r`` and the covariance ``J Σ Jᵀ + Cov(r)``: by
    Stein's lemma the two parts are uncorrelated when ``J`` is the average derivative. The draws are
    shifted to have the mean zero, so that the linear part adds nothing to the mean's error; the
    variances of ``r`` are steadied (:mod:`~uaprop.methods.pooling`).

    No moments and no Gaussian assumption inside the network: whatever is differentiable will do.

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        samples: how many draws, at least 3.
        seed: of the draws; the same seed gives the same answer.
        outputs: which outputs of each batch element are wanted; all by default.
        rank: with more outputs than this, the response along that many main directions of the outputs
            (:mod:`~uaprop.methods.linear_part`), a backward and a forward derivative for each, instead of a
            backward pass for every output.
        keys: an integer for each batch element, from which its noise is derived together with the seed; by
            default those that do not influence each other have the same noise. In either case the result of
            one depends neither on its neighbours nor on its position.
        chunk: batch elements at a time; bounds the memory. The result does not depend on it.

    Returns:
        The model's answer, in Gaussians with a dense covariance, attribution and standard errors.
    """
    whole_number("samples", samples, 3)
    whole_number("seed", seed, 0)
    whole_numbers_if_given(chunk=chunk, rank=rank)
    arguments = Arguments(args, kwargs)
    check_keys(keys, arguments)

    @torch.no_grad()
    def draw(items: bool) -> list[Tensor]:
        if not items:
            check_distinct(keys)
        return [
            centred(
                x.cov.deviations(
                    samples,
                    RandomNumbers.seeded(seed, number, items=items, keys=keys, device=x.device),
                )
            )
            for number, x in enumerate(arguments.gaussians)
        ]

    def carry(mean: Tensor, stack: Tensor | None) -> Gaussian:
        assert stack is not None
        return Gaussian._from_covariance(mean, Ensemble(mean.detach() + stack))

    options = {"samples": samples, "seed": seed, "outputs": outputs, "rank": rank}
    scheme = Scheme("hybrid", options, carry, stacked_output, _residual, samples, rank)
    with reseeded(seed, 1):  # the model's own randomness
        return respond(scheme, model, arguments, draw, outputs, chunk)


def _residual(mean: Tensor, unexplained: Tensor | None, linear: Tensor) -> Residual:
    assert unexplained is not None
    count = len(unexplained)
    average = unexplained.mean(0)
    factors = (unexplained - average) * (count - 1) ** -0.5
    factors = torch.where(torch.isfinite(average), factors, 0)  # masked: the mean says it all
    factors, relative = pooled(factors, linear, count - 1)
    var = factors.square().sum(0)
    # Cov(J ε, r) is taken to be zero. J being an average over draws, it is so up to chance: measured, with
    # half the variance that an estimate of 2 Cov(J ε, r) would have.
    neglected = 2 * linear * var / count
    error = ((var * relative).square() + neglected).sqrt()
    return Residual(average, factors, (var / count).sqrt(), error)
