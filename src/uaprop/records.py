"""Objects that models take and return, opened so that torch's trees can walk them.

torch walks tuples, lists, dicts and what is registered with it. A dataclass is not: it would count as one
constant, and the tensors in it would never be seen. Here such an object becomes a :class:`Record`, which
torch can walk, and is made again afterwards as ``copy.copy`` would: of the same type, with the same
attributes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import ItemsView, KeysView, Mapping, ValuesView
from types import (
    BuiltinFunctionType,
    FunctionType,
    GeneratorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .kinds import Random

__all__ = ["Record", "closed", "holds_tensors", "opened"]

_DEPTH = 6  # objects in objects that are looked into
_CONSTANTS = (
    *(str, bytes, int, float, complex, type(None), type, nn.Module),
    *(FunctionType, BuiltinFunctionType, MethodType, ModuleType),
)
_VIEWS = (KeysView, ValuesView, ItemsView)
_CONTAINERS = (Mapping, *_VIEWS, list, tuple, set, frozenset)
_READ_ONCE = (GeneratorType, map, filter, zip)  # what is in them is not known before


class Record:
    """An object's attributes, as a tree.

    Args:
        kind: the object's type.
        names: of its attributes.
        values: of its attributes, opened.
    """

    __slots__ = ("kind", "names", "values")

    def __init__(self, kind: type, names: tuple[str, ...], values: list[Any]) -> None:
        self.kind = kind
        self.names = names
        self.values = values

    def made(self) -> Any:
        """An object of the type, without a call of its ``__init__``."""
        kind: Any = self.kind
        value = kind.__new__(kind)
        for name, attribute in zip(self.names, self.values, strict=True):
            object.__setattr__(value, name, closed(attribute))  # a frozen dataclass has its own
        return value


pytree.register_pytree_node(
    Record,
    lambda record: (record.values, (record.kind, record.names)),
    lambda values, context: Record(context[0], context[1], list(values)),
    flatten_with_keys_fn=lambda record: (
        [
            (pytree.GetAttrKey(name), value)
            for name, value in zip(record.names, record.values, strict=True)
        ],
        (record.kind, record.names),
    ),
)


def _is_random(value: Any) -> bool:
    return isinstance(value, Random)


def _ends(value: Any) -> bool:
    return isinstance(value, Random | Record)


def opened(tree: Any) -> Any:
    """The tree with a :class:`Record` for every object that holds tensors or random values.

    Args:
        tree: arguments or results of a model.

    Returns:
        The tree itself if there is no such object in it.

    Raises:
        TypeError: if such an object cannot be opened, naming its type.
    """
    return _opened(tree, ())


def _opened(tree: Any, inside: tuple[int, ...]) -> Any:
    if isinstance(tree, Tensor | Random):
        return tree
    leaves, spec = pytree.tree_flatten(tree, is_leaf=_is_random)
    found = [_record(leaf, inside) for leaf in leaves]
    if all(new is old for new, old in zip(found, leaves, strict=True)):
        return tree
    return pytree.tree_unflatten(found, spec)


def _record(leaf: Any, inside: tuple[int, ...]) -> Any:
    """An object that holds tensors as a record; anything else as it is."""
    if isinstance(leaf, (Tensor, Random, *_CONSTANTS)):
        return leaf
    if isinstance(leaf, _READ_ONCE):
        raise TypeError(
            f"a {type(leaf).__qualname__} among the model's arguments or results can be read only once; pass "
            "and return a tuple or list"
        )
    attributes = _attributes(leaf)
    if not attributes and not isinstance(leaf, _CONTAINERS):
        return leaf
    kind = type(leaf)
    if _is_cache(kind) or not holds_tensors(leaf):
        return leaf
    if id(leaf) in inside:
        raise TypeError(
            f"a {kind.__qualname__} among the model's arguments or results holds itself"
        )
    if not _can_be_made(leaf):
        raise TypeError(
            f"a {kind.__module__}.{kind.__qualname__} holds tensors that uaprop cannot see; pass and return "
            "tensors in tuples, lists, dicts, dataclasses or plain objects"
        )
    values = [_opened(value, (*inside, id(leaf))) for value in attributes.values()]
    return Record(kind, tuple(attributes), values)


def _is_cache(kind: type) -> bool:
    """Whether it is what a language model of transformers keeps for its next call: not a result."""
    return kind.__module__.startswith("transformers.") and kind.__name__.endswith("Cache")


def _can_be_made(leaf: Any) -> bool:
    """Whether an object consists of its attributes and nothing else."""
    kind: Any = type(leaf)
    if kind is SimpleNamespace:
        return True
    builtin = (dict, *_VIEWS, list, tuple, set, frozenset, str, bytes, int, float)
    return (
        not issubclass(kind, builtin)
        and (dataclasses.is_dataclass(kind) or kind.__reduce_ex__ is object.__reduce_ex__)
        and (dataclasses.is_dataclass(kind) or kind.__reduce__ is object.__reduce__)
        and kind.__new__ is object.__new__
    )


def _attributes(leaf: Any) -> dict[str, Any]:
    """What an object holds: in its dictionary and in its slots."""
    found = dict(getattr(leaf, "__dict__", ()))
    for owner in type(leaf).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name.startswith("__") and not name.endswith("__"):  # as Python stores private names
                name = f"_{owner.__name__.lstrip('_')}{name}"
            if name not in ("__dict__", "__weakref__") and hasattr(leaf, name):
                found[name] = getattr(leaf, name)
    return found


def holds_tensors(tree: Any) -> bool:
    """Whether there is a tensor or a random value in a tree, or in an object in it."""
    return _found(tree, _DEPTH, set())


def _found(tree: Any, depth: int, seen: set[int]) -> bool:
    for leaf in pytree.tree_leaves(tree, is_leaf=_is_random):
        if isinstance(leaf, Tensor | Random):
            return True
        if depth == 0 or id(leaf) in seen or isinstance(leaf, _CONSTANTS):
            continue
        seen.add(id(leaf))
        items = list(_attributes(leaf).values())
        if isinstance(leaf, Mapping):
            items += leaf.values()
        elif isinstance(leaf, _CONTAINERS):
            items += leaf
        if any(_found(item, depth - 1, seen) for item in items):
            return True
    return False


def closed(tree: Any) -> Any:
    """The tree with the objects again that :func:`opened` made records of."""
    if isinstance(tree, Tensor | Random):
        return tree
    leaves, spec = pytree.tree_flatten(tree, is_leaf=_ends)
    if not any(isinstance(leaf, Record) for leaf in leaves):
        return tree
    found = [leaf.made() if isinstance(leaf, Record) else leaf for leaf in leaves]
    return pytree.tree_unflatten(found, spec)
