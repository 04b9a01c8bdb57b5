"""Rearrangements: every output element is one of the input's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import UnsupportedOperation
from ..kinds import Random, Select, plain
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


def refuse_integers(*targets: Any) -> None:
    """Conversions by dtype, or to that of another tensor; an index tensor is not a target."""
    for target in targets:
        if isinstance(target, torch.dtype) and not target.is_floating_point:
            raise UnsupportedOperation("", reason=f"a Gaussian cannot have the dtype {target}")


def _register_selection(operation: Callable[..., Any], *spellings: Callable[..., Any]) -> None:
    converts = operation in _CONVERSIONS

    @rule(operation, *spellings)
    def selection(input: Any, *args: Any, **kwargs: Any) -> Any:
        for arg in args:
            if type(arg) is not int:  # a number is neither random nor a dtype
                break
        else:
            if not kwargs and isinstance(input, Random):
                return Select((input,), lambda t: operation(t, *args), converts=converts)
        # A second random operand (view_as, type_as) counts for its shape or dtype only.
        args = tuple(map(plain, args))
        if kwargs:
            kwargs = {name: plain(value) for name, value in kwargs.items()}
        if not isinstance(input, Random):
            return operation(input, *args, **kwargs)
        refuse_integers(*args, *kwargs.values())
        return Select((input,), lambda t: operation(t, *args, **kwargs), converts=converts)

    selection.__name__ = operation.__name__


_BOTH = (
    *("reshape", "flatten", "permute", "transpose", "swapaxes", "swapdims", "t"),
    *("movedim", "moveaxis", "squeeze", "unsqueeze", "flip", "fliplr", "flipud", "rot90"),
    *("chunk", "split", "tensor_split", "unbind", "narrow", "select", "diagonal", "adjoint"),
    *("index_select", "gather", "take_along_dim", "repeat_interleave", "tile", "broadcast_to"),
    *("clone", "tril", "triu", "ravel", "hsplit", "vsplit", "dsplit", "diag", "masked_select"),
    *("diag_embed", "take", "positive", "split_with_sizes"),
)
_COPIES = (  # views that are copied at once
    *("alias", "diagonal", "expand", "narrow", "permute", "select", "slice", "split"),
    *("split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view"),
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
for _name in _COPIES:
    _register_selection(getattr(torch, f"{_name}_copy"))
_register_selection(torch.linalg.diagonal)
# torch.Tensor.unflatten calls super(), which torch.compile cannot follow from outside
_register_selection(torch.unflatten, torch.Tensor.unflatten)
for _operation in (F.pixel_shuffle, F.pixel_unshuffle, F.channel_shuffle):
    _register_selection(_operation)


@rule(torch.roll, T.roll)
def roll(input: Any, shifts: Any, dims: Any = ()) -> Any:
    if not isinstance(input, Random):
        return torch.roll(input, shifts, dims)
    # torch.vmap rolls a stack of scalars along the stack.
    return Select((input,), lambda t: t.roll(shifts, dims) if t.ndim else t.clone())


def _each(tensors: tuple[Any, ...], shaped: Callable[[Any], Any]) -> Any:
    """What torch does with one tensor, with several, or with a list of them."""
    several = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    found = tuple(shaped(tensor) for tensor in several)
    return found[0] if len(found) == 1 and several is tensors else found


def _as_tensor(value: Any) -> Any:
    return value if isinstance(value, Random) else torch.as_tensor(value)


def _register_atleast(operation: Callable[..., Any], dims: int) -> None:
    def shaped(tensor: Any) -> Any:
        tensor = _as_tensor(tensor)
        if tensor.ndim >= dims:
            return tensor
        shape = list(tensor.shape) or [1]
        if dims > 1 and len(shape) == 1:
            shape = [1, *shape]
        return tensor.reshape(shape + [1] * (dims - len(shape)))

    @rule(operation, getattr(torch._VF, operation.__name__))  # which a list goes to
    def atleast(*tensors: Any) -> Any:
        return _each(tensors, shaped)

    atleast.__name__ = operation.__name__


_register_atleast(torch.atleast_1d, 1)
_register_atleast(torch.atleast_2d, 2)
_register_atleast(torch.atleast_3d, 3)


@rule(torch.broadcast_tensors, getattr(torch._VF, "broadcast_tensors"))  # noqa: B009
def broadcast_tensors(*tensors: Any) -> Any:
    shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
    return tuple(tensor.expand(shape) for tensor in tensors)


@rule(torch.meshgrid, getattr(torch._VF, "meshgrid"))  # noqa: B009
def meshgrid(*tensors: Any, indexing: str | None = None) -> Any:
    several = tensors[0] if len(tensors) == 1 and isinstance(tensors[0], list | tuple) else tensors
    if indexing not in (None, "ij", "xy"):
        raise ValueError(f"meshgrid: indexing must be 'ij' or 'xy', not {indexing!r}")
    sizes = [tensor.shape.numel() for tensor in several]
    grids = []
    for i, tensor in enumerate(several):
        alone = [size if i == j else 1 for j, size in enumerate(sizes)]
        grid = tensor.reshape(alone).expand(sizes)
        swapped = indexing == "xy" and len(sizes) > 1
        grids.append(grid.transpose(0, 1) if swapped else grid)
    return tuple(grids)


@rule(torch.detach_copy)  # of which torch has no derivative
def detach_copy(input: Any) -> Any:
    return input.detach().clone()


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
