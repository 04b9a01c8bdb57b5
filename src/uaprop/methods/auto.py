"""Choose a method from the number of outputs and from what the first samples say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..dispatch.watch import current
from ..errors import UnsupportedOperation
from ..gaussian import Gaussian
from ..numerics.chance import mixed, reseeded
from ..provenance import Provenance
from ..records import opened
from .answer import joined, map_leaves
from .arguments import Arguments, is_gaussian, mapped
from .batch_independence import UNSEEN_STATE, BatchItems, default_chunk
from .centred import CentredAccumulator, blocks, centred_noise, parts
from .entrance import either_way, with_notes
from .hybrid import sampled_response, usually_averaged
from .linear_map import exact_if_linear
from .nominal import outputs_and_work
from .options import check_distinct, check_keys, whole_number, whole_numbers_if_given
from .own_randomness import refuse_own_randomness
from .pilot import PILOT, Pilot, explained_share, pilot_noise
from .plain_samples import PlainSamples
from .reachable import modules_of
from .response import chosen
from .samples import samples
from .user_warning import warn_user

__all__ = ["auto"]

_SAMPLES = 36  # with what else is run, about as expensive as 40 forward passes
_WITH_RESPONSE = 26  # samples beside a response
_FEW_OUTPUTS = 64  # more backward passes than this are not made without rtol
_PER_OUTPUT, _FIXED = 1.35, 20.0  # what a response costs, in samples: measured on residual networks
_WORK = 2**27  # operations for an item that take no longer than to call a small model
_MOST_CHEAP = 2048  # samples of a small model
_FEW_SOURCES = 64  # for quasi-random points
_FEWEST_POINTS = 512
_FEWEST_QUASI = 16
_MOST_NOISE = 2**27  # numbers in memory
_MOST_SAMPLES = 16_384
_UNKNOWN = 1e6  # in place of an infinite relative error
_MARGIN = 1.2  # by which samples are more than the stated error asks for: it is uncertain itself


def auto(
    model: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    rtol: float | None = None,
    max_samples: int = _MOST_SAMPLES,
    seed: int = 0,
    outputs: Sequence[int] | None = None,
    keys: Sequence[int] | None = None,
    chunk: int | None = None,
) -> Any:
    """Choose a method from the number of outputs and from what the first samples say.

    The cost is about that of 40 forward passes; a small model is run on more samples, up to 2048, which
    take no longer than to call it. A response (``"hybrid"``) takes a backward pass for each output, so that
    with ``N`` samples to spend ``n`` of them are left. It explains the part ``R²`` of the variance that is
    linear in the noise, which ten samples estimate (:mod:`~uaprop.methods.pilot`). The means are as
    accurate as without if ``1 - R² = n/N``, and the standard deviations more accurate. So

    - an item of a model with up to 64 outputs has ``"hybrid"`` if ``1 - R² < n/N``, and otherwise
      ``"samples"``, centred, with variances shrunk towards each other;
    - a script (``torch.jit``) has ``"samples"``: a response would need its graph, which takes seconds to
      capture;
    - a model with more outputs has ``"samples"``, and a small one with up to 64 noise sources for each item
      samples on quasi-random points; both are exact if the model is linear over its noise
      (:mod:`~uaprop.methods.linear_map`).

    The choice and its reason are in the result's ``provenance``.

    With ``rtol`` an item whose standard errors are too large is run again on as many samples as they
    suggest, until they are below ``rtol`` for 95% of its outputs or there are ``max_samples``. Its result
    depends on no other item's.

    Args:
        model: any callable on tensors.
        args: its positional arguments, Gaussians among them.
        kwargs: its keyword arguments.
        rtol: the relative standard error that standard deviations may have.
        max_samples: how many samples there may be for it.
        seed: makes the result reproducible.
        outputs: which outputs of each batch element are wanted; all by default.
        keys: an integer for each batch element, from which its noise is derived together with the seed.
        chunk: batch elements at a time; bounds the memory.

    Returns:
        The model's output, in Gaussians with standard errors.

    Raises:
        ValueError: if ``rtol`` is not between 0 and 1.
    """
    whole_number("seed", seed, 0)
    whole_number("max_samples", max_samples, _SAMPLES)
    whole_numbers_if_given(chunk=chunk)
    if rtol is not None and not (isinstance(rtol, int | float) and 0 < rtol < 1):
        raise ValueError(f"rtol is a relative error between 0 and 1, such as 0.05, not {rtol!r}")
    arguments = Arguments(args, kwargs)
    check_keys(keys, arguments)
    run = _Run(model, arguments, seed, outputs, chunk)
    if rtol is None:
        return run(arguments, keys, run.size)
    return _refined(run, arguments, keys, rtol, max_samples)


def _refined(
    run: _Run, arguments: Arguments, keys: Sequence[int] | None, rtol: float, most: int
) -> Any:
    """More samples for the items whose standard errors are too large, until they are not."""
    batch, items = arguments.batch, BatchItems(run.model, arguments)
    size = min(run.size, most)
    if batch == 0:
        return run(arguments, keys, size)
    todo = [(size, torch.arange(batch or 1, device="cpu"))]
    done: list[tuple[Tensor, Any]] = []
    while todo:
        size, index = todo.pop()
        # those of a batch that cannot be cut are run with the others, whose results are not taken
        whole = batch is None or len(index) == batch or not items.are_cuttable
        part = arguments if whole else arguments.cut(index)
        own = keys if keys is None or whole else [keys[i] for i in index.tolist()]
        result = run(part, own, size)
        if whole and batch is not None and len(index) < batch:
            wanted = torch.zeros(batch, dtype=torch.bool, device="cpu").index_fill(0, index, True)
            result = _items(result, wanted, batch)
        error = _stated_errors(result, len(index) if batch is not None else None)
        alike = len(index) < 2 or bool((error <= rtol).all()) or size >= most
        # items that influence each other stay together
        if error.numel() != len(index) or not (alike or items.are_independent):
            error = error.amax().expand(len(index))
        enough = (error <= rtol) | (size >= most)
        for reached in (True, False):
            now = enough & ((error <= rtol) == reached)
            if not bool(now.any()):
                continue
            words = "reached" if reached else f"not reached with max_samples={most}"
            told = _because(result, f"rtol={rtol:g} {words}", add=True)
            done.append((index[now], told if bool(now.all()) else _items(told, now, len(index))))
        needed = size * (error / rtol).square() * _MARGIN
        steps = torch.log2(needed / size).ceil().clamp_min(1)
        for step in steps[~enough].unique().tolist():
            again = ~enough & (steps == step)
            todo.append((min(most, size * 2 ** int(min(step, 30))), index[again]))
    if len(done) == 1:
        return done[0][1]
    return _merged([index for index, _ in done], [result for _, result in done], batch)


def _stated_errors(result: Any, batch: int | None) -> Tensor:
    """The relative standard error that 95% of the standard deviations keep, ``(batch,)`` or ``(1,)``."""
    parts = []
    for value in pytree.tree_leaves(opened(result), is_leaf=is_gaussian):
        if not is_gaussian(value) or value.provenance is None or value.numel() == 0:
            continue
        of_items = batch is not None and value.ndim > 1 and value.shape[0] == batch
        std = value.std.detach().double().cpu()
        if value.provenance.standard_error is None:  # exact
            relative = torch.zeros_like(std)
        else:
            error = value.standard_error.std.double().cpu()
            # Samples that are all the same may not have met what makes them differ.
            relative = torch.where(std > 0, error / torch.where(std > 0, std, 1), torch.inf)
        parts.append(relative.reshape(batch if of_items and batch else 1, -1))
    if not parts:
        return torch.zeros(1, device="cpu")
    if len({len(part) for part in parts}) > 1:
        parts = [part.reshape(1, -1) for part in parts]
    errors = torch.cat(parts, 1).nan_to_num(0, posinf=_UNKNOWN)
    return errors.kthvalue(math.ceil(0.95 * errors.shape[1]), 1).values


def _items(result: Any, chosen_ones: Tensor, batch: int) -> Any:
    """The results of some items."""

    def rows(value: Any) -> Any:
        of_items = isinstance(value, Gaussian | Tensor) and value.ndim > 0 and len(value) == batch
        return value[chosen_ones.to(value.device)] if of_items else value

    return pytree.tree_map(rows, result, is_leaf=is_gaussian)


def _merged(order: list[Tensor], parts: list[Any], batch: int | None) -> Any:
    """The results of all items, from those of some each."""
    back = torch.cat(order).argsort()
    lengths = [len(index) for index in order]

    def merge(*values: Any) -> Any:
        whole = joined(lengths, *values)
        of_items = isinstance(whole, Gaussian | Tensor) and whole.ndim > 0 and len(whole) == batch
        return whole[back.to(whole.device)] if of_items else whole

    return map_leaves(merge, *parts)


class _Run:
    """Runs of a model on some items of its batch, each with a number of samples to spend.

    Args:
        model: any callable on tensors.
        arguments: its arguments, those of the whole batch.
        seed: of the samples.
        outputs: which outputs are wanted.
        chunk: batch elements at a time.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        arguments: Arguments,
        seed: int,
        outputs: Sequence[int] | None,
        chunk: int | None,
    ) -> None:
        self.model, self.seed, self.outputs, self.chunk = model, seed, outputs, chunk
        self.picked = model if outputs is None else _picking(model, outputs)
        count, work = _outputs(model, arguments)
        device = arguments.gaussians[0].device
        self.wanted = count if outputs is None else len(chosen(outputs, count, device))
        fitting = _WORK // max(work, 1)
        self.cheap = min(_MOST_CHEAP, 1 << max(0, fitting.bit_length() - 1))
        self.size = max(_SAMPLES, self.cheap)

    def __call__(self, arguments: Arguments, keys: Sequence[int] | None, size: int) -> Any:
        """The model's output, in Gaussians, for about the cost of ``size`` samples."""
        whole = sum(x.numel() for x in arguments.gaussians)
        elements = whole // (arguments.batch or 1)
        few_sources = self.cheap >= _FEWEST_POINTS and 0 < elements <= _FEW_SOURCES
        if (
            few_sources and whole > _FEW_SOURCES
        ):  # those of all items, if these influence each other
            few_sources = BatchItems(self.model, arguments).are_independent
        many_outputs = self.wanted > max(_FEW_OUTPUTS, size // 3)
        if few_sources:
            result = self._quasi_random(arguments, keys, size)
            return _because(result, f"a small model with {elements} noise sources for each item")
        # a response is exact if the model is linear, and sees more of where it is not
        few = self.wanted <= _FEW_OUTPUTS or self.cheap <= _SAMPLES
        if few and not many_outputs:
            return _Choice(self, arguments, keys, size).result()
        exact = _exact(self.picked, arguments, self.wanted)
        if exact is not None:
            return _because(
                exact, f"{self.wanted} outputs, linear over the noise, so this is exact"
            )
        if not many_outputs:
            return _Choice(self, arguments, keys, size).result()
        result = self._samples(arguments, keys, size, size * elements <= _MOST_NOISE)
        return _because(result, f"{self.wanted} outputs, too many for a backward pass each")

    def _samples(
        self, arguments: Arguments, keys: Sequence[int] | None, size: int, centred: bool
    ) -> Any:
        """Plain samples, centred if all of their noise fits into memory."""
        args, kwargs = arguments.filled(arguments.gaussians)
        return samples(
            self.picked,
            args,
            kwargs,
            samples=size,
            seed=self.seed,
            centred=centred,
            moderated=True,
            keys=keys,
            chunk=self.chunk,
        )

    def _quasi_random(self, arguments: Arguments, keys: Sequence[int] | None, size: int) -> Any:
        """Samples on quasi-random points, a power of two of them."""
        args, kwargs = arguments.filled(arguments.gaussians)
        return samples(
            self.picked,
            args,
            kwargs,
            samples=1 << int(math.log2(max(size, _FEWEST_QUASI))),
            seed=self.seed,
            qmc=True,
            keys=keys,
            chunk=self.chunk,
        )


class _Choice:
    """A pilot, and for each item what it suggests.

    Args:
        run: the model and its options.
        arguments: of some items.
        keys: of these items.
        size: samples to spend.
    """

    def __init__(
        self, run: _Run, arguments: Arguments, keys: Sequence[int] | None, size: int
    ) -> None:
        self.model, self.wanted, self.seed = run.model, run.wanted, run.seed
        self.outputs, self.chunk = run.outputs, run.chunk
        self.arguments, self.keys = arguments, keys
        cost = _FIXED + _PER_OUTPUT * self.wanted
        self.samples = size
        self.beside = max(_WITH_RESPONSE, size if size > _SAMPLES else 0)
        # of a small model all of them: it takes no longer
        self.averaged = (
            self.beside if run.cheap >= size > _SAMPLES else usually_averaged(self.beside)
        )
        self.enough = cost / (self.beside + cost)  # of the variance, for a response to pay

    def result(self) -> Any:
        """The model's output, in Gaussians."""
        for join in (True, False):
            with reseeded(mixed(self.seed, PILOT), 1):  # the model's own randomness
                result, items = self._attempt(join)
                if items.confirm():
                    return result
            if not items.refute():
                break
        warn_user(UNSEEN_STATE)
        return result

    def _attempt(self, join: bool) -> tuple[Any, BatchItems]:
        """The model's output; whether samples go through it together if that seems to be the same."""
        arguments, batch = self.arguments, self.arguments.batch
        items, pilot = self._pilot(join)
        items.check_cut(self.chunk)
        if any(isinstance(module, torch.jit.ScriptModule) for module in modules_of(self.model)):
            # its graph would have to be captured, which takes as long as very many samples
            result = self._plain(arguments, self.keys, pilot, items)
            return _because(result, f"{self.wanted} outputs of a script"), items
        shares = self._shares(pilot, items)
        linear = shares > self.enough
        together = self.wanted * (batch or 1)
        if not items.are_independent and together > max(_FEW_OUTPUTS, self.samples // 3):
            result = self._plain(arguments, self.keys, pilot, items)
            words = "outputs of items that influence each other, too many for a backward pass each"
            return _because(result, f"{together} {words}"), items
        if bool(linear.all()) or not bool(linear.any()):
            return self._run(bool(linear.all()), arguments, self.keys, pilot, items), items
        parts, order = [], []
        for mostly in (True, False):
            index = torch.where(linear == mostly)[0]
            order.append(index)
            if not items.are_cuttable:
                result = self._run(mostly, arguments, self.keys, pilot, items)
                parts.append(_items(result, linear == mostly, batch or 0))
                continue
            keys = None if self.keys is None else [self.keys[i] for i in index.tolist()]
            some = pilot.select(index, batch)
            parts.append(self._run(mostly, arguments.cut(index), keys, some, items))
        return _merged(order, parts, batch), items

    def _pilot(self, join: bool) -> tuple[BatchItems, Pilot]:
        """The first samples, and what is known of the batch's items."""
        arguments, gaussians = self.arguments, self.arguments.gaussians
        means = [x.loc.detach() for x in gaussians]
        stacks = pilot_noise(gaussians, self.seed, arguments.batch is not None, self.keys)
        pair = [[m + s[i] for m, s in zip(means, stacks, strict=True)] for i in (0, 1)]
        items = BatchItems(self.model, arguments, (pair[0], pair[1]))
        if not join:
            items.refute()
        run = PlainSamples(self.model, items, PILOT)
        if arguments.batch is not None and not items.are_independent:
            check_distinct(self.keys)
            stacks = pilot_noise(gaussians, self.seed, False, self.keys)
        return items, Pilot(stacks, run(arguments, stacks))

    def _shares(self, pilot: Pilot, items: BatchItems) -> Tensor:
        """What a response explains of each item's variances; of all together if they influence each other."""
        batch = self.arguments.batch if items.are_independent else None

        def rows(result: Any, stacked: bool) -> Tensor | None:
            parts = []
            for leaf in pytree.tree_leaves(result):
                if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
                    continue
                stack = leaf if stacked else leaf.unsqueeze(0)
                if batch is None or (stack.ndim > 1 and stack.shape[1] == batch):
                    stack = self._selected(stack)
                    parts.append(stack.reshape(len(stack), batch or 1, -1))
            if not parts:
                return None
            whole = torch.cat(parts, 2)
            return whole if stacked else whole[0]

        try:
            found = explained_share(self.model, self.arguments, pilot, rows)
        except (RuntimeError, TypeError, AttributeError):  # it has no derivative
            found = None
        return torch.zeros(batch or 1, device="cpu") if found is None else found.cpu()

    def _selected(self, stack: Tensor) -> Tensor:
        """The wanted outputs of a stack."""
        if self.outputs is None:
            return stack
        flat = stack.flatten(2) if stack.ndim > 2 else stack.reshape(len(stack), -1)
        return flat[..., chosen(self.outputs, flat.shape[-1], stack.device)]

    def _run(
        self,
        mostly_linear: bool,
        arguments: Arguments,
        keys: Sequence[int] | None,
        pilot: Pilot,
        items: BatchItems,
    ) -> Any:
        """Results of some items, by the method that suits them."""
        reason = f"{self.wanted} outputs, too nonlinear in the noise for a backward pass each"
        if mostly_linear:
            watch = current()
            try:
                result = self._response(arguments, keys, pilot, items)
                if watch is not None:
                    watch.check()
                return _because(result, f"{self.wanted} outputs, mostly linear in the noise")
            except (RuntimeError, TypeError, AttributeError) as error:  # it ran on plain tensors
                reason = f"hybrid cannot run the model ({_summary(error)})"
                if watch is not None:
                    watch.refusals.clear()
                exact = self._if_linear(arguments)
                if exact is not None:
                    return _because(exact, f"{reason}, but it is linear over the noise")
        return _because(self._plain(arguments, keys, pilot, items), reason)

    def _if_linear(self, arguments: Arguments) -> Any:
        """The exact result of a model that is linear over its noise, although it has no rules."""
        picked = self.model if self.outputs is None else _picking(self.model, self.outputs)
        return _exact(picked, arguments, self.wanted)

    def _response(
        self,
        arguments: Arguments,
        keys: Sequence[int] | None,
        pilot: Pilot,
        items: BatchItems,
    ) -> Any:
        with refuse_own_randomness("hybrid", self.model, arguments):
            result, entrance = either_way(
                self.model,
                arguments,
                lambda way: sampled_response(
                    way,
                    arguments,
                    self.beside,
                    self.averaged,
                    self.seed,
                    self.outputs,
                    None,
                    keys,
                    self.chunk,
                    pilot,
                    items,
                ),
            )
        return with_notes(result, entrance, ())

    def _plain(
        self,
        arguments: Arguments,
        keys: Sequence[int] | None,
        pilot: Pilot,
        items: BatchItems,
    ) -> Any:
        """More samples, and their moments."""
        batch, more = arguments.batch, self.samples - PILOT
        size = self.chunk
        if size is None:
            elements = sum(x.numel() for x in arguments.gaussians)
            size = default_chunk(items, more * elements) if items.are_independent else None
        sizes = parts(more, len(blocks(self.samples)) - 1)  # the pilot is a block of its own
        run = PlainSamples(self.model, items, more)
        told = Provenance("samples", {"samples": self.samples, "seed": self.seed, "centred": True})
        results, lengths = [], []
        for part, piece in arguments.pieces(size):
            own = keys if keys is None or part == slice(None) else keys[part]
            noise = centred_noise(piece.gaussians, sizes, self.seed, items.are_independent, own)
            known = pilot if part == slice(None) else pilot.select(part, batch)
            moments = self._moments(told, [PILOT, *sizes])
            totals = pytree.tree_map(moments, known.results, run(piece, noise))
            results.append(totals)
            lengths.append(piece.batch or 0)
        if len(results) == 1:
            return results[0]
        return pytree.tree_map(lambda *v: joined(lengths, *v), *results, is_leaf=is_gaussian)

    def _moments(self, told: Provenance, sizes: list[int]) -> Callable[[Any, Any], Any]:
        def moments(first: Any, others: Any) -> Any:
            total = CentredAccumulator(sizes)
            if isinstance(first, Tensor) and first.is_floating_point():
                total.add(self._selected(torch.cat([first, others])))
            else:
                total.add(first)
                total.add(others)
            return total.result(told, True)

        return moments


def _summary(error: Exception) -> str:
    if isinstance(error, UnsupportedOperation):
        return f"{error.operation} in '{error.module}'" if error.module else error.operation
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def _exact(model: Callable[..., Any], arguments: Arguments, outputs: int) -> Any:
    """The result of a model that is linear over its noise; None of any other."""
    try:
        return exact_if_linear(model, arguments, outputs)
    except (RuntimeError, TypeError):  # no derivative; whether the model runs is seen elsewhere
        return None


def _picking(model: Callable[..., Any], outputs: Sequence[int]) -> Callable[..., Any]:
    """The model with some outputs of each batch element only."""

    def pick(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        flat = value.flatten(1) if value.ndim > 1 else value.reshape(-1)
        return flat[..., chosen(outputs, flat.shape[-1], value.device)]

    return lambda *args, **kwargs: pytree.tree_map(pick, opened(model(*args, **kwargs)))


def _outputs(model: Callable[..., Any], arguments: Arguments) -> tuple[int, int]:
    """How many outputs the model has for each item, and what it computes for one.

    The latter is a part of what it computes for all, so that it does not depend on how many there are: what
    does not come from the input, such as a weight that is normalised each time, is not counted. The model
    is not run on one item to see: it may not be made for that.

    Returns:
        The two numbers.
    """
    batch = arguments.batch
    answer, work = outputs_and_work(model, arguments)
    total = 0
    for value in answer:
        if isinstance(value, Tensor) and value.is_floating_point():
            one_by_one = batch is not None and value.ndim > 1 and value.shape[0] == batch
            total += value.shape[1:].numel() if one_by_one else value.numel()
    return total, work // (batch or 1)


def _because(answer: Any, reason: str, add: bool = False) -> Any:
    """The result with the reason of the choice, or with one more."""

    def tell(value: Gaussian) -> Gaussian:
        told = value.provenance
        if told is None:
            return value
        words = f"{told.reason}; {reason}" if add and told.reason else reason
        return value.with_provenance(replace(told, reason=words))

    return mapped(tell, answer)
