"""Real draws for what is not linear, the linear response for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..covariance.ensemble import Ensemble
from ..gaussian import Gaussian
from ..numerics.chance import reseeded
from .arguments import Arguments
from .batch_independence import BatchItems
from .centred import centred_noise
from .options import check_distinct, check_keys, whole_number, whole_numbers_if_given
from .pilot import PILOT, Pilot
from .pooling import pooled, tails
from .response import Residual, Scheme, respond, stacked_output

__all__ = ["hybrid", "sampled_response"]

_AVERAGED = 16


def hybrid(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    samples: int = 16,
    averaged: int | None = None,
    seed: int = 0,
    outputs: Sequence[int] | None = None,
    rank: int | None = None,
    keys: Sequence[int] | None = None,
    chunk: int | None = None,
) -> Any:
    """Monte Carlo of ``f(x + ε) - J ε``, whose linear part is known exactly.

    ``samples`` samples go through the unmodified model. Every operation's derivative is averaged over
    them, and a backward pass per output through these averages gives the response ``J``. With
    ``r_i = f(x + ε_i) - J ε_i`` the mean is that of ``r`` and the covariance ``J Σ Jᵀ + Cov(r)``: by
    Stein's lemma the two parts are uncorrelated when ``J`` is the average derivative. The product of averages
    need not be that, so its slopes are estimated from the samples (:mod:`~uaprop.methods.control_variate`):
    the result converges to the truth whatever ``J`` is. The samples are shifted to have the mean zero, so
    that the linear part adds nothing to the mean's error; the variances of ``r`` are shrunk towards each
    other (:mod:`~uaprop.methods.pooling`).

    No moments and no Gaussian assumption inside the network: whatever is differentiable will do.

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        samples: how many draws, at least 3.
        averaged: over how many of them derivatives are averaged, by default a quarter, and 16 at least. The
            others cost a plain pass each; the slopes are estimated from all.
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
    whole_numbers_if_given(chunk=chunk, rank=rank, averaged=averaged)
    arguments = Arguments(args, kwargs)
    check_keys(keys, arguments)
    averaged = min(samples, averaged or usually_averaged(samples))
    return sampled_response(model, arguments, samples, averaged, seed, outputs, rank, keys, chunk)


def usually_averaged(samples: int) -> int:
    """Over how many samples derivatives are averaged."""
    return max(_AVERAGED, samples // 4)


def sampled_response(
    model: Callable[..., Any],
    arguments: Arguments,
    samples: int,
    averaged: int,
    seed: int,
    outputs: Sequence[int] | None,
    rank: int | None,
    keys: Sequence[int] | None,
    chunk: int | None,
    pilot: Pilot | None = None,
    items: BatchItems | None = None,
) -> Any:
    """What :func:`hybrid` returns, from options that were checked.

    Args:
        model: any callable on tensors.
        arguments: its arguments.
        samples: how many, those of a pilot included.
        averaged: over how many of them derivatives are averaged.
        seed: of the samples.
        outputs: which outputs of each batch element are wanted.
        rank: how many main directions to follow.
        keys: an integer for each batch element.
        chunk: batch elements at a time.
        pilot: samples that the model was already run on.
        items: what is known of the batch, if anything is.

    Returns:
        The model's output, in Gaussians.
    """
    new = samples - (0 if pilot is None else PILOT)
    averaged = min(averaged, new)
    others = new - averaged

    @torch.no_grad()
    def draw(piece: Arguments, part: slice, items: bool) -> list[Tensor]:
        if not items:
            check_distinct(keys)
        own = None if keys is None else keys[part]
        # A derivative that is linear in the noise has its average exactly if the noise has the mean zero.
        sizes = [n for n in (averaged, others) if n]
        if min(sizes) == 1:  # one sample alone has no noise left
            sizes = [sum(sizes)]
        return centred_noise(piece.gaussians, sizes, seed, items, own)

    def carry(mean: Tensor, stack: Tensor | None) -> Gaussian:
        assert stack is not None
        return Gaussian._from_covariance(mean, Ensemble(mean.detach() + stack))

    options = {"samples": samples, "seed": seed, "outputs": outputs, "rank": rank}
    scheme = Scheme(
        "hybrid",
        options,
        carry,
        stacked_output,
        _residual,
        rows=averaged,
        rank=rank,
        fits=True,
        averaged=averaged,
        stack=averaged + others,
    )
    with reseeded(seed, 1):  # the model's own randomness
        return respond(scheme, model, arguments, draw, outputs, chunk, pilot, items)


def _residual(mean: Tensor, unexplained: Tensor | None, linear: Tensor) -> Residual:
    assert unexplained is not None
    count = len(unexplained)
    average = unexplained.mean(0)
    factors = (unexplained - average) * (count - 1) ** -0.5
    constant = (unexplained == unexplained[0]).all(0)  # its average may be rounded
    varies = torch.isfinite(average) & ~constant  # masked: the mean says it all
    factors = torch.where(varies, factors, 0)
    factors, relative = pooled(factors, linear, count - 1)
    var = factors.square().sum(0)
    relative = relative * tails(factors)
    return Residual(average, factors, (var / count).sqrt(), var * relative)
