"""A model as a module from means and variances to means and variances."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from ..dispatch import admit
from ..dispatch.graph import CapturedModel
from ..errors import UnsupportedOperation
from ..gaussian import Gaussian
from ..methods.arguments import Arguments, mapped
from ..methods.calibrated import check_calibration
from ..methods.model_state import preserved
from ..methods.propagate import METHODS, carried, check_options
from ..numerics.constants import Constants
from ..numerics.frozen import forget
from ..numerics.memory import keep_freed
from ..statistic import Statistic

__all__ = ["TRACEABLE", "AsModule", "as_module"]

TRACEABLE = ("diagonal", "calibrated")
"""The methods that are one pass of plain tensor operations, whatever the values."""

_COMPILES = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 13)
_FACTOR = "_factor_"  # what the buffers of a calibration are called, with a number


def as_module(
    model: Callable[..., Any] | ExportedProgram,
    method: str = "diagonal",
    *,
    input: str | None = None,
    unsupported: str = "error",
    **options: Any,
) -> AsModule:
    """A model as a module: ``forward(mean, var, …)`` gives ``(mean, var)``, all plain tensors.

    With the methods ``"diagonal"`` and ``"calibrated"`` it goes through ``torch.compile(fullgraph=True)``
    (with torch 2.13 or later; an older torch runs it eagerly), ``torch.export`` and
    :func:`~uaprop.export`. The other methods run eagerly, and refuse to be traced.

    In evaluation mode squared weights and other constants are kept from call to call, and computed anew
    for weights that were written to. (On a GPU not through ``weight.data`` and not by a fused optimizer,
    which hide it; ``.eval()`` forgets all.)

    Args:
        model: any callable on tensors, usually an ``nn.Module``, or a program of ``torch.export``. A
            module is held, not copied: ``.model``, with its parameters and mode.
        method: as for :func:`~uaprop.propagate`, except that there is a default of its own.
        input: the keyword that the model takes its random argument by; None for the first positional
            one.
        unsupported: as for :func:`~uaprop.propagate`.
        **options: the method's own.

    Returns:
        The module, in the model's mode.

    Raises:
        ValueError: if there is no such method, or a calibration was made for another model.
        TypeError: if the method has no such option, or needs one.
    """
    check_options(method, unsupported, options)
    admit(model)
    keep_freed()  # here: a compiled program does not come by ua.propagate
    if method == "calibrated":
        check_calibration(options["calibration"], model)
        _ = options["calibration"].laws  # numbers by now: tracing knows no tensor's values
    return AsModule(model, method, input, unsupported, options)


class AsModule(nn.Module):
    """Made by :func:`as_module`.

    Attributes:
        model: as it was given.
        method: the method's name.
        input: the keyword of the random argument, or None.
        options: the method's options.
    """

    def __init__(
        self,
        model: Callable[..., Any] | ExportedProgram,
        method: str,
        input: str | None,
        unsupported: str,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.model = model
        self.method = method
        self.input = input
        self.unsupported = unsupported
        self.options = dict(options)
        self.training = model.training if isinstance(model, nn.Module) else False
        self._constants = Constants()
        factors = self.options["calibration"].factors if method == "calibrated" else ()
        for i, factor in enumerate(
            factors
        ):  # a compiled program takes a module's tensors as arguments
            self.register_buffer(f"{_FACTOR}{i}", factor, persistent=False)

    def forward(self, mean: Tensor, var: Tensor | float, *args: Any, **kwargs: Any) -> Any:
        """Carry independent noise through the model.

        Args:
            mean: of the random argument, floating-point, of any shape that the model takes.
            var: its variances; a number or whatever broadcasts with ``mean``.
            *args: further arguments of the model, as they are.
            **kwargs: further keyword arguments.

        Returns:
            A pair ``(mean, var)``; or what the model returns, with such a pair in the place of each
            random tensor.

        Raises:
            UnsupportedOperation: if an operation has no rule; or, while tracing, if the method or the
                model cannot be traced.
            RuntimeError: if it is exported in training mode.
            TypeError: if a compiled module is given what is no plain tensor.
        """
        if torch.compiler.is_dynamo_compiling() and not _COMPILES:
            return _uncompiled(self, mean, var, args, kwargs)
        if torch.compiler.is_dynamo_compiling() and not torch.compiler.is_exporting():
            from .traced import traced  # here: torch._dynamo takes seconds to import

            if isinstance(mean, Statistic) or isinstance(var, Statistic):
                raise TypeError(
                    "compiled programs take plain tensors, and x.mean and x.var of a Gaussian are more; "
                    "give x.mean.clone() and x.var.clone()"
                )
            modes = [module.training for module in self.modules()]  # so that a change is noticed
            return traced(self, modes, mean, var, args, kwargs)
        return self.run(mean, var, args, kwargs)

    def run(self, mean: Tensor, var: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What :meth:`forward` gives; the one place where the model is run, traced or not."""
        arguments = self.arguments(mean, var, args, kwargs)
        answer = (
            self._traced(arguments) if torch.compiler.is_compiling() else self.answer(arguments)
        )
        return mapped(_pair, answer)

    def arguments(
        self, mean: Tensor, var: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments:
        """The model's arguments, with a Gaussian among them."""
        x = Gaussian(mean, var)
        if self.input is None:
            return Arguments((x, *args), kwargs)
        return Arguments(args, {self.input: x, **kwargs})

    def answer(self, arguments: Arguments, *, examples: bool = False) -> Any:
        """The model's answer in Gaussians, as :func:`~uaprop.propagate` gives it.

        Args:
            arguments: the model's.
            examples: whether they are made up, to compare programs on: no matter whether a calibration was
                fitted to such inputs, and without samples beside it.

        Returns:
            The answer.
        """
        options = dict(self.options)
        if examples and self.method == "calibrated":
            options |= {"outside": "ignore", "check": 0}
        keeping = contextlib.nullcontext() if self.training else self._constants
        with keeping:
            return carried(self.model, arguments, self.method, self.unsupported, options)

    def train(self, mode: bool = True) -> AsModule:
        """Set the mode; what was kept of the weights is forgotten."""
        self._constants.clear()
        forget(self.parameters())
        return super().train(mode)

    def _traced(self, arguments: Arguments) -> Any:
        """The same without second attempts and accounts: what a graph can be recorded of."""
        if self.method not in TRACEABLE:
            raise UnsupportedOperation(
                f"method {self.method!r}",
                reason="it draws, differentiates or chooses by values as it goes, and is no single "
                "graph that could be compiled or exported",
                remedy='Use method="diagonal", or method="calibrated" with a calibration '
                "(ua.calibrate); or call the module eagerly.",
            )
        if torch.compiler.is_exporting() and any(m.training for m in self.modules()):
            raise RuntimeError(
                "the model, or a part of it, is in training mode, where it drops out and tracks "
                "statistics; call .eval() before exporting it"
            )
        program = isinstance(self.model, ExportedProgram)
        model = CapturedModel(self.model) if program else self.model
        args, kwargs = arguments.filled(arguments.gaussians)
        options = dict(self.options)
        if self.method == "calibrated":
            factors = (self.get_buffer(f"{_FACTOR}{i}") for i in range(len(self._buffers)))
            options["calibration"] = options["calibration"].with_factors(factors)
        try:
            with preserved(
                self.model
            ):  # a trace would leave its stand-ins for tensors in the model
                return METHODS[self.method](model, args, kwargs, **options)
        except UnsupportedOperation:
            raise
        except Exception as error:
            raise UnsupportedOperation(
                type(self.model).__name__,
                reason=f"the model cannot be traced on a Gaussian ({type(error).__name__}: {error})",
                remedy="If it runs eagerly, capture it first, with a dynamic batch: "
                "ua.as_module(torch.export.export(model, (x,), dynamic_shapes=…)).",
            ) from error


def _pair(value: Gaussian) -> tuple[Tensor, Tensor]:
    return value.loc, value.cov.var


def _uncompiled(module: AsModule, *arguments: Any) -> Any:
    """The module's call, as one that Dynamo does not look into."""
    return module.run(*arguments)


if not _COMPILES:  # Dynamo takes no module as an argument of an opaque function before 2.13
    _uncompiled = torch.compiler.disable(
        _uncompiled, reason="torch.compile takes ua.as_module from torch 2.13 on; this is older"
    )
