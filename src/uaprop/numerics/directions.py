"""The cosine of the angle between two independent vectors of independent Gaussian elements.

``y = a/√(st)`` with ``a = Σ x_i w_i``, ``s = Σ x²`` and ``t = Σ w²``. Where both lengths vary little, ``a``
is treated as the element and ``st`` as the normaliser of :mod:`~uaprop.numerics.normalised`. Else the
directions ``u = x/√s`` and ``ω = w/√t`` are independent of each other, and exactly::

    E[y] = Σ_i E[u_i] E[ω_i]                  E[y²] = Σ_ij E[u_i u_j] E[ω_i ω_j]

where under each exponential tilt (:mod:`~uaprop.numerics.tilted`) the elements of a vector are
independent, of means ``μ`` and variances ``c``. So for a tilt of ``x`` and one of ``w`` the second is
``(μ·ν)² + Σ (μ² d + c ν² + c d)``, summed with the weights of both.
"""

from __future__ import annotations

from torch import Tensor

from .normalised import Normaliser, Pair, normalised, typical_size, where_wide, within
from .tilted import integral, of_rows, weights

__all__ = ["cosine"]


def cosine(mean: Tensor, var: Tensor) -> Pair:
    """Mean and variance of the cosine along the last dimension.

    Args:
        mean: of both vectors, ``(2, …, elements)``.
        var: of the same shape.

    Returns:
        Two tensors without the first and the last dimension.
    """
    size = typical_size(mean, var, 0.0)
    (m, w), (v, u) = mean / size, var / size / size
    parts = _lengths(m, v, w, u)
    found = where_wide(parts, normalised(parts), _directions, m, v, w, u)
    first, second = within(*found, 1.0)
    if m.shape[-1] == 1:  # a sign, whose square is 1
        second = (1 - first) * (1 + first)
    return first.squeeze(-1), second.squeeze(-1)


def _lengths(m: Tensor, v: Tensor, w: Tensor, u: Tensor) -> Normaliser:
    """The product and its normaliser, ``(…, 1)``."""

    def squares(m: Tensor, v: Tensor, w: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        """Mean and variance of ``Σx²``, its covariance with ``a`` and with ``(a - E[a])²``."""
        return (
            (m.square() + v).sum(-1, True),
            (v * (4 * m.square() + 2 * v)).sum(-1, True),
            2 * (m * v * w).sum(-1, True),
            2 * (v.square() * (w.square() + u)).sum(-1, True),
        )

    s, s_var, s_cov, s_third = squares(m, v, w, u)
    t, t_var, t_cov, t_third = squares(w, u, m, v)
    return Normaliser(
        (m * w).sum(-1, True),
        (m.square() * u + v * w.square() + v * u).sum(-1, True),
        s * t_cov + t * s_cov,
        s * t_third + t * s_third + 2 * s_cov * t_cov,
        s * t,
        s.square() * t_var + t.square() * s_var + s_var * t_var,
    )


def _directions(m: Tensor, v: Tensor, w: Tensor, u: Tensor) -> Pair:
    """First and second moment by the integrals, ``(…, 1)``."""
    x, y = of_rows(m, v, 0.0, False), of_rows(w, u, 0.0, False)
    count = m.shape[-1]
    first = (integral(x, x.mean, -0.5) * integral(y, y.mean, -0.5)).sum(-1, True) / count
    # nodes second last: (…, nodes, elements)
    (mu, c), (nu, d) = ((t.mean.movedim(0, -2), t.var.movedim(0, -2)) for t in (x, y))
    second = (mu @ nu.mT).square() + mu.square() @ d.mT + c @ (nu.square() + d).mT
    a, b = (weights(t, -1.0).movedim(0, -2) for t in (x, y))
    return first, (a.mT @ second @ b).squeeze(-1) / count**2
