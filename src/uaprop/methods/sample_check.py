"""A few samples beside a method that does not know its own error: standard errors, and a warning.

``n`` samples of the input, centred, go through the model as it is, without derivatives. What they say of an
output's standard deviation is an estimate ``t`` with a standard error ``e_t``, and the method says ``s``.
With no other knowledge of the truth than the samples, the expected square of the method's error is

    E (s - truth)² = (s - t)² + e_t²

whose root is the standard error: it is no smaller than what so few samples can tell, and where the method is
far off it is the distance. The same holds for the mean.

``t`` comes from one of two estimates. A method that knows the linear response ``J`` (``adjoint``) has the
samples regressed on it, as :mod:`~uaprop.methods.control_variate` does: where a network is nearly linear,
they know its standard deviations to a few percent. Otherwise ``t`` are the samples' own standard deviations,
shrunk towards what the method's lack on the average of an item (:mod:`~uaprop.methods.pooling`): 27% of one
output, down to 10% of many. The mean then has the error ``t √(δ² + 1/(n κ))``, with the mean square ``δ²`` of
the distances of all outputs of the item, in standard deviations, and their effective number ``κ``.

A warning is given where the samples contradict the method (:mod:`~uaprop.methods.discrepancy`), for single
items or for all of them together, by more than 15% in the standard deviations or 0.3 of them in the means. Of
a hundred calls of a method that is right at most one gives a false one, if outputs are about normal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..gaussian import Gaussian
from ..numerics.chance import mixed
from ..numerics.draws import own_draws
from ..numerics.moments import is_transformed, root, widened
from ..provenance import StandardError
from ..records import opened
from .arguments import Arguments, is_gaussian
from .batch_independence import BatchItems
from .batched import Batched
from .centred import centred_noise
from .control_variate import fitted
from .discrepancy import Discrepancy, discrepancy, threshold
from .error_floor import unrounded
from .linear_part import LinearPart
from .options import whole_number
from .pooling import pooled, tails
from .response import chosen
from .user_warning import warn_user

__all__ = ["SampleCheck"]

_FEWEST = 4
_STREAM = 11  # of random numbers: other ones than those of probes
_JOINED_ELEMENTS = 2**18  # input elements of samples that go through a chain of layers in one batch
_RATIO, _SHIFT = 0.15, 0.3  # what is too small to warn of


@dataclass(frozen=True)
class SampleCheck:
    """The samples to be taken beside a method, and what they are compared with.

    Attributes:
        method: its name.
        count: how many samples; 0 for no check.
        seed: of the samples.
        keys: of the batch elements.
        chunk: batch elements at a time; None for all.
        outputs: which outputs of each batch element the result has; None for all.
        own_error: relative standard error of the method's standard deviations that its user has chosen, by
            the number of probes.
    """

    method: str
    count: int
    seed: int = 0
    keys: Sequence[int] | None = None
    chunk: int | None = None
    outputs: Sequence[int] | None = None
    own_error: float = 0.0

    def __post_init__(self) -> None:
        whole_number("check", self.count, 0)
        if 0 < self.count < _FEWEST:
            raise ValueError(
                f"check={self.count} samples tell nothing; give {_FEWEST} or more, or 0 for no check"
            )

    def __call__(
        self, answer: Any, model: Callable[..., Any], arguments: Arguments, independent: bool
    ) -> Any:
        """Check a result.

        Args:
            answer: the model's outputs, with Gaussians among them.
            model: what they are of.
            arguments: what it was called with.
            independent: whether the items of the batch do not influence each other.

        Returns:
            The same with standard errors; as it is where there are no values, as in a transform.
        """
        if self.count == 0 or not _has_values(arguments):
            return answer
        leaves, spec = pytree.tree_flatten(opened(answer), is_leaf=is_gaussian)
        for leaf in filter(is_gaussian, leaves):
            leaf.cov.var  # noqa: B018, what is computed once shall have its graph
        with torch.no_grad():
            noise = self._noise(arguments, independent)
            try:
                results = self._run(model, arguments, noise)
            except Exception as error:
                warn_user(
                    f'method "{self.method}" could not be checked, and has no standard errors: the model '
                    f"fails on samples of its input ({type(error).__name__}: {str(error)[:200]}); "
                    "check=0 leaves the check out"
                )
                return answer
            if len(results) != len(leaves):  # another branch
                results = [None] * len(leaves)
            found = [
                self._checked(value, stack, noise, independent and arguments.batch is not None)
                if is_gaussian(value)
                else (value, None)
                for value, stack in zip(leaves, results, strict=True)
            ]
            self._warn([judged for _, judged in found if judged is not None])
        return pytree.tree_unflatten([value for value, _ in found], spec)

    def _noise(self, arguments: Arguments, independent: bool) -> list[Tensor]:
        """Centred noise of every input, ``(n, *shape)``.

        Items that do not influence each other have the same, in the same order: what their results have in
        common can then be seen.

        Returns:
            The noise.
        """
        keys = self.keys
        if keys is None and independent and arguments.batch is not None:
            keys = [0] * arguments.batch
        seed = mixed(self.seed, _STREAM)
        return centred_noise(arguments.gaussians, [self.count], seed, keys=keys)

    def _run(
        self, model: Callable[..., Any], arguments: Arguments, noise: list[Tensor]
    ) -> list[Any]:
        """The leaves of the model's outputs for every sample, stacked."""
        values = [x.loc + each for x, each in zip(arguments.gaussians, noise, strict=True)]
        pieces: list[list[Any]] = []
        with own_draws(), torch.random.fork_rng():
            torch.manual_seed(mixed(self.seed, 1))
            for part, piece in arguments.pieces(self.chunk):
                uncut = part == slice(None)
                stacks = [v if uncut else v[:, part] for v in values]
                joined = sum(s.numel() for s in stacks) <= _JOINED_ELEMENTS
                known = joined and BatchItems(model, piece).are_known
                run = Batched(
                    lambda *one, piece=piece: piece.run(model, one), piece.batch if known else None
                )
                pieces.append(pytree.tree_leaves(run(*stacks)))
        if len(pieces) == 1:
            return pieces[0]
        return [
            torch.cat(parts, 1) if isinstance(parts[0], Tensor) else parts[0]
            for parts in zip(*pieces, strict=True)
        ]

    def _checked(
        self, value: Gaussian, stack: Any, noise: list[Tensor], independent: bool
    ) -> tuple[Gaussian, tuple[Discrepancy, Discrepancy] | None]:
        """One of the outputs with its standard errors; and how the samples contradict it."""
        told = value.provenance
        stack = None if not isinstance(stack, Tensor) else self._wanted(stack, value)
        if stack is None or told is None or value.numel() == 0:
            return value, None
        items = len(value) if value.ndim > 1 or (independent and value.ndim == 1) else 1
        part = _response(value)
        if part is not None:
            items = len(part.rows[0])
        shape = (items, value.numel() // items)
        samples = widened(stack).reshape(len(stack), *shape)
        mean = widened(value.loc.detach()).reshape(shape)
        var = value.cov.var.detach().reshape(shape).to(mean.dtype)
        judge = _by_samples if part is None else _by_response(part, noise)
        finite = samples.isfinite().all(0) & mean.isfinite() & var.isfinite()
        error = judge(
            torch.where(finite, samples, 0),
            torch.where(finite, mean, 0),
            torch.where(finite, var, 0),
        )
        error = unrounded(mean, var, StandardError(*(e.to(mean.dtype) for e in error)), value.dtype)
        unknown = torch.where(
            (samples == mean).all(0), 0, torch.inf
        )  # masked, or no number at times
        error = StandardError(
            *(torch.where(finite, e, unknown).reshape(value.shape) for e in error)
        )
        eps = torch.finfo(value.dtype).eps
        rows = len(value) if value.ndim > 1 else items  # as a user counts them
        one, all_items = (
            discrepancy(
                samples.double().reshape(len(samples), lines, -1),
                mean.double().reshape(lines, -1),
                var.double().reshape(lines, -1),
                eps,
            )
            for lines in (rows, 1)
        )
        return value.with_provenance(replace(told, standard_error=error)), (one, all_items)

    def _wanted(self, stack: Tensor, value: Gaussian) -> Tensor | None:
        """The outputs of the samples that the result has; None if they are others."""
        if self.outputs is not None:
            flat = stack.flatten(2) if stack.ndim > 2 else stack.reshape(len(stack), -1)
            stack = flat[..., chosen(self.outputs, flat.shape[-1], flat.device)]
        same = stack.shape[1:] == value.shape and stack.is_floating_point()
        return stack if same else None

    def _warn(self, found: list[tuple[Discrepancy, Discrepancy]]) -> None:
        """Say how far the samples contradict the method, if they do."""
        if not found:
            return
        ratio = max(_RATIO, 2 * self.own_error)
        # Half of the false alarms are allowed to single items, half to all together.
        single = threshold(2 * sum(len(one.ratio) for one, _ in found))
        together = threshold(2 * len(found))
        items = [one.found(single, ratio, _SHIFT) for one, _ in found]
        everything = [all_items.found(together, ratio, _SHIFT) for _, all_items in found]
        flagged = sum(int(each.sum()) for each in items)
        total = sum(len(each) for each in items)
        if flagged:
            ratios = torch.cat([one.ratio[bad] for (one, _), bad in zip(found, items, strict=True)])
            shifts = torch.cat([one.shift[bad] for (one, _), bad in zip(found, items, strict=True)])
            which = f"for {flagged} of {total} items"
        elif any(bool(each.any()) for each in everything):
            pairs = [(a, bad) for (_, a), bad in zip(found, everything, strict=True)]
            ratios = torch.cat([a.ratio[bad] for a, bad in pairs])
            shifts = torch.cat([a.shift[bad] for a, bad in pairs])
            which = f"for all {total} items together"
        else:
            return
        low, high = (f"{float(end):.2g}" for end in ratios.aminmax())
        times = low if low == high else f"{low} to {high}"
        warn_user(
            f'method "{self.method}" is off: its standard deviations are {times} of those of {self.count} '
            f"samples, and its means up to {float(shifts.max()):.2g} standard deviations from "
            f"theirs, {which}. "
            'Use method="hybrid" or "samples"; check=0 leaves this check out.'
        )


def _has_values(arguments: Arguments) -> bool:
    if torch.compiler.is_compiling() or is_transformed():
        return False
    return not any(x.loc.is_meta for x in arguments.gaussians)


def _response(value: Gaussian) -> LinearPart | None:
    """The linear response of a result to all inputs, if its method knows one."""
    shares = () if value.provenance is None else value.provenance.shares
    if not shares:
        return None
    pieces = [
        LinearPart(
            tuple(one.rows for one in of_piece),
            tuple(one.pushed for one in of_piece),
            of_piece[0].weights,
        )
        for of_piece in zip(*(share.responses for share in shares), strict=True)
    ]
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0]
    inputs = range(len(first.rows))
    return LinearPart(
        tuple(torch.cat([piece.rows[i] for piece in pieces]) for i in inputs),
        tuple(torch.cat([piece.pushed[i] for piece in pieces]) for i in inputs),
        None
        if first.weights is None
        else torch.cat([w for piece in pieces if (w := piece.weights) is not None]),
    )


