"""The one entrance to every method."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch.export import ExportedProgram

from ..dispatch import admit
from ..dispatch.watch import Watch
from ..numerics.autocast import outside_autocast
from ..numerics.imports import imported
from ..numerics.memory import keep_freed
from ..numerics.turns import one_at_a_time
from ..records import closed, holds_tensors
from .arguments import Arguments, is_gaussian
from .entrance import either_way, with_notes
from .model_state import preserved
from .nominal import MeanPass, add_nominal, run_first
from .own_randomness import refuse_own_randomness
from .transforms import refuse_transforms

__all__ = ["METHODS", "carried", "check_options", "propagate"]


class _Methods(Mapping[str, Callable[..., Any]]):
    """The methods by name; each one's file is imported when it is first asked for."""

    _names = (
        "auto",
        "diagonal",
        "calibrated",
        "linear",
        "sketch",
        "adjoint",
        "hybrid",
        "full",
        "samples",
    )

    def __getitem__(self, name: str) -> Callable[..., Any]:
        if name not in self._names:
            raise KeyError(name)
        return _method(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names  # without importing it

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@functools.cache
def _method(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(imported(f".{name}", __package__), name)
    return found


METHODS = _Methods()
_ON_TENSORS = ("auto", "samples", "linear")  # they give plain tensors to the model
_WITHOUT_VALUES = ("diagonal", "calibrated", "sketch", "full")  # rules alone; shapes are enough


def propagate(
    model: Callable[..., Any] | ExportedProgram,
    x: Any = None,
    method: str = "auto",
    *,
    unsupported: str = "error",
    **options: Any,
) -> Any:
    """Carry a Gaussian input through a model.

    A model that a Gaussian cannot pass through as it is, because it tests for tensors or is compiled by
    TorchScript, is captured with ``torch.export`` and run operator by operator; the answer's
    ``provenance.entrance`` says so.

    Everything is computed in the dtypes of model and input: ``torch.autocast`` is off meanwhile. Threads take
    turns, but for ``"diagonal"`` and ``"calibrated"``.

    Args:
        model: any callable on tensors, usually an ``nn.Module``; it is not changed. Or a program of
            ``torch.export``.
        x: a :class:`~uaprop.Gaussian`; or a tuple of positional or a dict of keyword arguments for the model,
            nested as it likes, in which any number are Gaussian and independent of each other. Dataclasses
            and other plain objects are walked, too.
        method: how much correlation to carry, and how.

            - ``"auto"``: chooses by the number of outputs, and says so in the answer's ``provenance``.
            - ``"hybrid"``: real draws and the exact linear response; next to no bias, has standard errors.
            - ``"adjoint"``: probes and the exact linear response; closed-form moments.
            - ``"sketch"``: probes alone; any number of outputs in one pass.
            - ``"calibrated"``: one variance factor per channel and layer, fitted beforehand.
            - ``"diagonal"``: the report's method, independent elements; deviations far too small.
            - ``"linear"``: the Jacobian at the mean.
            - ``"full"``: the dense covariance of everything; for small networks.
            - ``"samples"``: Monte Carlo; no rules needed.
        unsupported: what to do about an operation that has no rule. ``"error"`` raises
            :class:`~uaprop.UnsupportedOperation`. ``"linearise"`` takes its derivative at the mean and
            lists it in ``provenance.linearised``; for the methods that carry correlation by rules
            (``"sketch"``, ``"adjoint"``, ``"full"``). Those that need no rules do not care.
        **options: the method's own, see the function of its name in :mod:`uaprop.methods`. Any other name is
            a keyword argument of the model if its value is a Gaussian or a tensor, or holds one:
            ``ua.propagate(model, pixel_values=x)``. Other values, and names that are options, go into a
            dict: ``ua.propagate(model, {"pixel_values": x, "return_dict": True})``.

    Returns:
        What the model returns, with Gaussians in place of tensors: one, a tuple, a dict, …

    Raises:
        ValueError: if there is no such method, or ``unsupported`` is neither.
        TypeError: if there is no Gaussian in ``x``, or the method has no such option.
    """
    if not callable(model) and not isinstance(model, ExportedProgram):
        raise TypeError(f"the model must be a callable, such as an nn.Module, not {model!r}")
    options, keywords = _apart(method, options)
    check_options(method, unsupported, options, model)
    arguments = Arguments.of(x, keywords)
    if not arguments.gaussians:
        raise TypeError(
            f"propagate needs a ua.Gaussian among the inputs, not {type(x).__name__}; "
            "make one with ua.Gaussian(mean, var)"
        )
    return carried(model, arguments, method, unsupported, options)


def _apart(method: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The method's options, and keyword arguments of the model: tensors by other names.

    Returns:
        The two.

    Raises:
        TypeError: if an option is given a Gaussian.
    """
    if method not in METHODS:
        return dict(given), {}  # an error, as check_options says
    known = _options(method)
    options: dict[str, Any] = {}
    keywords: dict[str, Any] = {}
    for name, value in given.items():
        if name not in known:
            (keywords if holds_tensors(value) else options)[name] = value
            continue
        if is_gaussian(value):
            raise TypeError(
                f"{name!r} is an option of method {method!r} and no Gaussian; for an argument of the model "
                "by that name give all of its arguments in a dict, as in "
                f"ua.propagate(model, {{{name!r}: x}})"
            )
        options[name] = value
    return options, keywords


def check_options(
    method: str, unsupported: str, options: Mapping[str, Any], model: Any = None
) -> None:
    """Refuse what :func:`propagate` cannot be asked for, before any work.

    Args:
        method: its name.
        unsupported: what to do about operations without a rule.
        options: the method's.
        model: whose arguments they might be meant for.

    Raises:
        ValueError: if there is no such method, or ``unsupported`` is neither.
        TypeError: if the method has no such option, or needs another.
    """
    if method not in METHODS:
        raise ValueError(f"there is no method {method!r}; choose from {', '.join(METHODS)}")
    if unsupported not in ("error", "linearise"):
        raise ValueError(f"unsupported must be 'error' or 'linearise', not {unsupported!r}")
    if unsupported == "linearise" and method in ("diagonal", "calibrated"):
        raise ValueError(
            f"method {method!r} cannot linearise: a derivative mixes elements, and it keeps no "
            'correlation between them; use method="sketch" or "adjoint"'
        )
    allowed = _options(method)
    if unknown := sorted(set(options) - set(allowed)):
        hint = '; for those of a method name it, as in method="hybrid"' if method == "auto" else ""
        if unknown[0] in _parameters(model):
            hint += (
                "; it is an argument of the model: one that is no tensor goes into a dict with the others, "
                f"as in ua.propagate(model, {{..., {unknown[0]!r}: ...}})"
            )
        raise TypeError(
            f"method {method!r} has no option {unknown[0]!r}; "
            f"it has {', '.join(sorted(allowed)) or 'none'}{hint}"
        )
    if missing := [name for name, needed in allowed.items() if needed and name not in options]:
        raise TypeError(f"method {method!r} needs the option {missing[0]!r}")


def _parameters(model: Any) -> Mapping[str, Any]:
    """The parameters of a model by name; none if Python does not know them."""
    try:
        return inspect.signature(getattr(model, "forward", model)).parameters
    except (TypeError, ValueError):
        return {}


@functools.cache
def _options(method: str) -> dict[str, bool]:
    """A method's options, and whether they must be given."""
    parameters = inspect.signature(METHODS[method]).parameters.values()
    return {p.name: p.default is p.empty for p in parameters if p.kind is p.KEYWORD_ONLY}


def carried(
    model: Callable[..., Any] | ExportedProgram,
    arguments: Arguments,
    method: str,
    unsupported: str,
    options: Mapping[str, Any],
) -> Any:
    """What :func:`propagate` answers, from arguments and options that were checked."""
    refuse_transforms(method)
    if method not in _WITHOUT_VALUES:
        arguments.check_values(f"method {method!r}")
    keep_freed()
    if method != "samples":  # which needs no rules
        admit(model)
    args, kwargs = arguments.filled(arguments.gaussians)
    quick = method in ("diagonal", "calibrated")
    alone = quick and not options.get("check")  # they change nothing that others see
    turn: AbstractContextManager[Any] = nullcontext() if alone else one_at_a_time
    sampled = method in ("auto", "samples")  # which run the model again for each of its outcomes
    known = nullcontext() if sampled else refuse_own_randomness(method, model, arguments)
    with (
        Watch(linearise=unsupported == "linearise") as watch,
        outside_autocast(),
        turn,
        preserved(model, arguments.constants) as state,
        MeanPass(counts_work=method == "auto") as mean_pass,
    ):
        if state.own_code and not quick:
            run_first(model, arguments, method, options, state)
        with known:
            answer, entrance = either_way(
                model,
                arguments,
                lambda way: METHODS[method](way, args, kwargs, **options),
                on_gaussians=method not in _ON_TENSORS,
            )
            watch.check()
        if not quick:
            add_nominal(answer, model, arguments, method, options, state, mean_pass)
    return closed(with_notes(answer, entrance, tuple(watch.linearised)))
