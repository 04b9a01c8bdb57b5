"""How likely noise is to change a classifier's answer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..gaussian import Gaussian
from ..numerics.orthant import orthant_probability, upper_tail
from ..numerics.union import HALF_STEP, winners

__all__ = ["Flip", "flip_probability"]

_NEGLIGIBLE = 1e-6  # share of the flip probability that contenders left out may have
_ALWAYS, _ORTHANTS = 16, 64  # contenders that are always kept; most that have an integral each
_UNION = 8  # draws for every point, where there are more contenders than that
_IN_FLIGHT = 2**22  # covariances of differences held at a time
_EQUAL = 1e-14  # share of two scores' variances below which their difference has none


class Flip(NamedTuple):
    """Who wins, and how likely somebody else does.

    Attributes:
        win: the probability that each class has the largest score, (batch, classes); rows sum to 1.
        predicted: the class of the largest mean score, (batch,).
        flip: the probability that another class wins than the predicted one, (batch,). Accurate also
            where ``1 - win`` would have no digits left.
    """

    win: Tensor
    predicted: Tensor
    flip: Tensor


def flip_probability(y: Gaussian, *, samples: int = 4096, seed: int = 0) -> Flip:
    """The probability that the noise changes which class has the largest score.

    ``P(s_k ≥ s_j for all j)`` for ``s ~ N(y.mean, y.covariance())`` is the probability that a Gaussian vector
    of differences is positive. It is integrated by separation of variables (Genz 1992) over scrambled Sobol
    points: exact for two classes, to about six digits for three and three or more for ten; probabilities
    of 1e-6 and below keep their leading digits. Where more than 64 classes are in contention they are
    sampled instead, from where the answer flips if that is rare (Owen, Maximov & Chertkov 2019): to a
    percent of the flip probability, and a standard error of 0.003 at the most. Of many classes, those that
    together add less than a millionth to the flip probability are given zero.

    The scores may be logits or probabilities alike, but it is *their* distribution that is taken to be
    Gaussian: that fits logits better. The answer is as good as the covariance: that of ``method="diagonal"``
    knows no correlation between scores. There are no gradients.

    Args:
        y: class scores, (batch, classes), or (classes,) for one.
        samples: Sobol points, best a power of 2.
        seed: makes the answer reproducible.

    Returns:
        Probabilities of y's shape and dtype (float32 for half precision). Scores that are
        certainly equal share their probability.

    Raises:
        TypeError: if y is no Gaussian, or the numbers are not whole.
        ValueError: if y is neither a vector nor a matrix, has fewer than two classes, is not finite, or
            its covariance was not kept.
    """
    mean, cov = _checked(y, samples, seed)
    with torch.no_grad():
        single = mean.ndim == 1
        if single:
            mean, cov = mean.unsqueeze(0), cov.unsqueeze(0)
        predicted = mean.argmax(1)
        win = torch.zeros_like(mean)
        flip = mean.new_zeros(len(mean))
        order, counts = _contenders(mean, cov, predicted)
        for count in counts.unique().tolist():  # a row's result does not depend on the others
            rows = counts == count
            classes = order[rows, :count]
            part = _wins(*_restricted(mean[rows], cov[rows], classes), samples, seed)
            win[rows] = win[rows].scatter(1, classes, part)
            flip[rows] = part[:, 1:].sum(1)  # the predicted class is the first contender
        dtype = torch.promote_types(y.dtype, torch.float32)
        win, flip = win.to(dtype), flip.to(dtype)
    return Flip(win[0], predicted[0], flip[0]) if single else Flip(win, predicted, flip)


def _checked(y: Gaussian, samples: int, seed: int) -> tuple[Tensor, Tensor]:
    if not isinstance(y, Gaussian):
        raise TypeError(
            f"flip_probability needs a ua.Gaussian of class scores, not {type(y).__name__}; "
            "make one with ua.propagate(model, x)"
        )
    if not isinstance(samples, int) or not isinstance(seed, int):
        raise TypeError(f"samples and seed must be whole numbers, not {samples!r} and {seed!r}")
    if samples < 1:
        raise ValueError(f"samples must be at least 1, not {samples}")
    if y.ndim not in (1, 2):
        raise ValueError(
            f"class scores have shape (batch, classes) or (classes,), not {tuple(y.shape)}"
        )
    if y.shape[-1] < 2:
        raise ValueError(f"a prediction needs at least two classes to flip, not {y.shape[-1]}")
    mean, cov = y.loc.detach().double(), y.covariance().detach().double()
    if not (bool(mean.isfinite().all()) and bool(cov.isfinite().all())):
        raise ValueError("the scores' mean or covariance is infinite or NaN")
    return mean, cov


def _contenders(mean: Tensor, cov: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
    """The classes that matter, in order of their chance against the predicted one, which comes first.

    The answer flips at least as often as the strongest rival is ahead, so all classes whose chances
    together are a millionth of that rival's can go.

    Returns:
        All classes in that order, (batch, classes), and how many of them matter, (batch,).
    """
    first = predicted.unsqueeze(1)
    var = cov.diagonal(dim1=-2, dim2=-1)
    between = cov.gather(1, first.unsqueeze(-1).expand(-1, 1, var.shape[1])).squeeze(1)
    apart = (var + var.gather(1, first) - 2 * between).clamp_min(0)
    gap = mean.gather(1, first) - mean
    ahead = upper_tail(gap / apart.sqrt())  # 0/0 is a tie
    ahead = torch.where(apart > 0, ahead, (gap == 0).double()).scatter(1, first, 2.0)
    ahead, order = ahead.sort(dim=1, descending=True, stable=True)
    worth = ahead * ahead.shape[1] > _NEGLIGIBLE * ahead[:, 1:2]
    return order, worth.sum(1).clamp_min(min(_ALWAYS, mean.shape[1]))


def _restricted(mean: Tensor, cov: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of these classes, the covariance without negative eigenvalues."""
    count = classes.shape[1]
    mean = mean.gather(1, classes)
    cov = cov.gather(1, classes.unsqueeze(-1).expand(-1, -1, cov.shape[2]))
    cov = cov.gather(2, classes.unsqueeze(1).expand(-1, count, -1))
    cov = 0.5 * (cov + cov.mT)
    std = cov.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt()
    inverse = torch.where(std > 0, 1 / std, 0)
    values, vectors = torch.linalg.eigh(cov * inverse.unsqueeze(-1) * inverse.unsqueeze(-2))
    if bool((values < 0).any()):
        missing = (vectors * values.clamp_max(0).neg().unsqueeze(-2)) @ vectors.mT
        cov = cov + missing * std.unsqueeze(-1) * std.unsqueeze(-2)
    return mean, cov