def _by_samples(samples: Tensor, mean: Tensor, var: Tensor) -> StandardError:
    """The standard errors by the samples alone, ``(items, outputs)`` each."""
    count, freedom = len(samples), len(samples) - 1
    center = samples.mean(0)
    factors, relative = pooled((samples - center) * freedom**-0.5, var, freedom)
    sampled = factors.square().sum(0)
    relative = relative * tails(factors)
    std, claimed = root(sampled), root(var)
    std_error = torch.hypot(claimed - std, std * relative / 2)
    varies = sampled > 0
    outputs = varies.sum(-1, keepdim=True).clamp_min(1)
    far = torch.where(varies, (center - mean) / torch.where(varies, std, 1), 0)
    unit = factors / torch.where(varies, std, torch.inf)
    alike = torch.einsum("rbk,sbk->brs", unit, unit).square().sum((1, 2)).unsqueeze(-1)
    share = (far.square().sum(-1, keepdim=True) + alike / outputs / count) / outputs
    mean_error = torch.where(varies, std * share.sqrt(), torch.hypot(center - mean, claimed))
    return StandardError(mean_error, std_error)


def _by_response(
    part: LinearPart, noise: Sequence[Tensor]
) -> Callable[[Tensor, Tensor, Tensor], StandardError]:
    """The same, with the samples regressed on a linear response."""

    def judge(samples: Tensor, mean: Tensor, var: Tensor) -> StandardError:
        count, freedom = len(samples), len(samples) - 1
        fit = fitted(part, [widened(each) for each in noise], samples)
        center = fit.unexplained.mean(0)
        linear = fit.part.variances()
        factors, relative = pooled((fit.unexplained - center) * freedom**-0.5, linear, freedom)
        rest = factors.square().sum(0)
        var_error = torch.hypot(rest * relative * tails(factors), fit.var_error)
        std = root(linear + rest)
        error = var_error / (2 * std).clamp_min(torch.finfo(std.dtype).tiny)
        return StandardError(
            torch.hypot(center - mean, root(rest / count)), torch.hypot(std - root(var), error)
        )

    return judge
