"""How a result came about, and how sure the method is of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .attribution import Attribution
from .numerics.autocast import outside_autocast

__all__ = ["Explained", "Provenance", "StandardError"]

_WITHOUT_MEAN_PASS = ("diagonal", "calibrated")


class StandardError(NamedTuple):
    """One standard deviation of an estimate's own error, for each element of the result."""

    mean: Tensor
    std: Tensor


@dataclass(frozen=True)
class Provenance:
    """Which method gave a result, with which options, and why that one.

    Attributes:
        method: the method's name.
        options: its options, defaults included.
        reason: why it was chosen, if the caller left the choice to ``"auto"``.
        entrance: how the model was run, if not by calling it: captured as a graph, and why.
        linearised: operations without a rule that were replaced by their derivative at the mean, with
            the module that called them; see ``unsupported=`` of :func:`~uaprop.propagate`.
        standard_error: of mean and standard deviation, if the method knows it; or a function that gives it.
        shares: for every Gaussian input the parts of the outputs' variances that its elements cause; empty
            if the method does not say.
        nominal: the model's own output at the mean input; None if it is not known.
        without_nominal: why it is not, if the method would run the model on the mean.
    """

    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    entrance: str = ""
    linearised: tuple[str, ...] = ()
    standard_error: StandardError | Callable[[], StandardError] | None = field(
        default=None, repr=False
    )
    shares: tuple[Attribution, ...] = field(default=(), repr=False)
    nominal: Tensor | None = field(default=None, repr=False, compare=False)
    without_nominal: str = field(default="", repr=False)

    def __str__(self) -> str:
        options = ", ".join(f"{name}={value!r}" for name, value in self.options.items())
        reason = f": {self.reason}" if self.reason else ""
        entrance = f"; {self.entrance}" if self.entrance else ""
        linearised = f"; linearised: {', '.join(self.linearised)}" if self.linearised else ""
        return f"{self.method}({options}){reason}{entrance}{linearised}"

    def evaluated(self) -> Provenance:
        """The same with the standard errors computed, if they were not yet."""
        error = self.standard_error
        if error is None or isinstance(error, StandardError):
            return self
        return replace(self, standard_error=error())

    def selected(self, apply: Callable[[Tensor], Any], like: Tensor) -> Any:
        """Of a result that was rearranged.

        Args:
            apply: the rearrangement.
            like: the mean before, with its strides.

        Returns:
            Its provenance; a tuple if the rearrangement has several outputs.
        """
        told = self.evaluated()
        tensors = [
            apply(torch.zeros_like(like, dtype=tensor.dtype).add(tensor))
            for tensor in told._tensors()
        ]
        shares = [share.selected(apply, like) for share in self.shares]
        found = [*tensors, *shares]
        if not any(isinstance(each, tuple | list) for each in found):
            return told._with(tensors, shares)
        rows = zip(*found, strict=True)
        return tuple(told._with(row[: len(tensors)], row[len(tensors) :]) for row in rows)

    def converted(self, convert: Callable[[Tensor], Tensor], like: Tensor) -> Provenance:
        """Of a result in another dtype or on the device of ``like``."""
        told = self.evaluated()
        return told._with(
            [convert(tensor) for tensor in told._tensors()],
            [share.converted(convert, like) for share in self.shares],
        )

    @classmethod
    def joined(
        cls,
        build: Callable[..., Tensor],
        operands: Sequence[tuple[Provenance, Tensor]],
        whole: Callable[..., Tensor],
    ) -> Provenance:
        """Of several results put together.

        Args:
            build: puts tensors together as the results were, zeros for what else there is.
            operands: their provenances and means.
            whole: puts tensors together with what else there is.

        Returns:
            One provenance, with what all of them have: standard errors, attributions, nominal outputs.
        """
        told = [provenance.evaluated() for provenance, _ in operands]
        first = told[0]
        error = nominal = None
        if all(each.standard_error is not None for each in told):
            errors = zip(*(each._errors() for each in told), strict=True)
            error = StandardError(*(build(*parts) for parts in errors))
        known = [each.nominal for each in told if each.nominal is not None]
        if len(known) == len(told):
            nominal = whole(*known)
        shares: Sequence[Attribution] = ()
        if len({len(each.shares) for each in told}) == 1:
            means = [mean for _, mean in operands]
            shares = [
                Attribution.joined(build, list(zip(parts, means, strict=True)))
                for parts in zip(*(each.shares for each in told), strict=True)
            ]
        options = {
            name: value
            for name, value in first.options.items()
            if all(name in each.options and _same(each.options[name], value) for each in told)
        }
        return cls(
            _listed(each.method for each in told),
            options,
            _listed(each.reason for each in told),
            _listed(each.entrance for each in told),
            tuple(dict.fromkeys(name for each in told for name in each.linearised)),
            error,
            tuple(shares),
            nominal,
            _listed(each._lacks_nominal for each in told),
        )

    def _errors(self) -> tuple[Tensor, ...]:
        error = self.standard_error
        return error if isinstance(error, StandardError) else ()

    @property
    def _lacks_nominal(self) -> str:
        """Why there is no nominal output; "" if there is one."""
        if self.nominal is not None:
            return ""
        if self.without_nominal:
            return self.without_nominal
        if self.method in _WITHOUT_MEAN_PASS:
            return f"method {self.method!r} does not run the model on the mean itself"
        return f"this result of method {self.method!r} was stored or made without it"

    def _tensors(self) -> tuple[Tensor, ...]:
        """What there is of the result's shape: standard errors, nominal output."""
        return (*self._errors(), *(() if self.nominal is None else (self.nominal,)))

    def _with(self, tensors: Sequence[Tensor], shares: Sequence[Attribution]) -> Provenance:
        """The same with others in their places."""
        rest = list(tensors)
        nominal = None if self.nominal is None else rest.pop()
        error = StandardError(*rest) if rest else None
        return replace(self, standard_error=error, shares=tuple(shares), nominal=nominal)


