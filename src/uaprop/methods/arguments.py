"""A model's arguments with the random ones among them, and how to cut a batch into pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from ..gaussian import Gaussian
from ..provenance import Provenance
from ..records import closed, opened
from .model_state import current_state

__all__ = ["Arguments", "explained", "is_gaussian", "mapped"]


def is_gaussian(value: Any) -> bool:
    """Whether a value is a Gaussian: the leaves of an argument tree."""
    return isinstance(value, Gaussian)


def mapped(function: Callable[[Gaussian], Any], answer: Any) -> Any:
    """A model's answer with the function's value in the place of every Gaussian."""
    if isinstance(answer, Gaussian):
        return function(answer)

    def on_gaussians(value: Any) -> Any:
        return function(value) if is_gaussian(value) else value

    return closed(pytree.tree_map(on_gaussians, opened(answer), is_leaf=is_gaussian))


def explained(answer: Any, told: Provenance) -> Any:
    """A model's answer, every Gaussian in it with an account of where it comes from."""
    return mapped(lambda value: value.with_provenance(told), answer)


class Arguments:
    """Positional and keyword arguments of a model, nested as it likes.

    Attributes:
        gaussians: the random ones, in order, each once: the same Gaussian in two places is one random
            tensor.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._spec: pytree.TreeSpec | None = None  # of positional ones without a structure
        self._leaves: list[Any] = list(args)
        if kwargs or not all(isinstance(value, Gaussian | Tensor) for value in args):
            tree = opened((args, kwargs))
            self._leaves, self._spec = pytree.tree_flatten(tree, is_leaf=is_gaussian)
        unique = {id(leaf): leaf for leaf in self._leaves if is_gaussian(leaf)}
        self.gaussians: list[Gaussian] = list(unique.values())
        numbers = {key: i for i, key in enumerate(unique)}
        self._places = [
            (place, numbers[id(leaf)])
            for place, leaf in enumerate(self._leaves)
            if is_gaussian(leaf)
        ]

    @classmethod
    def of(cls, x: Any, keywords: Mapping[str, Any] | None = None) -> Arguments:
        """What a model is called with.

        Args:
            x: one argument, a tuple or list of positional ones, or a dict of keyword ones; None for none.
            keywords: keyword arguments.

        Returns:
            The arguments.

        Raises:
            TypeError: if an argument is given twice.
        """
        keywords = dict(keywords or {})
        if isinstance(x, Mapping):
            if twice := sorted(set(x) & set(keywords)):
                raise TypeError(f"the model's argument {twice[0]!r} is given twice")
            return cls((), {**x, **keywords})
        if x is None:
            return cls((), keywords)
        return cls(tuple(x) if isinstance(x, tuple | list) else (x,), keywords)

    def run(self, model: Callable[..., Any], values: Sequence[Any]) -> Any:
        """The model's answer with other values in the places of the random arguments.

        Objects in it are opened (:mod:`~uaprop.records`), so that all of it is a tree. Inside of
        :func:`~uaprop.methods.model_state.preserved` the model is as it was at first. Tensors are copied: the
        model may return a buffer of its own, which its next run overwrites.

        Returns:
            The answer.
        """
        state = current_state()
        if state is not None:
            state.start_pass()
        args, kwargs = self.filled(values)
        answer = opened(model(*args, **kwargs))
        if isinstance(answer, Gaussian):
            return answer
        return pytree.tree_map_only(Tensor, Tensor.clone, answer, is_leaf=is_gaussian)

    def filled(self, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments with other values in the places of the random ones."""
        leaves = list(self._leaves)
        for place, number in self._places:
            leaves[place] = values[number]
        return self._structured(leaves)

    def _structured(self, leaves: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Other leaves in the arguments' structure."""
        if self._spec is None:
            return tuple(leaves), {}
        args, kwargs = closed(pytree.tree_unflatten(leaves, self._spec))
        return args, kwargs

    @property
    def batch(self) -> int | None:
        """The number of batch elements, or None if the arguments have no batch in common.

        The first dimension is the batch, as everywhere in torch; of every tensor with two or more.
        """
        tensors = [leaf for leaf in self._leaves if isinstance(leaf, Tensor | Gaussian)]
        lengths = {tensor.shape[0] if tensor.ndim > 1 else None for tensor in tensors}
        return lengths.pop() if len(lengths) == 1 else None

    def check_values(self, by: str) -> None:
        """Refuse random arguments on the meta device.

        Args:
            by: what needs their values, as a message names it.

        Raises:
            ValueError: if there is one.
        """
        if any(x.loc.is_meta for x in self.gaussians):
            raise ValueError(
                f"{by} needs the values of its input, and tensors on the meta device have none; make the "
                'mean on a device that has, as in torch.zeros(2, 3, device="cpu")'
            )

    @property
    def structure(self) -> tuple[str, tuple[tuple[int, int], ...]]:
        """How they are nested, and where the random ones are."""
        return repr(self._spec), tuple(self._places)

    @property
    def constants(self) -> list[Any]:
        """Those that are not random."""
        return [leaf for leaf in self._leaves if not is_gaussian(leaf)]

    @property
    def has_tensors(self) -> bool:
        """Whether there are plain tensors among the arguments."""
        return any(isinstance(leaf, Tensor) for leaf in self._leaves)

    def pieces(self, size: int | None) -> Iterator[tuple[slice, Arguments]]:
        """The same arguments for ``size`` batch elements at a time.

        Yields:
            Which batch elements, and their arguments.

        Raises:
            ValueError: if there is no common batch to cut.
        """
        whole = self.batch
        if size is None or (whole is not None and size >= whole):
            yield slice(None), self
            return
        if whole is None:
            raise ValueError(
                "chunk cuts the batch, the first dimension of every tensor argument; these "
                "arguments have none in common"
            )
        for start in range(0, whole, size):
            part = slice(start, min(start + size, whole))
            yield part, self.cut(part)

    def cut(self, part: slice | Tensor) -> Arguments:
        """The arguments of some batch elements."""
        leaves = [leaf[part] if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        random = [x[part] for x in self.gaussians]
        for place, number in self._places:
            leaves[place] = random[number]
        return Arguments(*self._structured(leaves))
