"""What a model and its arguments are known by, to remember what was found out about them."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from types import FunctionType, MethodType
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from .arguments import Arguments
from .reachable import roots_of

__all__ = ["Verdicts"]

T = TypeVar("T")

_ATOMS = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, type)


class Verdicts(Generic[T]):
    """What was found out about models, for each with the form of its arguments.

    A module is known by itself, by its parts and by their plain attributes, such as flags; a function by its
    code and what that refers to. What is known by none of these is found out again each time.

    Args:
        most: how many are remembered; the one that was asked for least recently is forgotten.
    """

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._known: OrderedDict[Hashable, T] = OrderedDict()

    def of(self, model: Callable[..., Any], arguments: Arguments, find: Callable[[], T]) -> T:
        """What is known, or what ``find`` finds."""
        key = _key(model, arguments)
        if key is None:
            return find()
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        found = self._known[key] = find()
        if len(self._known) > self._most:
            self._known.popitem(last=False)
        return found


def _key(model: Callable[..., Any], arguments: Arguments) -> Hashable | None:
    own, form = _of_model(model), [_form(leaf) for leaf in arguments.constants]
    if own is None or None in form:
        return None
    random = tuple((tuple(x.shape), x.dtype, x.device) for x in arguments.gaussians)
    return own, random, tuple(form), torch.is_grad_enabled()


def _of_model(model: Any, depth: int = 4) -> Hashable | None:
    """What a model is known by; None if that cannot be told."""
    if depth == 0:  # a function may refer to itself
        return None
    if isinstance(model, nn.Module):
        parts = tuple((type(module), _flags(module)) for module in model.modules())
        return weakref.ref(model), parts
    if isinstance(model, MethodType):
        both = _of_model(model.__self__, depth - 1), _of_model(model.__func__, depth - 1)
        return None if None in both else both
    if not isinstance(model, FunctionType):
        return None
    try:
        inside = [cell.cell_contents for cell in model.__closure__ or ()]
    except ValueError:  # not assigned yet
        return None
    inside += [*(model.__defaults__ or ()), *(model.__kwdefaults__ or {}).values()]
    found: list[Hashable] = []
    for value in (*inside, *roots_of(model)):
        if isinstance(value, _ATOMS):
            found.append((type(value), value))
        elif isinstance(value, nn.Module | FunctionType):
            found.append(_of_model(value, depth - 1))
        else:
            return None
    return None if None in found else (weakref.ref(model.__code__), tuple(found))


def _flags(module: nn.Module) -> Hashable:
    attributes = vars(module)
    return tuple([(k, v) for k, v in attributes.items() if isinstance(v, _ATOMS) and v == v])


def _form(leaf: Any) -> Hashable | None:
    """What a plain argument is known by: a number by its value, a tensor by its form."""
    if isinstance(leaf, Tensor):
        return tuple(leaf.shape), leaf.dtype, leaf.device
    return (type(leaf), leaf) if isinstance(leaf, _ATOMS) else None
