"""The report's method with its variances corrected: the price of the diagonal, most of the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..covariance import Diagonal
from ..covariance.calibrated import Calibrated
from ..gaussian import Gaussian
from ..numerics.moments import is_transformed, root
from ..numerics.precision import variances_in
from ..provenance import Provenance, StandardError
from .applicability import applicability
from .arguments import Arguments, mapped
from .batch_independence import BatchItems
from .calibration import Calibration, Correction, at_the_end, fingerprint
from .diagonal import check_independent
from .error_floor import unrounded
from .sample_check import SampleCheck
from .user_warning import warn_user

__all__ = ["applied", "calibrated", "check_calibration"]


def calibrated(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    calibration: Calibration,
    var_dtype: torch.dtype | None = None,
    outside: str = "error",
    check: int = 0,
) -> Any:
    """Independent elements, each variance times a factor that :func:`~uaprop.calibrate` has fitted.

    The standard errors of the result are its standard deviations times the calibration's held-out errors, if
    the calibration has them: what the method is off by for inputs like those that were fitted. Other inputs
    (:mod:`~uaprop.methods.applicability`) are warned of, and refused if they are far away. Compiled and
    exported programs and the transforms of ``torch.func`` have no values to look at, and do neither.

    Args:
        model: the model that was calibrated, with the same weights.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        calibration: from :func:`~uaprop.calibrate` or ``ua.Calibration.load(path)``.
        var_dtype: ``torch.bfloat16`` sums up variances in that; standard deviations change by about 0.2%, and
            convolutions of variances take half the time on processors that know the format.
        outside: what to do about inputs that are far from those that were fitted: ``"error"``, or ``"warn"``
            as of inputs that are less far; ``"ignore"`` says nothing of either.
        check: how many samples go through the model beside it, for standard errors and a warning where the
            result is off (:mod:`~uaprop.methods.sample_check`); at least 4, or 0 for none: they take longer
            than the method itself. Means and variances do not depend on it.

    Returns:
        The model's answer, in Gaussians of independent elements.

    Raises:
        TypeError: if an input is not of independent elements.
        ValueError: if the calibration was made for another model, or for quite different inputs.
    """
    if outside not in ("error", "warn", "ignore"):
        raise ValueError(f"outside must be 'error', 'warn' or 'ignore', not {outside!r}")
    beside = SampleCheck("calibrated", check)
    if not torch.compiler.is_compiling():  # ua.as_module does before: a graph has no weights yet
        check_calibration(calibration, model)
    arguments = Arguments(args, kwargs)
    check_independent("calibrated", arguments)
    has_values = not is_transformed() and not any(x.loc.is_meta for x in arguments.gaussians)
    differs = ""
    if has_values and outside != "ignore":
        differs = _check_inputs(calibration, arguments, outside)
    told = Provenance("calibrated", {"calibration": calibration, "check": check})
    errors = iter(calibration.held_out.tolist() if has_values else ())

    def plain(value: Gaussian) -> Gaussian:
        found = Gaussian._from_covariance(value.loc, Diagonal(value.cov.var))
        own = next(errors, None) if isinstance(value.cov, Calibrated) else None
        return found.with_provenance(told if own is None else _with_error(told, found, *own))

    answer = mapped(plain, applied(model, arguments, calibration, var_dtype))
    if differs:
        warn_user(differs)
    if check == 0 or not has_values:
        return answer
    return beside(answer, model, arguments, BatchItems(model, arguments).are_rowwise)


def applied(
    model: Callable[..., Any],
    arguments: Arguments,
    calibration: Calibration,
    var_dtype: torch.dtype | None = None,
) -> Any:
    """The model's answer with corrected variances.

    Returns:
        The answer, in Gaussians that are :class:`~uaprop.covariance.calibrated.Calibrated`.

    Raises:
        ValueError: if the calibration does not fit the model.
    """
    tally = Correction(calibration)
    random = [
        Gaussian._from_covariance(x.loc, Calibrated(x.cov.var, tally)) for x in arguments.gaussians
    ]
    with variances_in(var_dtype):
        answer = arguments.run(model, random)
    answer = mapped(at_the_end, answer)
    tally.finish()
    return answer


def _check_inputs(calibration: Calibration, arguments: Arguments, outside: str) -> str:
    """Compare the inputs with those that were fitted.

    Returns:
        What to warn of; "" if there is nothing.

    Raises:
        ValueError: if they are far from them.
    """
    problem, is_far = applicability(arguments.gaussians, calibration.inputs)
    if not problem:
        return ""
    text = f"the calibration was not fitted to such inputs: {problem}. "
    remedy = 'Fit with such inputs too, or use method="hybrid"'
    if is_far and outside == "error":
        raise ValueError(f'{text}{remedy}; outside="warn" goes on all the same.')
    return f"{text}Standard deviations may be off by more than their errors. {remedy}."


def _with_error(told: Provenance, value: Gaussian, std: float, mean: float) -> Provenance:
    """With standard errors: so many standard deviations of the result."""
    with torch.no_grad():
        size = root(value.cov.var.detach())
        error = StandardError(size * mean, size * std)
        return replace(told, standard_error=unrounded(value.loc, value.cov.var, error, value.dtype))


def check_calibration(calibration: Any, model: Callable[..., Any]) -> None:
    """Refuse what is no calibration, or one of another model.

    Raises:
        TypeError: if it is none.
        ValueError: if it was made with other weights.
    """
    if not isinstance(calibration, Calibration):
        raise TypeError(
            f"calibration must come from ua.calibrate or ua.Calibration.load, not {calibration!r}"
        )
    if calibration.model != fingerprint(model):
        raise ValueError(
            "the calibration does not fit this model: it was made with other weights; make another "
            "with ua.calibrate"
        )
