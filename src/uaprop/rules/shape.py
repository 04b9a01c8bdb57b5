"""Rearrangements: every output element is one of the input's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import UnsupportedOperation
from ..kinds import Random, Select, plain
from ..numerics.layout import usual
from ..registry import rule

T = torch.Tensor


_CONVERSIONS = {
    T.detach,
    T.float,
    T.double,
    T.half,
    T.bfloat16,
    T.cpu,
    T.cuda,
    torch.clone,
    T.clone,
}
_VIEWS = {T.view, T.view_as}  # what torch refuses where it would have to copy


def refuse_integers(*targets: Any) -> None:
    """Conversions by dtype, or to that of another tensor; an index tensor is not a target."""
    for target in targets:
        if isinstance(target, torch.dtype) and not target.is_floating_point:
            raise UnsupportedOperation("", reason=f"a Gaussian cannot have the dtype {target}")


def _of_usual(operation: Callable[..., Any]) -> Callable[..., Any]:
    return lambda t, *args, **kwargs: operation(usual(t), *args, **kwargs)


def _register_selection(operation: Callable[..., Any], *spellings: Callable[..., Any]) -> None:
    converts = operation in _CONVERSIONS
    function = _of_usual(operation) if operation in _VIEWS else operation

    @rule(operation, *spellings)
    def selection(input: Any, *args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if type(arg) is not int:  # a number is neither random nor a dtype
                break
        else:
            if not kwargs and isinstance(input, Random):
                return Select((input,), lambda t: function(t, *args), converts=converts)
        # A second random operand (view_as, type_as) counts for its shape or dtype only.
        args = tuple(map(plain, args))
        if kwargs:
            kwargs = {name: plain(value) for name, value in kwargs.items()}
        if not isinstance(input, Random):
            return operation(input, *args, **kwargs)
        refuse_integers(*args, *kwargs.values())
        return Select((input,), lambda t: function(t, *args, **kwargs), converts=converts)

    selection.__name__ = operation.__name__


_BOTH = (
    *("reshape", "flatten", "permute", "transpose", "swapaxes", "swapdims", "t"),
    *("movedim", "moveaxis", "squeeze", "unsqueeze", "flip", "fliplr", "flipud", "roll", "rot90"),
    *("chunk", "split", "tensor_split", "unbind", "narrow", "select", "diagonal", "adjoint"),
    *("index_select", "gather", "take_along_dim", "repeat_interleave", "tile", "broadcast_to"),
    *("clone", "tril", "triu", "ravel", "hsplit", "vsplit", "dsplit", "diag", "masked_select"),
    *("diag_embed", "take"),
)
_METHODS = (
    *("view", "view_as", "reshape_as", "expand", "expand_as", "repeat", "contiguous", "unfold"),
    *("float", "double", "half", "bfloat16", "cpu", "cuda", "detach"),
)

for _name in _BOTH:
    _register_selection(getattr(torch, _name))
    _register_selection(getattr(T, _name))
for _name in _METHODS:
    _register_selection(getattr(T, _name))
# torch.Tensor.unflatten calls super(), which torch.compile cannot follow from outside
_register_selection(torch.unflatten, torch.Tensor.unflatten)
for _operation in (F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle):
    _register_selection(_operation)


@rule(T.to)
def to(input: Any, *args: Any, **kwargs: Any) -> Any:
    args = tuple(plain(a) for a in args)
    if not isinstance(input, Random):
        return T.to(input, *args, **kwargs)
    dtypes = tuple(a.dtype for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor))
    refuse_integers(*args, *kwargs.values(), *dtypes)
    return Select((input,), lambda t: t.to(*args, **kwargs), converts=True)


@rule(T.type_as)
def type_as(input: Any, other: Any) -> Any:
    return to(input, plain(other).dtype)


@rule(T.__getitem__)
def getitem(input: Any, index: Any) -> Any:
    parts = index if isinstance(index, tuple) else (index,)
    if any(isinstance(part, Random) for part in parts):
        raise UnsupportedOperation("", reason="its index is random")
    return Select((input,), lambda t: t[index])
