"""Models that do something else for what is no tensor, or each time that they are run.

A Gaussian is no ``torch.Tensor``. A model that says ``x * 2 if isinstance(x, Tensor) else x`` takes its other
branch for one; so does one that catches the error of ``float(x)``. Nothing would tell. So a model with Python
code of its own is run once on Gaussians without noise: that must give what it gives for tensors. If it does
not, its graph is taken, as for a model that raises an error.

A model that gives another output for the same input when it is run again, although all state that is seen
was put back and no generator was used, has state that is not seen: no method with rules can follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..covariance.ensemble import Ensemble
from ..dispatch.watch import Watch
from ..errors import UnsupportedOperation
from ..gaussian import Gaussian
from ..kinds import plain
from ..numerics.chance import RandomNumbers
from ..numerics.moments import is_transformed
from ..numerics.underflow import has_values
from ..rules.extremes import Undecided
from .arguments import Arguments, is_gaussian
from .batch_independence import UNSEEN_STATE, agree
from .model_key import Verdicts
from .model_state import ParameterWrites, current_state, trial
from .process_state import random_states, same_states
from .reachable import roots_of

__all__ = ["gives_the_same", "takes_gaussians"]

_Model = Callable[..., Any]
_COMPARABLE = (Tensor, Undecided, bool, int, float, str)


class _Verdict(NamedTuple):
    """What a trial has shown.

    Attributes:
        steady: whether the model gives the same each time.
        same: whether it gives for Gaussians what it gives for tensors.
        writes: whether it writes to its parameters.
    """

    steady: bool
    same: bool
    writes: bool


_VERDICTS = Verdicts[_Verdict]()


def takes_gaussians(model: _Model, arguments: Arguments) -> bool:
    """Whether a model does with Gaussians what it does with tensors, as far as a run without noise tells.

    It is found out once for a model and the shapes of its arguments.

    Args:
        model: any callable on tensors.
        arguments: what it is to be called with.

    Returns:
        False if it gives something else. True also of a model that fails: its error comes up where it is run.

    Raises:
        UnsupportedOperation: if the model gives something else each time.
    """
    state = current_state()
    if torch.compiler.is_compiling() or is_transformed() or (state and not state.own_code):
        return True
    if not all(has_values(x.loc) for x in arguments.gaussians):
        return True
    found = _VERDICTS.of(model, arguments, lambda: _tried(model, arguments))
    if found.writes and state is not None:
        for root in roots_of(model):
            for parameter in root.parameters():
                state.copy_parameter(parameter)
    if not found.steady:
        raise UnsupportedOperation(
            getattr(model, "__name__", type(model).__name__),
            reason=UNSEEN_STATE,
            remedy='With randomness alone, use method="samples".',
        )
    return found.same


def gives_the_same(model: _Model, way: _Model, arguments: Arguments) -> bool:
    """Whether a way to run a model gives for Gaussians without noise what the model gives for tensors.

    Args:
        model: any callable on tensors.
        way: another callable that stands for it.
        arguments: what it is called with.

    Returns:
        False if it gives something else. True if one of them fails, or the model has randomness of its own.
    """
    means = [x.loc.detach() for x in arguments.gaussians]
    with trial():
        try:
            expected = _run(model, arguments, means)
        except Exception:
            return True
        return _agrees(way, arguments, means, expected)


def _tried(model: _Model, arguments: Arguments) -> _Verdict:
    """Run a model on the mean twice, with something else in between; and on Gaussians without noise."""
    state = current_state()
    with trial():
        if state is None:
            return _Verdict(*_compared(model, arguments), writes=False)
        with ParameterWrites(state, model) as watch:
            found = _compared(model, arguments)
        return _Verdict(*found, writes=watch.seen)


def _compared(model: _Model, arguments: Arguments) -> tuple[bool, bool]:
    """Whether a model gives the same each time, and for Gaussians what it gives for tensors."""
    means = [x.loc.detach() for x in arguments.gaussians]
    numbers = RandomNumbers.seeded(0, 30, device=means[0].device)
    before = random_states()
    try:
        expected = _run(model, arguments, means)
        with torch.no_grad():
            others = [x.loc + x.cov.deviations(1, numbers)[0] for x in arguments.gaussians]
        _run(model, arguments, others)
        again = _run(model, arguments, means)
    except Exception:
        return True, True  # an error of the model's own comes up where it is run
    state = current_state()
    generators = [] if state is None else state.generators
    if not same_states(before, random_states()) or any(g.was_used for g in generators):
        return True, True  # whether its random numbers matter is found out elsewhere
    if not agree(again, expected):
        return False, False
    return True, _agrees(model, arguments, means, expected)


def _run(way: _Model, arguments: Arguments, values: list[Any]) -> Any:
    """The leaves of what it returns, random ones by their means.

    In a list: values and indices of a maximum may come in another tuple than torch's.

    Returns:
        The leaves.
    """
    copies = [v.clone() if isinstance(v, Tensor) else v for v in values]
    with torch.no_grad():
        result = arguments.run(way, copies)
    leaves = [plain(leaf) for leaf in pytree.tree_leaves(result, is_leaf=is_gaussian)]
    # two objects, such as a cache that a language model returns, cannot be compared but by what they are
    return [leaf if isinstance(leaf, _COMPARABLE) else type(leaf).__name__ for leaf in leaves]


def _agrees(way: _Model, arguments: Arguments, means: list[Tensor], expected: list[Any]) -> bool:
    """Whether it gives for Gaussians without noise what was expected, inside of a trial; True if it fails."""
    for without_noise in (_diagonal, _ensemble):
        with Watch() as watch:
            try:
                found = _run(way, arguments, [without_noise(mean.clone()) for mean in means])
            except Exception:
                continue  # for want of a rule, say
        if watch.refusals:  # which the model has caught; they are told of where it is run
            continue
        if len(found) == len(expected):  # a random index refuses to be used, whatever it would be
            pairs = zip(found, expected, strict=True)
            found = [b if isinstance(a, Undecided) else a for a, b in pairs]
        return agree(found, expected)
    return True


def _diagonal(mean: Tensor) -> Gaussian:
    return Gaussian._from_covariance(mean, Gaussian(mean, var=0.0).cov)


def _ensemble(mean: Tensor) -> Gaussian:
    return Gaussian._from_covariance(mean, Ensemble(mean.expand(2, *mean.shape)))
