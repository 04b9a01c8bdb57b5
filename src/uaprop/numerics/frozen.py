"""Convolutions with weights that are derived from a frozen model's, under ``torch.compile``.

A compiled program has the model's weights as arguments, and would square and scale them in every call.
Here that is done once, and the result kept in the order in memory that the processor's library wants it in,
which every convolution would otherwise have to bring it into. Weights that were written to are noticed.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from .constants import Constants
from .moments import is_for_inductor

__all__ = ["Convolution", "forget", "frozen", "frozen_pair", "is_frozen"]


class Convolution(NamedTuple):
    """The arguments of a convolution of pictures, as ``F.conv2d`` takes them."""

    stride: Any
    padding: Any
    dilation: Any
    groups: int

    def pairs(self) -> Convolution | None:
        """With two numbers each; None for a padding by name."""
        if isinstance(self.padding, str):
            return None
        stride, padding, dilation = (
            [n, n] if isinstance(n, int) else [n[0], n[-1]] for n in self[:3]
        )
        return Convolution(stride, padding, dilation, self.groups)


def is_frozen(x: Tensor, weight: Tensor) -> bool:
    """Whether a convolution of pictures is being compiled, for a CPU and without gradients."""
    return (
        x.ndim == weight.ndim == 4
        and x.is_cpu
        and x.dtype == weight.dtype == torch.float32
        and is_for_inductor(x, weight)
    )


def frozen(
    x: Tensor,
    weight: Tensor,
    power: int,
    factor: Tensor | None,
    shift: Tensor | None,
    how: Convolution,
) -> Tensor:
    """A convolution with ``weight**power``, each channel of which is multiplied by a factor.

    Args:
        x: ``(batch, channels, height, width)``.
        weight: of the model.
        power: 1, or 2 for variances.
        factor: ``(out channels,)``.
        shift: added to the result, ``(out channels,)``.
        how: the convolution, by pairs of numbers.

    Returns:
        The convolution's result, with the channels last in memory.
    """
    factor, shift = (None if t is None else t.to(x.dtype) for t in (factor, shift))
    result: Tensor = torch.ops.uaprop.frozen_convolution(x, weight, power, factor, shift, *how)
    return result


def frozen_pair(
    mean: Tensor, var: Tensor, weight: Tensor, factor: Tensor, shift: Tensor, how: Convolution
) -> tuple[Tensor, Tensor]:
    """Both of :func:`frozen`: ``mean`` with the weights, ``var`` with the squares of weights and factor.

    Whether the weights were written to is looked up once for both.

    Returns:
        The results, with the channels last in memory.
    """
    factor, shift = factor.to(mean.dtype), shift.to(mean.dtype)
    found: tuple[Tensor, Tensor]
    found = torch.ops.uaprop.frozen_convolutions(mean, var, weight, factor, shift, *how)
    return found


class _Derived:
    """What was derived from some weights, for the last factor that it was asked for."""

    def __init__(self, weight: Tensor, *how: object) -> None:
        # by power; each put there at once: threads may share it
        self._last: dict[int, tuple[Tensor | None, Tensor]] = {}

    def packed(
        self, x: Tensor, weight: Tensor, power: int, factor: Tensor | None, how: Convolution
    ) -> Tensor:
        """In memory as a convolution of tensors like ``x`` would have it."""
        last = self._last.get(power)
        if last is None or not _are_equal(factor, last[0]):
            derived = weight.detach() if power == 1 else weight.detach().square()
            if factor is not None:
                derived = derived * factor.view(-1, 1, 1, 1)
                factor = factor.clone()  # its memory is the program's, and used for something else
            self._last[power] = last = factor, _packed(x, derived, how)
        return last[1]


def _are_equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b if a is None or b is None else torch.equal(a, b)


def _packed(x: Tensor, weight: Tensor, how: Convolution) -> Tensor:
    known = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled
    if not known or platform.machine() not in _PACKS:
        return weight
    order: Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        weight, how.padding, how.stride, how.dilation, how.groups, list(x.shape)
    )
    return order


_kept = Constants()
_PACKS = ("x86_64", "AMD64")  # where that order has been seen to pay


def forget(weights: Iterable[Tensor]) -> None:
    """Derive anew what comes from these."""
    _kept.forget(weights)


def _derived(weight: Tensor, how: Convolution) -> _Derived:
    """What was kept of the weights, unless they changed."""
    if isinstance(weight, torch.nn.Parameter) and not weight.is_inference():
        return _kept.get(_Derived, (weight,), (*map(tuple, how[:3]), how.groups))
    return _Derived(weight)  # perhaps the program's own, whose memory becomes another's


def _convolve(
    x: Tensor,
    weight: Tensor,
    power: int,
    factor: Tensor | None,
    shift: Tensor | None,
    *numbers: Any,
) -> Tensor:
    how = Convolution(*numbers)
    return _convolved(_derived(weight, how), x, weight, power, factor, shift, how)


def _convolve_both(
    mean: Tensor, var: Tensor, weight: Tensor, factor: Tensor, shift: Tensor, *numbers: Any
) -> tuple[Tensor, Tensor]:
    how = Convolution(*numbers)
    derived = _derived(weight, how)
    return (
        _convolved(derived, mean, weight, 1, factor, shift, how),
        _convolved(derived, var, weight, 2, factor.square(), None, how),
    )


def _convolved(
    derived: _Derived,
    x: Tensor,
    weight: Tensor,
    power: int,
    factor: Tensor | None,
    shift: Tensor | None,
    how: Convolution,
) -> Tensor:
    x = x.contiguous(memory_format=torch.channels_last)
    w = derived.packed(x, weight, power, factor, how)
    if w.is_mkldnn and x.numel():
        result = torch.ops.mkldnn._convolution_pointwise(
            x, w, shift, how.padding, how.stride, how.dilation, how.groups, "none", [], ""
        )
    else:
        result = F.conv2d(x, w.to_dense() if w.is_mkldnn else w, shift, *how)
    return result.contiguous(memory_format=torch.channels_last)


def _promised(x: Tensor, weight: Tensor, *others: Any) -> Tensor:
    how = others[-len(Convolution._fields) :]
    result = F.conv2d(x, weight, None, *how)
    return torch.empty_like(result, memory_format=torch.channels_last)


def _both_promised(
    mean: Tensor, var: Tensor, weight: Tensor, *others: Any
) -> tuple[Tensor, Tensor]:
    return _promised(mean, weight, *others), _promised(var, weight, *others)


# Inductor is to hand over pictures with the channels last wherever that is what it was traced with.
_library = torch.library.Library("uaprop", "FRAGMENT")
_library.define(
    "frozen_convolution(Tensor x, Tensor weight, int power, Tensor? factor, Tensor? shift, "
    "int[] stride, int[] padding, int[] dilation, int groups) -> Tensor",
    tags=(torch.Tag.needs_fixed_stride_order,),
)
_library.impl("frozen_convolution", _convolve, "CPU")
_library.impl("frozen_convolution", _promised, "Meta")
_library.define(
    "frozen_convolutions(Tensor mean, Tensor var, Tensor weight, Tensor factor, Tensor shift, "
    "int[] stride, int[] padding, int[] dilation, int groups) -> (Tensor, Tensor)",
    tags=(torch.Tag.needs_fixed_stride_order,),
)
_library.impl("frozen_convolutions", _convolve_both, "CPU")
_library.impl("frozen_convolutions", _both_promised, "Meta")
