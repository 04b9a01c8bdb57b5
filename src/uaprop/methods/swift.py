"""Plain tensors through a model, faster than the model by itself: what many draws of an input are worth.

Two things that a single forward pass does not pay for, or cannot know:

- *Layout.* A CPU convolves pictures fastest with their channels last in memory; otherwise it rearranges them
  before and after every convolution, which for small networks takes as long as convolving.
- *Batch norm.* With fixed statistics it is ``a y + b`` for every channel of a convolution's result ``y``, and
  so can be part of the weights. The first pass shows which norms directly follow a convolution whose result
  is used for nothing else; later ones have them in the weights, and end where they take another course.

Neither changes what is computed but for rounding. Where a model cannot be run so, it is run as it is.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ..numerics.convolve import convolve
from ..numerics.layout import has_channels_last

__all__ = ["Swift"]


class Swift:
    """A function of tensors that is called many times, by the faster way until that fails.

    What fails is a ``view`` of a tensor that the other layout has no view of, or a pass that takes another
    course than the first one. An error of the function's own comes up again.

    Args:
        function: of tensors; it returns a tree of them. Weights that it uses stay as they are.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._mode: _Mode | None = _Mode() if torch.backends.mkldnn.is_available() else None

    def __call__(self, *values: Tensor) -> Any:
        """The function's answer, its tensors in the usual layout."""
        if self._mode is None or any(map(is_batchedtensor, values)):
            return self.function(*values)
        copies = [value.clone() for value in values]  # it may write to them, and then fail
        try:
            with self._mode:
                answer = self.function(*copies)
                if isinstance(answer, Tensor):
                    return _usual(answer)
                return pytree.tree_map_only(Tensor, _usual, answer)
        except RuntimeError:
            self._mode = None
            return self.function(*values)


def _usual(tensor: Tensor) -> Tensor:
    return tensor.contiguous() if has_channels_last(tensor) else tensor


class _Pair(NamedTuple):
    """A convolution's weights and those of the norm that follows it."""

    tensors: tuple[
        Tensor | None, ...
    ]  # weight and bias; the norm's mean, variance, weight and bias
    eps: float
    versions: tuple[int, ...]

    @classmethod
    def of(cls, convolution: tuple[Any, ...], norm: tuple[Any, ...], eps: float) -> _Pair:
        tensors = (*convolution, *norm)
        return cls(tensors, eps, _versions(tensors))

    def is_of(self, first: int, *tensors: Any) -> bool:
        """Whether these are its tensors, the first of them that many places in, as they were."""
        mine = self.tensors[first : first + len(tensors)]
        same = all(a is b for a, b in zip(mine, tensors, strict=True))
        return same and _versions(self.tensors) == self.versions

    def folded(self) -> tuple[Tensor, Tensor]:
        """One convolution: with ``a = γ/√(v + ε)``, the weights ``a w`` and the bias ``a (b - m) + β``."""
        weight, bias, mean, var, gain, shift = self.tensors
        assert weight is not None
        assert mean is not None
        assert var is not None
        factor = (var.double() + self.eps).rsqrt()
        factor = factor if gain is None else factor * gain
        offset = factor * ((0 if bias is None else bias) - mean.double())
        offset = offset if shift is None else offset + shift
        scaled = (weight * factor.view(-1, 1, 1, 1)).to(weight.dtype)
        return scaled.contiguous(memory_format=torch.channels_last), offset.to(weight.dtype)


def _versions(tensors: tuple[Tensor | None, ...]) -> tuple[int, ...]:
    return tuple(t._version for t in tensors if t is not None)


class _Last(NamedTuple):
    """The convolution just made, if a norm may follow."""

    number: int
    result: Tensor
    weights: tuple[Any, ...]
    pair: _Pair | None  # if its norm has been applied


class _Spent(NamedTuple):
    """A convolution's result that has been normalised, and should be used for nothing else."""

    number: int
    has_norm: bool  # it is not what the model takes it for
    result: weakref.ref[Tensor]