def _listed(texts: Any) -> str:
    return ", ".join(dict.fromkeys(text for text in texts if text))


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b))


class Explained:
    """What a value can say about the method that it comes from."""

    __slots__ = ()

    _provenance: Provenance | None
    loc: Any
    ndim: int
    shape: torch.Size
    numel: Callable[[], int]

    @property
    def provenance(self) -> Provenance | None:
        """Which method gave this result, with which options and why; None for any other value."""
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

    @property
    def nominal(self) -> Tensor:
        """The model's own output at the mean input, ``model(x.mean)``, from when it was propagated.

        What the model says without noise; ``mean`` is its average under the noise. Diagonal and calibrated
        do not have it, being hardly more expensive than it is.

        Raises:
            ValueError: if it is not known, and why.
        """
        told = self._provenance
        if told is None:
            raise ValueError(
                "this value has no nominal output: it is not what ua.propagate returned for a model"
            )
        if told.nominal is None:
            raise ValueError(
                f"the nominal output is not known: {told._lacks_nominal}; use model(x.mean)"
            )
        return told.nominal

    def attribution(self, output: int, input: int = 0) -> Tensor:
        """The part of one output's variance that each input element's noise causes.

        ``J_i (J Σ)_i``, which for independent inputs is ``J_i² v_i``. The parts add up to what the network's
        linear response causes, at most the variance; the rest belongs to no single element.

        Args:
            output: which output, counted in the flattened result of a batch element.
            input: which of several random inputs.

        Returns:
            ``(batch, *input's shape)``; the input's shape if the result is a vector. Of a vector that was
            selected from the results of a batch, the shape of the batch element's own input.

        Raises:
            ValueError: if the method does not say, or there is no such output or input.
        """
        told = self._provenance
        if told is None or not told.shares:
            name = "this value" if told is None else f"this answer of method {told.method!r}"
            raise ValueError(
                f'{name} has no attribution; method="adjoint", "hybrid" and "linear" have it'
            )
        outputs = self.numel() if self.ndim < 2 else self.shape[1:].numel()
        if not -outputs <= output < outputs:
            raise ValueError(f"there is no output {output}: a batch element has {outputs}")
        inputs = len(told.shares)
        if not -inputs <= input < inputs:
            raise ValueError(f"there is no input {input}: the model had {inputs} random ones")
        with outside_autocast():
            return told.shares[input].part(output % outputs, self.loc)
