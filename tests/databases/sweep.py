"""One call with one argument made Gaussian, judged against torch's own value and Jacobian.

At zero variance the mean must be torch's. At a small one the variances must be those of the Jacobian,
``(J∘J) v`` for independent elements. Where the Jacobian is not the same all over the noise (a kink, a tie),
plain samples take its place. A refusal is an answer; an error of any other type is a crash.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import uaprop as ua

__all__ = ["METHODS", "Call", "Verdict", "arguments_in_turn", "judge"]

METHODS = ("diagonal", "full", "adjoint", "hybrid", "auto")
STD = 1e-3
LARGEST = 2000  # elements of the input and of the output: the Jacobian is dense
DRAWS = 400
HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Verdict:
    """What came of one call by one method."""

    outcome: str
    """``right``, ``refused``, ``wrong`` or ``crash``.

    Or ``approximate``: the diagonal method on several operations one after the other, or on one whose rule is
    said to be approximate. Or ``skipped``: torch has no value to compare with.
    """
    detail: str = ""


@dataclass
class Call:
    """A function of one floating-point tensor: an operator with all its other arguments fixed."""

    name: str
    function: Callable[[Any], Any]
    point: Tensor

    def plain(self, x: Tensor) -> list[Tensor]:
        """The floating-point outputs; the same random numbers each time."""
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(0)
            return [leaf for leaf in leaves(self.function(x.clone())) if _is_float(leaf)]

    def flat(self, x: Tensor) -> Tensor:
        parts = [part.reshape(-1) for part in self.plain(x)]
        return torch.cat([part.to(torch.float64) for part in parts]) if parts else x.new_zeros(0)

    @cached_property
    def value(self) -> list[Tensor]:
        with torch.no_grad():
            return [part.detach().clone() for part in self.plain(self.point)]

    @cached_property
    def has_two_values(self) -> bool:
        """Whether torch disagrees with itself.

        The fast path of a Transformer, without derivatives, puts zeros where it is masked.
        """
        try:
            other = self.plain(self.point.clone().requires_grad_())
        except RuntimeError:
            return False
        return not all(
            torch.allclose(a, b.detach(), rtol=1e-3, atol=1e-3, equal_nan=True)
            for a, b in zip(self.value, other, strict=True)
        )

    @cached_property
    def is_random(self) -> bool:
        """Whether calls differ, as few of them may: then there is no Jacobian to compare with."""
        return any(self._differs(seed) for seed in range(1, 17))

    def _differs(self, seed: int) -> bool:
        with torch.random.fork_rng(devices=[]), torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.manual_seed(seed)
            again = [leaf for leaf in leaves(self.function(self.point.clone())) if _is_float(leaf)]
        return any(
            a.shape != b.shape or not torch.equal(a.nan_to_num(), b.nan_to_num())
            for a, b in zip(self.value, again, strict=True)
        )

    @cached_property
    def variances(self) -> Tensor:
        """Unequal ones: an error that cancels if all are the same is not one of these."""
        generator = torch.Generator().manual_seed(5)
        spread = torch.rand(self.point.shape, generator=generator, dtype=torch.float64)
        return STD**2 * (0.5 + 1.5 * spread).to(self.point.dtype)

    def _std(self, jacobian: Tensor) -> Tensor:
        return (jacobian.square() @ self.variances.reshape(-1).to(torch.float64)).sqrt()

    def _jacobian(self, x: Tensor) -> Tensor:
        """Torch's own, or differences where torch has none, or has one that is not the function's.

        An embedding's padding has no gradient, and as_strided_scatter a wrong one.
        """
        if self.is_differentiable:
            found = torch.autograd.functional.jacobian(self.flat, x)  # type: ignore[no-untyped-call]
        else:
            columns = [self._slope(x, unit.view(x.shape)) for unit in torch.eye(x.numel()).to(x)]
            found = torch.stack(columns, -1) if columns else x.new_zeros(self.flat(x).numel(), 0)
        return found.reshape(-1, x.numel()).to(torch.float64)

    @cached_property
    def is_differentiable(self) -> bool:
        """Whether torch's derivative along some direction is the function's."""
        x = self.point
        try:
            jacobian = torch.autograd.functional.jacobian(self.flat, x)  # type: ignore[no-untyped-call]
        except (RuntimeError, NotImplementedError):
            return False
        direction = torch.linspace(0.5, 1.5, max(x.numel(), 1)).to(x)[: x.numel()]
        slope = self._slope(x, direction.view(x.shape))
        own = jacobian.reshape(-1, x.numel()) @ direction.to(jacobian)
        known = torch.isfinite(slope) & torch.isfinite(own)
        close = torch.isclose(slope, own, rtol=1e-2, atol=1e-4)
        return bool((close | ~known).all())

    def _slope(self, x: Tensor, direction: Tensor) -> Tensor:
        step = (1e-5 if x.dtype == torch.float64 else 1e-2) * direction
        with torch.no_grad():
            return (self.flat(x + step) - self.flat(x - step)) / (
                2 * step.norm() / direction.norm()
            )

    @cached_property
    def std(self) -> tuple[Tensor, Tensor]:
        """Standard deviations of the outputs to first order, and how much they change within the noise.

        The change is infinite where the function jumps.
        """
        root = self.variances.sqrt()
        generator = torch.Generator().manual_seed(6)
        value, slopes = self.flat(self.point), self._jacobian(self.point)
        center = self._std(slopes)
        slack, jumps = torch.zeros_like(center), torch.zeros_like(center, dtype=torch.bool)
        for _ in range(3):
            signs = torch.randint(0, 2, self.point.shape, generator=generator) * 2 - 1
            for step in (5 * signs * root, -5 * signs * root):
                there = self._jacobian(self.point + step)
                slack = torch.maximum(slack, (self._std(there) - center).abs())
                flat = step.reshape(-1).to(torch.float64)
                bent = (self.flat(self.point + step) - value - slopes @ flat).abs()
                # So far from linear at five standard deviations that one of them may show it: values that
                # change places, for example, whose slopes are the same.
                slack = torch.maximum(slack, bent / 5)
                # A smooth function is as far from linear as its slopes change; one that jumps is further.
                smooth = (there - slopes).abs() @ flat.abs() + 1e-2 * center + 1e-2 * STD
                jumps |= bent > smooth
        return center, torch.where(jumps, torch.inf, slack)

    @cached_property
    def sampled(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of plain samples."""
        generator = torch.Generator().manual_seed(7)
        root = self.variances.sqrt()
        draws = []
        with torch.no_grad():
            for _ in range(DRAWS):
                noise = torch.randn(self.point.shape, generator=generator, dtype=torch.float64)
                draws.append(self.flat(self.point + root * noise.to(self.point.dtype)))
        stacked = torch.stack(draws)
        # A jump that few samples reach is not to be seen by a method that has fewer.
        away = (stacked - stacked.median(0).values).abs()
        share = (away > 0.5 * away.amax(0)).double().mean(0)
        _, slack = self.std
        unseen = torch.isinf(slack) & (share < 0.1)
        std = stacked.std(0)
        # Nor is a standard deviation that depends on a few samples, as that of a tangent near its pole.
        kurtosis = (stacked - stacked.mean(0)).pow(4).mean(0) / std.pow(4)
        unseen |= ((kurtosis - 1) / (4 * DRAWS)).sqrt() > 0.1
        return stacked.mean(0), torch.where(unseen, torch.nan, std)


