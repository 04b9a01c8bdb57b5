"""How an answer came about, and how sure the method is of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .numerics.autocast import outside_autocast

__all__ = ["Explained", "Provenance", "StandardError"]


class StandardError(NamedTuple):
    """One standard deviation of an estimate's own error, for each element of the answer."""

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Provenance:
    """Which method gave an answer, with which options, and why that one.

    Attributes:
        method: the method's name.
        options: its options, defaults included.
        reason: why it was chosen, if the caller left the choice to ``"auto"``.
        entrance: how the model was run, if not by calling it: captured as a graph, and why.
        linearised: operations without a rule that were replaced by their derivative at the mean, with
            the module that called them; see ``unsupported=`` of :func:`~uaprop.propagate`.
        standard_error: of mean and standard deviation, if the method knows it; or a function that gives it.
        shares: for every Gaussian input a function that gives the part of an output's variance that each of
            its elements causes; empty if the method does not say.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    entrance: str = ""
    linearised: tuple[str, ...] = ()
    standard_error: StandardError | Callable[[], StandardError] | None = field(
        default=None, repr=False
    )
    shares: tuple[Callable[[int, int | None], Tensor], ...] = field(default=(), repr=False)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        reason = f": {self.reason}" if self.reason else ""
        entrance = f"; {self.entrance}" if self.entrance else ""
        linearised = f"; linearised: {', '.join(self.linearised)}" if self.linearised else ""
        return f"{self.method}({options}){reason}{entrance}{linearised}"


class Explained:
    """What a value can say about the method that it comes from."""

    __slots__ = ()

    _provenance: Provenance | None
    ndim: int
    shape: torch.Size
    numel: Callable[[], int]

    @property
    def provenance(self) -> Provenance | None:
        """Which method gave this answer, with which options and why; None for any other value."""
        return self._provenance

    @property
    def standard_error(self) -> StandardError:
        """The standard errors of ``mean`` and ``std``, from a method that samples.

        Raises:
            ValueError: if the method gives none.
        """
        told = self._provenance
        if told is None or told.standard_error is None:
            name = "this value" if told is None else f"method {told.method!r}"
            raise ValueError(
                f'{name} comes without standard errors; method="hybrid" and "samples" have them'
            )
        error = told.standard_error
        return error if isinstance(error, StandardError) else error()

    def attribution(self, output: int, input: int = 0) -> Tensor:
        """The part of one output's variance that each input element's noise causes.

        ``J_i (J Σ)_i``, which for independent inputs is ``J_i² v_i``. The parts add up to what the network's
        linear response causes, at most the variance; the rest belongs to no single element.

        Args:
            output: which output, counted in the flattened answer of a batch element.
            input: which of several random inputs.

        Returns:
            ``(batch, *input's shape)``; the input's shape if the answer is a vector.

        Raises:
            ValueError: if the method does not say, or there is no such output.
        """
        told = self._provenance
        if told is None or not told.shares:
            name = "this value" if told is None else f"this answer of method {told.method!r}"
            raise ValueError(
                f'{name} has no attribution; method="adjoint", "hybrid" and "linear" have it'
            )
        outputs = self.numel() if self.ndim < 2 else self.numel() // max(1, self.shape[0])
        if not -outputs <= output < outputs:
            raise ValueError(f"there is no output {output}: a batch element has {outputs}")
        share = told.shares[input]
        with outside_autocast():
            return share(output % outputs, None if self.ndim < 2 else outputs)
