"""Methods against Monte Carlo, on the user's own model and input."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..methods.arguments import Arguments
from ..methods.batch_independence import BatchItems
from ..methods.model_state import ParameterWrites, preserved
from ..methods.options import whole_number
from ..numerics.turns import one_at_a_time
from ..records import holds_tensors
from .comparison import Comparison, Errors, Point, Row
from .contestant import Answer, Contestant, Entry, contestants
from .truth import Sampler, Truth

__all__ = ["compare"]

_LEAST_SAMPLES = 100
_LEAST_SECONDS = 0.02  # that everything is timed for, at each repeat


def compare(
    model: Callable[..., Any],
    x: Any = None,
    methods: str | Sequence[Entry] | Mapping[str, Entry] | None = None,
    samples: int = 10_000,
    repeats: int = 3,
    seed: int = 0,
    **keywords: Any,
) -> Comparison:
    """Measure how far methods are off on a model, and whether Monte Carlo does better in their time.

    The truth is Monte Carlo with draws that no method sees. With ``σ`` and ``μ`` the true deviation and
    mean of an output, averages over all floating-point outputs that vary are

    - ``std_error``, of ``|std/σ - 1|``, and ``std_bias``, of ``std/σ - 1``: -0.9 is ten times too small;
    - ``mean_error``, of ``|mean - μ|/σ``.

    Time is in units of one plain forward pass on the input's mean, without gradients. Forward pass, Monte
    Carlo and methods take turns, ``repeats`` times after a warm-up, and the best of each counts. ``draws`` is
    how many Monte Carlo draws fit into a method's time, at the rate of many draws at once, which favours
    Monte Carlo; their error is measured on blocks of so many draws. Fewer than two give no
    standard deviation, and none gives no mean either.

    Args:
        model: any callable on tensors.
        x: as :func:`~uaprop.propagate` takes it: a Gaussian, or a tuple or dict of arguments.
        methods: names, or pairs of name and options, or a dict of these with labels of your own; by default
            every method there is. One that fails, or needs an option to be given, is listed with its error.
            One that was given ``outputs`` is compared on those.
        samples: draws for the truth, at least 100; ``noise`` in the result says what they leave uncertain.
        repeats: how often everything is timed.
        seed: makes the draws reproducible; also given to the methods that take one.
        **keywords: keyword arguments of the model that are Gaussians or tensors, or hold them.

    Returns:
        A :class:`~uaprop.check.comparison.Comparison`: print it, ``.plot()`` it, or take ``.to_dict()``.

    Raises:
        TypeError: if there is no Gaussian in ``x``, or the numbers are not whole.
        ValueError: if a method does not exist, samples or repeats are too few, or no output varies.
    """
    whole_number("samples", samples, _LEAST_SAMPLES)
    whole_number("repeats", repeats, 1)
    chosen = contestants(methods, seed)
    for name, value in keywords.items():
        if not holds_tensors(value):
            raise TypeError(
                f"compare has no option {name!r}; an argument of the model that is no tensor goes into a "
                "dict with the others"
            )
    arguments = Arguments.of(x, keywords)
    arguments.check_values("compare")
    if x is None or isinstance(x, Mapping):  # in one dict no name is taken for an option
        x, keywords = {**(x or {}), **keywords}, {}
    if not arguments.gaussians:
        raise TypeError(f"compare needs a ua.Gaussian among the inputs, not {type(x).__name__}")
    means = [gaussian.loc.detach() for gaussian in arguments.gaussians]

    def forward(*values: Any) -> Any:
        # copies: the model may write to its input
        return arguments.run(model, values or [mean.clone() for mean in means])

    with (
        one_at_a_time,
        preserved(model, arguments.constants) as state,
        torch.no_grad(),
        torch.random.fork_rng(),
    ):
        with ParameterWrites(state, model):
            forward()  # an error of the model's own comes up here
        items = BatchItems(model, arguments)
        batch = items.batch if items.are_separable else None
        sampler = Sampler(forward, arguments.gaussians, seed, batch)
        truth = Truth.of(sampler, samples)
        state.restore()  # so that all methods see the same model
        answers = [contestant.answer(model, x, keywords, truth) for contestant in chosen]
        work: list[Callable[[], Any]] = [forward, sampler.step]
        for contestant, answer in zip(chosen, answers, strict=True):
            failed = isinstance(answer, str)
            work.append(_nothing if failed else _bound(contestant, model, x, keywords))
        clock, step, *times = _timed(work, repeats, state.restore)
    draw = step / sampler.size
    rows = [
        _row(contestant, answer, truth, seconds, seconds / clock, int(seconds / draw))
        for contestant, answer, seconds in zip(chosen, answers, times, strict=True)
    ]
    return Comparison(
        rows=tuple(rows),
        outputs=int(truth.varies.sum()),
        left_out=int((~truth.varies).sum()),
        samples=samples,
        noise=truth.noise(),
        forward_seconds=clock,
        draw_seconds=draw,
        monte_carlo=_curve(truth, draw / clock),
    )


def _nothing() -> None:
    """In place of a method that failed."""


def _bound(
    contestant: Contestant, model: Callable[..., Any], x: Any, keywords: Mapping[str, Any]
) -> Callable[[], Any]:
    return lambda: contestant.run(model, x, keywords)


def _timed(
    work: Sequence[Callable[[], Any]], repeats: int, afterwards: Callable[[], None]
) -> list[float]:
    """The best time of each, in seconds; they take turns, so that all see the same machine."""
    best = [float("inf")] * len(work)
    for _ in range(repeats):
        for place, function in enumerate(work):
            best[place] = min(best[place], _seconds(function))
            afterwards()
    return best


def _seconds(function: Callable[[], Any]) -> float:
    count, started = 0, _now()
    while True:
        function()
        count += 1
        elapsed = _now() - started
        if elapsed >= _LEAST_SECONDS or function is _nothing:
            return elapsed / count


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def _row(
    contestant: Contestant,
    answer: Answer | str,
    truth: Truth,
    seconds: float,
    passes: float,
    draws: int,
) -> Row:
    name = (contestant.label, contestant.method, contestant.options)
    if isinstance(answer, str):
        return Row(*name, failure=answer)
    mean, std = truth.mean[answer.places], truth.std[answer.places]
    ratio = answer.std / std - 1
    errors = Errors(
        float(ratio.abs().mean()),
        float(ratio.mean()),
        float(((answer.mean - mean) / std).abs().mean()),
    )
    fitting = truth.errors(draws, answer.places)
    return Row(*name, len(answer.places), errors, seconds, passes, draws, *fitting)


def _curve(truth: Truth, passes: float) -> tuple[Point, ...]:
    """Monte Carlo's errors for 1, 2, 4, … draws, up to as many as the truth has."""
    points = []
    count = 1
    while count <= truth.samples:
        std_error, mean_error = truth.errors(count)
        assert mean_error is not None
        points.append(Point(count, count * passes, std_error, mean_error))
        count *= 2
    return tuple(points)