def leaves(value: Any) -> list[Any]:
    return pytree.tree_leaves(value, is_leaf=lambda leaf: isinstance(leaf, ua.Gaussian))


def _is_float(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def arguments_in_turn(
    name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[Call]:
    """For each floating-point tensor among the arguments, the function of that one."""
    if type(function).__name__ in ("method_descriptor", "wrapper_descriptor"):  # Tensor.relu
        method = function.__name__

        def function(x: Any, *rest: Any, **options: Any) -> Any:
            return getattr(x, method)(*rest, **options)

    values, spec = pytree.tree_flatten((args, kwargs))
    for i, value in enumerate(values):
        if not isinstance(value, Tensor) or not value.is_floating_point():
            continue
        if value.layout is not torch.strided or value.is_nested:
            continue

        def call(x: Any, i: int = i) -> Any:
            new = [v.clone() if isinstance(v, Tensor) and v is not x else v for v in values]
            new[i] = x
            filled_args, filled_kwargs = pytree.tree_unflatten(new, spec)
            return function(*filled_args, **filled_kwargs)

        yield Call(f"{name}[{i}]", call, value.detach())


def judge(call: Call, method: str) -> Verdict:
    """Right, refused, wrong or a crash."""
    try:
        value = call.value
        if not value or call.is_random or not bool(torch.isfinite(call.point).all()):
            return Verdict("skipped", "no floating-point output, random, or not finite")
        if max(call.point.numel(), sum(part.numel() for part in value)) > LARGEST:
            return Verdict("skipped", "large")
        call.std  # noqa: B018, computed here: an error is torch's
    except Exception as error:
        return Verdict("skipped", f"torch itself: {type(error).__name__}")
    if any(part.layout is not torch.strided for part in value):
        return Verdict("skipped", "sparse")
    try:
        for variances in (torch.zeros_like(call.point), call.variances):
            x = ua.Gaussian(call.point.clone(), variances)
            with _quiet():
                result = ua.propagate(call.function, x, method)
            noisy = bool(variances.any())
            # Without a derivative that is the function's, hybrid has its 16 samples alone.
            rough = 4 * 32**-0.5 if method == "hybrid" and not call.is_differentiable else 0.0
            wrong = _compare(call, result, noisy, rough)
            off = noisy and method == "diagonal" and wrong.startswith("std")
            if off and _is_approximate(call):
                return Verdict("approximate", wrong)
            if wrong and call.has_two_values:
                return Verdict("skipped", "torch has another value where it takes derivatives")
            if wrong:
                return Verdict("wrong", wrong)
    except ua.UnsupportedOperation as error:
        return Verdict("refused", str(error))
    except Exception as error:
        return Verdict("crash", f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
    return Verdict("right")


def _is_approximate(call: Call) -> bool:
    """Whether ``ua.coverage`` says that the diagonal method is not exact for it."""
    with _quiet():
        operations = ua.coverage(call.function, call.point.clone()).operations
    return len(operations) > 1 or any(op.moments != "exact" for op in operations)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        yield


def _compare(call: Call, result: Any, noisy: bool, rough: float) -> str:
    found = [leaf for leaf in leaves(result) if isinstance(leaf, ua.Gaussian) or _is_float(leaf)]
    if len(found) != len(call.value):
        return f"{len(found)} outputs for {len(call.value)}"
    for leaf, part in zip(found, call.value, strict=True):
        if leaf.shape != part.shape:
            return f"shape {tuple(leaf.shape)} for {tuple(part.shape)}"
        if leaf.dtype != part.dtype and part.dtype not in HALF:  # of which a result may be wider
            return f"{leaf.dtype} for {part.dtype}"
    as_double = [
        (leaf.loc if isinstance(leaf, ua.Gaussian) else leaf).detach().to(torch.float64)
        for leaf in found
    ]
    means = torch.cat([mean.reshape(-1) for mean in as_double])
    value = torch.cat([part.reshape(-1).to(torch.float64) for part in call.value])
    low = 1e-6 if all(part.dtype == torch.float64 for part in call.value) else 1e-3
    if not noisy:
        if not torch.allclose(means, value, rtol=low, atol=low, equal_nan=True):
            return (
                f"mean off by {(means - value).abs().nan_to_num(torch.inf).max():.3g} without noise"
            )
        return ""
    zero = [torch.zeros_like(mean) for mean in as_double]
    stds = torch.cat(
        [
            leaf.cov.var.detach().to(torch.float64).sqrt().reshape(-1)
            if isinstance(leaf, ua.Gaussian)
            else z.reshape(-1)
            for leaf, z in zip(found, zero, strict=True)
        ]
    )
    if any(part.dtype in HALF for part in call.value):
        return ""  # their rounding is larger than the noise
    return _compare_stds(call, means, stds, value, _stated_errors(found, zero), rough)


def _stated_errors(found: list[Any], zero: list[Tensor]) -> Tensor:
    """Standard errors of the standard deviations, where the method has them."""
    parts = []
    for leaf, z in zip(found, zero, strict=True):
        try:
            error = leaf.standard_error.std.to(torch.float64)
        except (AttributeError, ValueError):  # a plain tensor, or a method without
            error = z
        parts.append(error.reshape(-1))
    return torch.cat(parts)


def _compare_stds(
    call: Call, means: Tensor, stds: Tensor, value: Tensor, stated: Tensor, roughly: float
) -> str:
    truth, slack = call.std
    known = torch.isfinite(value) & torch.isfinite(truth) & ~slack.isnan()
    smooth = known & ((slack <= 0.2 * truth) | (slack <= 1e-2 * STD))
    allowed = (0.02 + roughly) * truth + slack + 1e-7 + 6 * stated
    off = (stds - truth).abs() - allowed
    if bool((smooth & ~(off <= 0)).any()):
        # A jump that the steps have missed: samples do not have the Jacobian's variance either.
        _, std = call.sampled
        smooth &= (off <= 0) | ((std - truth).abs() < 0.2 * truth + 5e-2 * STD)
    if bool((smooth & ~(off <= 0)).any()):
        i = int(torch.where(smooth, off.nan_to_num(torch.inf), -1).argmax())
        return f"std {stds[i]:.4g} for {truth[i]:.4g} at {i} (±{allowed[i]:.2g})"
    shift = (means - value).abs() - (0.2 * truth + slack + 1e-5 * (1 + value.abs()) + 6 * stated)
    if bool((smooth & ~(shift <= 0)).any()):
        i = int(torch.where(smooth, shift.nan_to_num(torch.inf), -1).argmax())
        return f"mean {means[i]:.6g} for {value[i]:.6g} at {i}, std {truth[i]:.3g}"
    rough = known & ~smooth
    if bool(rough.any()):
        mean, std = call.sampled
        rough &= torch.isfinite(std)
        off = (stds - std).abs() - (0.4 * std + 2e-2 * STD + 6 * stated)
        if bool((rough & ~(off <= 0)).any()):
            i = int(torch.where(rough, off.nan_to_num(torch.inf), -1).argmax())
            return f"std {stds[i]:.4g} for {std[i]:.4g} of samples at {i}"
        shift = (means - mean).abs() - (0.5 * std + 1e-2 * STD + 6 * stated)
        if bool((rough & ~(shift <= 0)).any()):
            i = int(torch.where(rough, shift.nan_to_num(torch.inf), -1).argmax())
            return f"mean {means[i]:.6g} for {mean[i]:.6g} of samples at {i}, std {std[i]:.3g}"
    return ""
