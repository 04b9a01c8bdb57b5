"""How likely noise is to change a classifier's answer."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from ..gaussian import Gaussian
from ..numerics.orthant import orthant_probability, upper_tail
from ..numerics.union import HALF_STEP, winners
from .flip_error import ScoreErrors, flip_error

__all__ = ["Flip", "flip_probability"]

_NEGLIGIBLE = 1e-6  # share of the flip probability that contenders left out may have
_ALWAYS, _ORTHANTS = 16, 64  # contenders that are always kept; most that have an integral each
_UNION = 8  # draws for every point, where there are more contenders than that
_IN_FLIGHT = 2**22  # covariances of differences held at a time
_EQUAL = 1e-14  # share of two scores' variances below which their difference has none


class Flip(NamedTuple):
    """Who wins, and how likely another class than the predicted one does.

    Attributes:
        win: the probability that each class has the largest score, (batch, classes); rows sum to 1.
        predicted: the class that is predicted without noise, (batch,); ``reference`` says by which scores.
        flip: the probability that another class wins than the predicted one, (batch,). Accurate also
            where ``1 - win`` would have no digits left.
        reference: "nominal" if the prediction is that of the model's own output at the mean input,
            ``y.nominal``; "mean" if it is that of the mean scores, ``y.mean``.
        standard_error: of ``flip``, from the standard errors of the scores, (batch,); None if they have none.
    """

    win: Tensor
    predicted: Tensor
    flip: Tensor
    reference: str
    standard_error: Tensor | None


def flip_probability(
    y: Gaussian, *, reference: str | None = None, samples: int = 4096, seed: int = 0
) -> Flip:
    """The probability that the noise changes which class has the largest score.

    ``P(s_k ≥ s_j for all j)`` for ``s ~ N(y.mean, y.covariance())`` is the probability that a Gaussian vector
    of differences is positive. It is integrated by separation of variables (Genz 1992) over scrambled Sobol
    points: exact for two classes, to about six digits for three and three or more for ten; probabilities
    of 1e-6 and below keep their leading digits. Where more than 64 classes are in contention they are
    sampled instead, from where the answer flips if that is rare (Owen, Maximov & Chertkov 2019): to a
    percent of the flip probability, and a standard error of 0.003 at the most. Of many classes, those that
    together add less than a millionth to the flip probability are given zero.

    Changes from what? From what the network predicts without noise, ``model(x.mean).argmax()``. The largest
    of the mean scores is often another class, where the network is in doubt: noise that moves the scores in
    one direction on average changes the prediction with a probability of more than a half.

    The scores may be logits or probabilities alike, but it is *their* distribution that is taken to be
    Gaussian: that fits logits better. The answer is as good as the covariance: that of ``method="diagonal"``
    knows no correlation between scores. There are no gradients.

    The standard error is what ``y.standard_error`` makes of ``flip``, see :mod:`~uaprop.check.flip_error`. It
    does not cover that the scores are not Gaussian, nor the integration.

    Args:
        y: class scores, (batch, classes), or (classes,) for one.
        reference: "nominal" for the prediction of ``y.nominal``, "mean" for that of ``y.mean``; by default
            nominal where it is known, and the mean elsewhere. The result says which.
        samples: Sobol points, best a power of 2.
        seed: makes the answer reproducible.

    Returns:
        Probabilities of y's shape and dtype (float32 for half precision). Scores that are
        certainly equal share their probability.

    Raises:
        TypeError: if y is no Gaussian, or the numbers are not whole.
        ValueError: if y is neither a vector nor a matrix, has fewer than two classes, is not finite, or
            its covariance was not kept; if there is no such reference, or y has no nominal scores.
    """
    mean, cov = _checked(y, samples, seed)
    scores, reference = _reference(y, reference)
    with torch.no_grad():
        errors = _errors(y)
        single = mean.ndim == 1
        if single:
            mean, cov, scores = mean.unsqueeze(0), cov.unsqueeze(0), scores.unsqueeze(0)
        predicted = scores.argmax(1)
        win = torch.zeros_like(mean)
        flip, error = mean.new_zeros(len(mean)), mean.new_zeros(len(mean))
        order, counts = _contenders(mean, cov, predicted)
        for count in counts.unique().tolist():  # a row's result does not depend on the others
            rows = counts == count
            classes = order[rows, :count]
            is_own = classes == predicted[rows].unsqueeze(1)
            restricted = _restricted(mean[rows], cov[rows], classes)
            part = _wins(*restricted, samples, seed)
            win[rows] = win[rows].scatter(1, classes, part)
            flip[rows] = part.masked_fill(is_own, 0).sum(1)
            if errors is not None:
                own = is_own.long().argmax(1)
                error[rows] = flip_error(*restricted, errors.of(rows, classes), part, own)
        dtype = torch.promote_types(y.dtype, torch.float32)
        win, flip, error = win.to(dtype), flip.to(dtype), error.to(dtype)
        if single:
            win, predicted, flip, error = win[0], predicted[0], flip[0], error[0]
    return Flip(win, predicted, flip, reference, None if errors is None else error)


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


def _reference(y: Gaussian, wanted: str | None) -> tuple[Tensor, str]:
    """The scores whose largest is the prediction, and what they are called.

    Returns:
        The two.

    Raises:
        ValueError: if there are none.
    """
    if wanted not in (None, "nominal", "mean"):
        raise ValueError(f'reference must be "nominal" or "mean", not {wanted!r}')
    told = y.provenance
    is_known = told is not None and told.nominal is not None
    if wanted == "mean" or (wanted is None and not is_known):
        return y.loc.detach(), "mean"
    scores = y.nominal  # which says why, if it is not known
    if bool(scores.isnan().any()):
        raise ValueError(
            'the model\'s own output at the mean is NaN; take reference="mean" for the mean scores'
        )
    return scores, "nominal"


def _errors(y: Gaussian) -> ScoreErrors | None:
    """How well the scores are known, if the method says so."""
    told = y.provenance
    if told is None or told.standard_error is None:
        return None
    of_mean, of_std = (
        error.detach().double().reshape(-1, error.shape[-1]) for error in y.standard_error
    )
    samples = told.options.get("samples")
    return ScoreErrors(of_mean, of_std, samples if isinstance(samples, int) else None)


def _contenders(mean: Tensor, cov: Tensor, predicted: Tensor) -> tuple[Tensor, Tensor]:
    """The classes that matter: the favourite, which has the largest mean, rivals, and the predicted one.

    A class wins at most as often as it is ahead of the favourite. The prediction flips at least as often as
    the strongest rival is ahead, or half of the time if it is not the favourite itself. So all classes whose
    chances together are a millionth of that can go.

    Returns:
        All classes in the order of their chances, (batch, classes), and how many of them matter, (batch,).
    """
    first = mean.argmax(1, keepdim=True)
    var = cov.diagonal(dim1=-2, dim2=-1)
    between = cov.gather(1, first.unsqueeze(-1).expand(-1, 1, var.shape[1])).squeeze(1)
    apart = (var + var.gather(1, first) - 2 * between).clamp_min(0)
    gap = mean.gather(1, first) - mean
    ahead = upper_tail(gap / apart.sqrt())  # 0/0 is a tie
    ahead = torch.where(apart > 0, ahead, (gap == 0).double())
    ahead = ahead.scatter(1, predicted.unsqueeze(1), 0.5).scatter(1, first, 2.0)
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