def _wins(mean: Tensor, cov: Tensor, samples: int, seed: int) -> Tensor:
    count = mean.shape[1]
    if count > _ORTHANTS:
        rows = zip(mean, cov, strict=True)
        return torch.stack([winners(m, c, _UNION * samples, seed) for m, c in rows])
    engine = SobolEngine(max(count - 2, 1), scramble=True, seed=seed)
    points = (engine.draw(samples, dtype=torch.float64) + HALF_STEP).to(mean.device)
    size = max(1, _IN_FLIGHT // count**3)
    parts = zip(mean.split(size), cov.split(size), strict=True)
    win = torch.cat([_integrals(m, c, points) for m, c in parts])
    return win / win.sum(1, keepdim=True)


def _integrals(mean: Tensor, cov: Tensor, points: Tensor) -> Tensor:
    """The probability of every class to be ahead of all others, each by an integral of its own."""
    batch, count = mean.shape
    own = torch.arange(count, device=mean.device).unsqueeze(1)
    others = torch.arange(count - 1, device=mean.device).expand(count, -1)
    others = others + (others >= own).long()  # (classes, classes - 1), all but the row's own
    gap = mean.unsqueeze(2) - mean[:, others]
    var = cov.diagonal(dim1=-2, dim2=-1)
    shared = cov[:, own, others]
    ahead = cov[:, others.unsqueeze(2), others.unsqueeze(1)] + var[:, :, None, None]
    ahead = ahead - shared.unsqueeze(3) - shared.unsqueeze(2)
    noise = _EQUAL * (var.unsqueeze(2) + var[:, others])
    random = ahead.diagonal(dim1=-2, dim2=-1) > noise
    ahead = ahead * (random.unsqueeze(2) & random.unsqueeze(3))
    equals = 1 + (~random & (gap == 0)).sum(2)
    first = orthant_probability(gap.flatten(0, 1), ahead.flatten(0, 1), points)
    return first.view(batch, count) / equals
