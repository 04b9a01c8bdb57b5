"""What a model really makes of its noisy input: Monte Carlo that keeps draws to judge itself by."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..gaussian import Gaussian
from ..methods.progress import Progress
from ..methods.samples import Batched, Stream
from ..records import opened
from .comparison import Errors

__all__ = ["Sampler", "Truth", "pooled"]

_CHUNK_ELEMENTS = 2**18  # elements in flight at once, as the method "samples" has them
_KEPT_ELEMENTS = 2**23  # draws kept: all outputs if they fit, else evenly spaced ones
_BLOCKS = 32  # least number of blocks that an error is averaged over


def pooled(answer: Any) -> list[Any]:
    """The floating-point tensors and Gaussians of a model's answer, in order."""
    leaves = pytree.tree_leaves(opened(answer), is_leaf=lambda leaf: isinstance(leaf, Gaussian))
    return [leaf for leaf in leaves if isinstance(leaf, Tensor | Gaussian) and _floating(leaf)]


def _floating(leaf: Tensor | Gaussian) -> bool:
    return isinstance(leaf, Gaussian) or leaf.is_floating_point()


class Sampler:
    """Runs a model on draws of its inputs and pools its outputs.

    Args:
        call: the model, of plain tensors.
        inputs: its inputs.
        seed: of the noise.
        batch: the number of items, if those of several draws may go in one batch.

    Attributes:
        size: draws that are computed at once.
        shapes: the outputs' shapes.
    """

    def __init__(
        self,
        call: Callable[..., Any],
        inputs: list[Gaussian],
        seed: int,
        batch: int | None = None,
    ) -> None:
        numbers = random.Random(f"uaprop.compare {seed}")  # none of the methods' seeds
        self._run = Batched(call, batch)
        self._stream = Stream(inputs, numbers.getrandbits(62))
        torch.manual_seed(numbers.getrandbits(62))  # the model's own noise
        first = pooled(self._run(*self._stream.take(1)))
        if not first:
            raise TypeError(
                "the model returns no floating-point tensor: there is nothing to compare"
            )
        self.shapes = [leaf.shape[1:] for leaf in first]
        self.precision = max(torch.finfo(leaf.dtype).eps for leaf in first)
        elements = max(sum(x.numel() for x in inputs), sum(leaf.numel() for leaf in first), 1)
        self.size = max(1, _CHUNK_ELEMENTS // elements)

    def draw(self, count: int) -> Tensor:
        """``(count, outputs)`` in float64."""
        leaves = pooled(self._run(*self._stream.take(count)))
        flat = [leaf.flatten(1) if leaf.ndim > 1 else leaf.unsqueeze(1) for leaf in leaves]
        return torch.cat([part.detach().double() for part in flat], dim=1)

    def step(self) -> tuple[Tensor, Tensor]:
        """A chunk of draws and its moments: the work that Monte Carlo has with them."""
        draws = self.draw(self.size)
        mean = draws.mean(0)
        return mean, (draws - mean).square_().sum(0)


@dataclass(frozen=True)
class Truth:
    """Moments of the pooled outputs, and draws of them to judge Monte Carlo by.

    Attributes:
        mean: (outputs,).
        std: (outputs,).
        varies: where ``std`` is finite and more than rounding.
        draws: draws of some outputs that vary, in units of their deviation from their mean.
        places: which outputs those are.
        shapes: the shapes of the outputs before they were pooled.
        samples: the number of draws.
    """

    mean: Tensor
    std: Tensor
    varies: Tensor
    draws: Tensor
    places: Tensor
    shapes: list[torch.Size]
    samples: int

    @classmethod
    def of(cls, sampler: Sampler, samples: int) -> Truth:
        """Draw ``samples`` times (Chan, Golub & LeVeque 1983, for the moments of the parts).

        Args:
            sampler: where draws come from.
            samples: how many.

        Returns:
            The truth.

        Raises:
            ValueError: if no output varies.
        """
        outputs = sum(shape.numel() for shape in sampler.shapes)
        kept = min(outputs, max(1, _KEPT_ELEMENTS // samples))
        places = (torch.arange(kept, device="cpu") * outputs) // max(kept, 1)
        draws = torch.empty((samples, kept), dtype=torch.float64, device="cpu")
        mean = squares = torch.zeros((), device="cpu")
        done = 0
        with Progress(samples, "sampling the truth") as progress:
            while done < samples:
                part = sampler.draw(min(sampler.size, samples - done))
                count, centre = len(part), part.mean(0)
                draws[done : done + count] = part[:, places]
                shift = centre - mean
                squares = squares + (part - centre).square_().sum(0)
                squares = squares + shift.square() * (done * count / (done + count))
                mean = mean + shift * (count / (done + count))
                done += count
                progress.advance(count)
        mean, std = mean.cpu(), (squares / (samples - 1)).sqrt().cpu()
        # where the variance underflows no method can be right, and where it nearly does none is asked
        dtype = torch.float32 if sampler.precision > 1e-12 else torch.float64
        least = torch.finfo(dtype).tiny ** 0.5
        varies = std.isfinite() & (std > sampler.precision * mean.abs()) & (std > least)
        if not bool(varies.any()):
            raise ValueError(
                "no output varies with the noise (or none is finite): there is nothing to compare"
            )
        places, draws = places[varies[places]], draws[:, varies[places]]
        draws = (draws - mean[places]) / std[places]
        if not len(
            places
        ):  # hardly any output varies, and none of those kept: take them for Gaussian
            generator = torch.Generator("cpu").manual_seed(0)
            draws = torch.randn(
                (samples, 1), generator=generator, dtype=torch.float64, device="cpu"
            )
        return cls(mean, std, varies, draws, places, sampler.shapes, samples)

    def errors(self, count: int, places: Tensor | None = None) -> tuple[float | None, float | None]:
        """How far ``count`` draws are off: the mean of ``|ŝ/σ - 1|``, and of ``|m̂ - μ|/σ``.

        Averaged over blocks of ``count`` draws of the truth; where there would be fewer than 32 blocks, over
        32 smaller ones, scaled as ``1/√count``. A deviation needs two draws, a mean one.

        Args:
            count: the number of draws.
            places: the outputs to average over; all that vary by default.

        Returns:
            Both errors, None where the draws are too few.
        """
        if count < 1:
            return None, None
        u = self._standard(places)
        size = min(count, self.samples // _BLOCKS)
        blocks = u[: len(u) // size * size].unflatten(0, (-1, size))
        # Blocks are part of the truth they are compared with, and so a little too close to it.
        scale = math.sqrt(size / count / (1 - size / self.samples))
        mean_error = scale * float(blocks.mean(1).abs().mean())
        if count < 2:
            return None, mean_error
        return scale * float((blocks.std(1) - 1).abs().mean()), mean_error

    def noise(self) -> Errors:
        """What the truth leaves uncertain: the errors that an exact method would show."""
        std_error, mean_error = self.errors(self.samples)
        assert std_error is not None
        assert mean_error is not None
        size = self.samples // _BLOCKS
        blocks = self.draws[: _BLOCKS * size].unflatten(0, (-1, size))
        std_bias = float(blocks.std(1).mean(1).std()) / math.sqrt(_BLOCKS)
        return Errors(std_error, std_bias, mean_error)

    def _standard(self, places: Tensor | None) -> Tensor:
        """The kept draws of these outputs; of all outputs if none of these was kept."""
        if places is None:
            return self.draws
        columns = torch.isin(self.places, places)
        return self.draws[:, columns] if bool(columns.any()) else self.draws
