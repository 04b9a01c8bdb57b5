"""A method that takes part in a comparison, and its answer in the truth's order."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from ..covariance.base import per_batch_element
from ..gaussian import Gaussian
from ..methods import propagate
from ..methods.propagate import METHODS
from .truth import Truth, pooled

__all__ = ["Answer", "Contestant", "Entry", "contestants"]

Entry: TypeAlias = str | tuple[str, Mapping[str, Any]]

_LONGEST = 24  # characters of an option's value in a label


@dataclass(frozen=True)
class Answer:
    """A method's mean and deviation of outputs that vary, and which of all outputs they are."""

    mean: Tensor
    std: Tensor
    places: Tensor


@dataclass(frozen=True)
class Contestant:
    """A method, its options and what to call it."""

    label: str
    method: str
    options: dict[str, Any]

    def run(self, model: Callable[..., Any], x: Any, keywords: Mapping[str, Any]) -> Any:
        """The method itself."""
        return propagate(model, x, method=self.method, **self.options, **keywords)

    def answer(
        self, model: Callable[..., Any], x: Any, keywords: Mapping[str, Any], truth: Truth
    ) -> Answer | str:
        """Run the method, and pick the outputs that vary.

        Args:
            model: any callable on tensors.
            x: its input.
            keywords: its keyword arguments beside that.
            truth: says what the outputs are.

        Returns:
            The answer; or what went wrong, as text.
        """
        try:
            return self._picked(self.run(model, x, keywords), truth)
        except Exception as error:  # whatever it is, it belongs in the table and not in its place
            return f"{type(error).__name__}: {error}"

    def _picked(self, answer: Any, truth: Truth) -> Answer:
        leaves = pooled(answer)
        places = _places(truth.shapes, self.options.get("outputs"))
        mean = torch.cat([_flat(y.loc if isinstance(y, Gaussian) else y) for y in leaves])
        var = torch.cat(
            [_flat(y.cov.var if isinstance(y, Gaussian) else torch.zeros_like(y)) for y in leaves]
        )
        if len(mean) != len(places):
            raise ValueError(f"it gave {len(mean)} outputs instead of {len(places)}")
        varies = truth.varies[places]
        mean, std = mean[varies], var[varies].sqrt()
        if not bool((mean + std).isfinite().all()):
            raise ValueError("some of its answer is infinite or NaN")
        return Answer(mean, std, places[varies])


def _needs(method: Callable[..., Any]) -> bool:
    """Whether a method has an option that must be given."""
    options = inspect.signature(method).parameters.values()
    return any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in options)


def contestants(
    methods: str | Sequence[Entry] | Mapping[str, Entry] | None, seed: int
) -> list[Contestant]:
    """The methods that were asked for; if none were, all that need no option (as calibrated does).

    Args:
        methods: see :func:`~uaprop.compare`.
        seed: for methods that take one and were given none.

    Returns:
        One for each.

    Raises:
        ValueError: if there is no such method.
    """
    if methods is None:  # those that need no option of their own
        methods = [name for name, method in METHODS.items() if not _needs(method)]
    if isinstance(methods, str):
        methods = [methods]
    pairs: Iterable[tuple[str | None, Entry]]
    pairs = methods.items() if isinstance(methods, Mapping) else ((None, each) for each in methods)
    found = []
    for label, entry in pairs:
        method, options = (entry, {}) if isinstance(entry, str) else entry
        if method not in METHODS:
            raise ValueError(f"there is no method {method!r}; choose from {', '.join(METHODS)}")
        takes = inspect.signature(METHODS[method]).parameters
        given = ({"seed": seed} if "seed" in takes else {}) | dict(options)
        found.append(Contestant(label or _label(method, options), method, given))
    return found


def _label(method: str, options: Mapping[str, Any]) -> str:
    shown = ", ".join(f"{name}={_short(value)}" for name, value in options.items())
    return f"{method}({shown})" if shown else method


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 2]} …"


def _flat(values: Tensor) -> Tensor:
    return values.detach().double().cpu().reshape(-1)


def _places(shapes: Sequence[torch.Size], outputs: Any) -> Tensor:
    """Where a method's outputs are among all; ``outputs`` are columns of the only one."""
    every = torch.arange(sum(shape.numel() for shape in shapes), device="cpu")
    if outputs is None:
        return every
    if len(shapes) > 1:
        raise ValueError("the option outputs needs a model with one output")
    return per_batch_element(every.view(shapes[0]))[..., outputs].reshape(-1)
