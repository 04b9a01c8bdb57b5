"""The report's method with its variances corrected: the price of the diagonal, most of the truth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..covariance import Diagonal
from ..covariance.calibrated import Calibrated
from ..gaussian import Gaussian
from ..numerics.precision import variances_in
from ..provenance import Provenance
from .arguments import Arguments, mapped
from .calibration import Calibration, Correction, at_the_end, fingerprint
from .diagonal import check_independent

__all__ = ["calibrated", "check_calibration"]


def calibrated(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    calibration: Calibration,
    var_dtype: torch.dtype | None = None,
) -> Any:
    """Independent elements, each variance times a factor that :func:`~uaprop.calibrate` has fitted.

    Args:
        model: the model that was calibrated, with the same weights.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        calibration: from :func:`~uaprop.calibrate` or ``ua.Calibration.load(path)``.
        var_dtype: ``torch.bfloat16`` sums up variances in that; standard deviations change by about 0.2%, and
            convolutions of variances take half the time on processors that know the format.

    Returns:
        The model's answer, in Gaussians of independent elements.

    Raises:
        TypeError: if an input is not of independent elements.
        ValueError: if the calibration was made for another model.
    """
    if not torch.compiler.is_compiling():  # ua.as_module does before: a graph has no weights yet
        check_calibration(calibration, model)
    arguments = Arguments(args, kwargs)
    check_independent("calibrated", arguments)
    told = Provenance("calibrated", {"calibration": calibration})

    def plain(value: Gaussian) -> Gaussian:
        return Gaussian._from_covariance(value.loc, Diagonal(value.cov.var)).with_provenance(told)

    tally = Correction(calibration)
    random = [
        Gaussian._from_covariance(x.loc, Calibrated(x.cov.var, tally)) for x in arguments.gaussians
    ]
    with variances_in(var_dtype):
        answer = arguments.run(model, random)
    answer = mapped(plain, mapped(at_the_end, answer))
    tally.finish()
    return answer


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
