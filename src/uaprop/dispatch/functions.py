"""An operation as a plain function of the tensors in place of its random arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from ..kinds import Random
from ..numerics.moments import HALF
from .handle import Handle
from .spellings import Operation

__all__ = ["plain_function", "random_arguments", "widened"]


def _is_random(value: Any) -> bool:
    return isinstance(value, Random)


def random_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Random, ...]:
    """The random values among nested arguments, each once."""
    leaves = pytree.tree_leaves((args, kwargs), is_leaf=_is_random)
    return tuple({id(leaf): leaf for leaf in leaves if isinstance(leaf, Random)}.values())


def plain_function(
    operation: Operation,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    inputs: tuple[Random, ...],
    inplace: bool,
) -> Callable[..., Any]:
    """``operation`` as a function of ``inputs``, all other arguments as given.

    Returns:
        A function of plain tensors. It leaves them alone even where the operation works in place.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=_is_random)
    order = {id(x): i for i, x in enumerate(inputs)}
    places = [(i, order[id(leaf)]) for i, leaf in enumerate(leaves) if id(leaf) in order]

    def function(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for place, which in places:
            filled[place] = tensors[which].clone() if inplace else tensors[which]
        positional, keywords = pytree.tree_unflatten(filled, spec)
        return operation(*positional, **keywords)

    return function


def widened(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of an operation as autocast makes them for one in float32.

    In half precision are plain tensors from parts of the model that nothing random went through. If something
    random is so itself, then that is the model's own dtype, and nothing changes.

    Returns:
        The positional and the keyword arguments.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=_is_random)
    if any(isinstance(leaf, Handle) and leaf.dtype in HALF for leaf in leaves):
        return args, kwargs
    wide = [x.float() if isinstance(x, Tensor) and x.dtype in HALF else x for x in leaves]
    wide_args, wide_kwargs = pytree.tree_unflatten(wide, spec)
    return wide_args, wide_kwargs