class _Mode(TorchFunctionMode):
    """Within it, convolutions of pictures have channels last, and known norms in their weights."""

    def __init__(self) -> None:
        super().__init__()
        self._pairs: dict[int, _Pair] = {}  # by the number of the convolution in a pass
        self._folded: dict[int, tuple[Tensor, Tensor]] = {}
        self._start()

    def _start(self) -> None:
        self._count = 0
        self._last: _Last | None = None
        self._spent: list[_Spent] = []

    def __enter__(self) -> _Mode:
        self._start()
        super().__enter__()
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        super().__exit__(kind, value, traceback)
        last = self._last
        self._last = None
        if kind is None:
            _insist(last is None or last.pair is None)
            for spent in self._spent:
                if spent.result() is not None:  # part of the answer, or kept somewhere
                    self._used(spent)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """The function's own answer, but for convolutions and norms."""
        kwargs = kwargs or {}
        if func in _LOOKS:
            return func(*args, **kwargs)
        if self._spent:
            self._watch(args, kwargs)
        last, self._last = self._last, None
        if func is torch.conv2d and args and _is_slow(args[0]):
            _insist(last is None or last.pair is None)
            return self._convolve(*args, **kwargs)
        if last is not None:
            if func is F.batch_norm and args and args[0] is last.result:
                return self._normalise(last, args, kwargs)
            _insist(last.pair is None)
        _insist(func not in _OF_STORAGE)
        return func(*args, **kwargs)

    def _convolve(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *how: Any, **named: Any
    ) -> Tensor:
        number = self._count
        self._count += 1
        pair = self._pairs.get(number)
        used = weight, bias
        if pair is not None and not pair.is_of(0, weight, bias):
            pair = None
        if pair is not None:
            if number not in self._folded:
                self._folded[number] = pair.folded()
            used = self._folded[number]
        y = convolve(x.contiguous(memory_format=torch.channels_last), *used, *how, **named)
        y = y.contiguous(memory_format=torch.channels_last)  # one channel has no layout to hand on
        self._last = _Last(number, y, (weight, bias), pair)
        return y

    def _normalise(self, last: _Last, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The norm of the last convolution's result, which is done if it was in the weights."""
        given = dict(zip(_NORM, args, strict=False)) | kwargs
        norm = tuple(given.get(name) for name in _NORM[1:5])
        fixed = norm[0] is not None and norm[1] is not None and not given.get("training", False)
        eps = given.get("eps", 1e-5)
        y: Tensor = last.result
        if last.pair is not None:
            _insist(fixed and eps == last.pair.eps and last.pair.is_of(2, *norm))
            # the same memory by another name, so that what asks for `y` again is found out
            answer = y.new_empty(0).set_(
                y.untyped_storage(), y.storage_offset(), y.shape, y.stride()
            )
        else:
            answer = F.batch_norm(*args, **kwargs)
            if fixed and not any(
                t is not None and t.is_inference() for t in (*last.weights, *norm)
            ):
                self._pairs[last.number] = _Pair.of(last.weights, norm, eps)
        self._spent.append(_Spent(last.number, last.pair is not None, weakref.ref(y)))
        return answer

    def _watch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See if a normalised convolution's own result is used once more."""
        alive = [(spent, result) for spent in self._spent if (result := spent.result()) is not None]
        if not alive:
            self._spent = []
            return
        given = {id(leaf) for leaf in pytree.tree_leaves((args, kwargs))}
        for spent, result in alive:
            if id(result) in given:
                self._used(spent)
        self._spent = [spent for spent, _ in alive]

    def _used(self, spent: _Spent) -> None:
        _insist(not spent.has_norm)
        self._pairs.pop(spent.number, None)


def _insist(holds: bool) -> None:
    if not holds:
        raise RuntimeError("not to be had by the faster way")


def _is_slow(x: Tensor) -> bool:
    """Whether the usual layout would be rearranged for the convolution, and we may do so instead."""
    return (
        x.ndim == 4
        and x.dtype is torch.float32
        and x.is_cpu
        and not is_batchedtensor(x)
        and not torch.is_autocast_enabled("cpu")
    )


_NORM = (
    "input",
    "running_mean",
    "running_var",
    "weight",
    "bias",
    "training",
    "momentum",
    "eps",
)
# What a norm asks of its input before it begins.
_LOOKS = frozenset(
    {Tensor.dim, Tensor.size, *(vars(torch._C.TensorBase)[k].__get__ for k in ("ndim", "shape"))}
)
# What asks where elements are stored, and could answer otherwise for another layout.
_OF_STORAGE = frozenset(
    {
        torch.as_strided,
        Tensor.as_strided,
        Tensor.as_strided_,
        Tensor.data_ptr,
        Tensor.resize_,
        Tensor.set_,
        Tensor.storage,
        Tensor.storage_offset,
        Tensor.stride,
        Tensor.untyped_storage,
    }
)
