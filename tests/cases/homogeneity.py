"""How the output of each case scales with its input: ``f(c x) = c^degree f(x)`` for ``c > 0``.

Linear maps and noise have degree 1, products of two operands degree 2, up to an offset ``f(0)``. Any other
case has an entry here: its degree, or that it has none. Constants that have the input's unit (a
bound, an ``eps``) scale along, and the entry says how.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from uaprop.rules.ratio import positive_power

from .table import Case, constant, like

__all__ = ["BY_KIND", "DEGREES", "NONE", "Degree", "degree_of"]

Scaled = Callable[[Any, float], Any]


@dataclass(frozen=True)
class Degree:
    """``scaled(c x, c) = c^value · call(x)``; without ``scaled`` it is the call itself."""

    value: float
    scaled: Scaled | None = None


BY_KIND = {"linear": Degree(1.0), "noise": Degree(1.0), "bilinear": Degree(2.0)}

# Functions with a scale of their own, and sums of terms of different degrees.
NONE = {
    # a probability, an exponential, a logarithm
    "softmax", "softmax-two", "softmax-long", "torch_softmax", "softmin", "log_softmax",
    "log_softmax-two", "log_softmax-long", "torch_log_softmax", "logsumexp", "logsumexp-two",
    "aten_softmax", "aten_log_softmax", "scaled_dot_product_attention",
    "scaled_dot_product_attention-mask", "exp", "exp2", "expm1", "sinh", "cosh", "sin", "cos", "erf",
    "pow-base", "log", "log2", "log10", "log1p", "xlogy", "xlogy-random", "logaddexp",
    "logaddexp-random", "logaddexp2", "erfc", "ndtr", "log_ndtr_", "atan", "asin", "acos", "tan",
    "logit_", "logit_-eps",
    # an activation or a gate
    "relu6", "hard_swish", "hardsigmoid", "elu", "selu", "gelu_", "gelu_-1", "silu", "mish_", "sigmoid",
    "sigmoid_in_brief", "tanh", "tanhshrink", "softsign_", "logsigmoid", "glu", "lstm", "lstm_cell", "gru",
    "gru_cell", "rnn_tanh", "rnn_tanh_cell",
    # terms of different degrees
    "addcmul-random", "lerp-random", "logaddexp-itself",
}  # fmt: skip


def _weights(x: Any, *shape: int) -> tuple[Any, Any]:
    return like(constant(*shape, seed=1), x), like(constant(*shape, seed=2), x)


def _far(x: Any, c: float) -> Any:
    return 0.25 * x + 3 * c


def _either_side(x: Any, c: float) -> Any:
    return _far(x, c) * like(torch.tensor([1.0, -1.0, 1.0]), x)


def _bounds(x: Any, c: float) -> Any:
    return c * like(torch.tensor([0.3, float("nan"), -0.2]), x)


def _cell(x: Any, c: float) -> tuple[Any, ...]:
    """State and weights of the recurrent cells' cases, those in the input's unit scaled."""
    bias = like(0.3 * c * constant(2), x)
    weights = like(torch.eye(2), x), like(0.3 * constant(2, 2), x), bias, bias
    return like(c * constant(1, 3, 2), x), weights


DEGREES: dict[str, Degree] = {
    # ------------------------------------------------------------------ scalar functions
    "mul-itself": Degree(2),
    "pow": Degree(3),
    "pow-zero": Degree(0),
    "square": Degree(2),
    "abs": Degree(1),
    "relu": Degree(1),
    "relu-operator": Degree(1),
    "leaky_relu": Degree(1),
    "prelu": Degree(1),
    "hardtanh": Degree(1, lambda x, c: F.hardtanh(x, -c, c)),
    "clamp": Degree(1, lambda x, c: x.clamp(-0.5 * c, 0.7 * c)),
    "clamp-1": Degree(1, lambda x, c: torch.clamp(x, min=-0.5 * c)),
    "clamp-2": Degree(1, lambda x, c: x.clamp(max=c * like(torch.tensor([0.1, 0.5, 1.0]), x))),
    "clamp_min": Degree(1, lambda x, c: x.clamp_min(0.2 * c)),
    "clamp_max": Degree(1, lambda x, c: x.clamp_max(0.2 * c)),
    "clamp-random": Degree(1, lambda x, c: torch.clamp(x[0], x[1] - c, x[2] + c)),
    "clamp_min-random": Degree(1),
    "clamp_max-bound": Degree(1, lambda x, c: torch.clamp_max(like(c * constant(4), x), x)),
    "prelu-scalar": Degree(1),
    "celu": Degree(1, lambda x, c: F.celu(x, 0.5 * c)),
    "softplus": Degree(1, lambda x, c: F.softplus(x, 2.0 / c)),
    "threshold": Degree(1, lambda x, c: F.threshold(x, 0.2 * c, -0.5 * c)),
    "hardshrink": Degree(1, lambda x, c: F.hardshrink(x, 0.4 * c)),
    "softshrink": Degree(1, lambda x, c: F.softshrink(x, 0.3 * c)),
    "rnn_relu_cell": Degree(
        1, lambda x, c: torch.rnn_relu_cell(x, _cell(x, c)[0][0], *_cell(x, c)[1])
    ),
    "rnn_relu": Degree(
        1, lambda x, c: torch.rnn_relu(x, *_cell(x, c), True, 1, 0.0, False, False, False)[1]
    ),
    # ------------------------------------------------------------------ what is positive
    "sqrt": Degree(0.5, lambda x, c: torch.sqrt(_far(x, c))),
    "sqrt-method": Degree(0.5, lambda x, c: _far(x, c).sqrt()),
    "rsqrt": Degree(-0.5, lambda x, c: torch.rsqrt(_far(x, c))),
    "reciprocal": Degree(-1, lambda x, c: _far(x, c).reciprocal()),
    "pow-fraction": Degree(1.5, lambda x, c: _far(x, c) ** 1.5),
    "pow-inverse": Degree(-2, lambda x, c: torch.pow(_far(x, c), -2)),
    "div-constant": Degree(-1, lambda x, c: 2.0 / _far(x, c)),
    "div-tensor": Degree(-1, lambda x, c: like(constant(4, 2, 3), x) / _far(x, c)),
    "div-quotient": Degree(0, lambda x, c: x[:2] / _far(x[2:], c)),
    "reciprocal-signs": Degree(-1, lambda x, c: _either_side(x, c).reciprocal()),
    "pow-signs": Degree(-2, lambda x, c: _either_side(x, c) ** -2),
    "pow-odd": Degree(-3, lambda x, c: _either_side(x, c) ** -3),
    "div-signs": Degree(-1, lambda x, c: -2.0 / _either_side(x, c)),
    "div-quotient-signs": Degree(0, lambda x, c: x[:2] / _either_side(x[2:], c)),
    "power_by_its_making": Degree(1, lambda x, c: positive_power(x.square().sum(-1), 0.5)),
    "power_by_its_making-inverse": Degree(-1),
    # ------------------------------------------------------------------ the largest and the least
    "max_pool1d": Degree(1),
    "max_pool2d": Degree(1),
    "max_pool2d-options": Degree(1),
    "max_pool2d-ceil": Degree(1),
    "max_pool2d-dilated": Degree(1),
    "max_pool3d": Degree(1),
    "adaptive_max_pool1d": Degree(1),
    "adaptive_max_pool2d": Degree(1),
    "adaptive_max_pool2d-global": Degree(1),
    "adaptive_max_pool3d": Degree(1),
    "max_pool1d_with_indices": Degree(1),
    "max_pool2d_with_indices": Degree(1),
    "max_pool3d_with_indices": Degree(1),
    "adaptive_max_pool1d_with_indices": Degree(1),
    "adaptive_max_pool2d_with_indices": Degree(1),
    "adaptive_max_pool3d_with_indices": Degree(1),
    "amax": Degree(1),
    "amax-two": Degree(1),
    "amin": Degree(1),
    "max": Degree(1),
    "max-dim": Degree(1),
    "max-random": Degree(1),
    "min": Degree(1),
    "min-dim": Degree(1),
    "maximum-random": Degree(1),
    "maximum": Degree(1, lambda x, c: torch.maximum(x, like(0.4 * c * constant(2, 1), x))),
    "minimum-random": Degree(1),
    "minimum": Degree(1, lambda x, c: torch.minimum(like(0.4 * c * constant(3), x), x)),
    "sort": Degree(1),
    "sort-stable": Degree(1),
    "msort": Degree(1),
    "topk": Degree(1),
    "topk-smallest": Degree(1),
    "kthvalue": Degree(1),
    "median": Degree(1),
    "median-dim": Degree(1),
    "order_of": Degree(1),
    "fmax": Degree(1, lambda x, c: x.fmax(_bounds(x, c))),
    "fmin": Degree(1, lambda x, c: torch.fmin(x, _bounds(x, c))),
    # ------------------------------------------------------------------ normalisation
    "layer_norm": Degree(0, lambda x, c: F.layer_norm(x, (8,), *_weights(x, 8), eps=1e-5 * c * c)),
    "layer_norm-two": Degree(0, lambda x, c: F.layer_norm(x, (4, 4), eps=0.1 * c * c)),
    "layer_norm-small": Degree(0, lambda x, c: F.layer_norm(x, (5,), eps=1e-5 * c * c)),
    "torch_layer_norm": Degree(
        0, lambda x, c: torch.layer_norm(x, (16,), *_weights(x, 16), 1e-5 * c * c)
    ),
    "rms_norm": Degree(
        0,
        lambda x, c: F.rms_norm(x, (8,), like(constant(8), x), torch.finfo(x.dtype).eps * c * c),
    ),
    "group_norm": Degree(0, lambda x, c: F.group_norm(x, 2, *_weights(x, 4), 1e-3 * c * c)),
    "torch_group_norm": Degree(0, lambda x, c: torch.group_norm(x, 2, eps=1e-5 * c * c)),
    "instance_norm": Degree(
        0,
        lambda x, c: F.instance_norm(x, None, None, *_weights(x, 2), True, 0.1, 1e-5 * c * c),
    ),
    "batch_norm-training": Degree(
        0, lambda x, c: F.batch_norm(x, None, None, *_weights(x, 2), True, 0.1, 1e-5 * c * c)
    ),
    "local_response_norm": Degree(1, lambda x, c: F.local_response_norm(x, 3, 0.5 / (c * c))),
    # ------------------------------------------------------------------ spreads and norms
    "var": Degree(2),
    "var-biased": Degree(2),
    "std": Degree(1),
    "var_mean": Degree(2),
    "std_mean": Degree(1),
    "vector_norm": Degree(1),
    "vector_norm-first": Degree(1),
    "vector_norm-fourth": Degree(1, lambda x, c: torch.linalg.vector_norm(0.2 * x + c, 4, 1)),
    "vector_norm-alone": Degree(1),
    "vector_norm-largest": Degree(1),
    "vector_norm-smallest": Degree(
        1, lambda x, c: torch.linalg.vector_norm(x + 9 * c, -torch.inf, 1, True)
    ),
    "norm": Degree(1),
    "norm-dims": Degree(1),
    "norm_method": Degree(1),
    "linalg_norm": Degree(1),
    "pairwise_distance": Degree(1, lambda x, c: F.pairwise_distance(x[:1], x[1:], eps=1e-6 * c)),
    "normalize": Degree(0, lambda x, c: F.normalize(x, eps=1e-12 * c)),
    "normalize-dim": Degree(0, lambda x, c: F.normalize(x, dim=-2, eps=1e-12 * c)),
    "cosine_similarity": Degree(0),
    "cosine_similarity-random": Degree(0),
    "lp_pool1d": Degree(1),
    "lp_pool2d": Degree(1),
    "lp_pool3d": Degree(1),
    # ------------------------------------------------------------------ products
    "bilinear-random": Degree(2),
    "dot-itself": Degree(2),
    "vecdot-itself": Degree(2),
    "prod": Degree(3),
    "prod-dim": Degree(4),
    "prod-all": Degree(6, lambda x, c: (c + 0.2 * x).prod()),
}


def degree_of(case: Case) -> Degree | None:
    """The entry of a case, else its kind's; None if it has no degree.

    Raises:
        KeyError: if nothing is said of the case.
    """
    if case.name in NONE:
        return None
    if case.name in DEGREES:
        return DEGREES[case.name]
    return BY_KIND[case.kind]
