"""A trained network with inputs it was made for, and noise on them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

Noise = float | Tensor


@dataclass(frozen=True)
class Subject:
    """A trained network, inputs it was made for, and three strengths of noise on them.

    Attributes:
        name: its key in `zoo.subjects` or `zoo.pretrained`.
        model: in eval mode, float32, without gradients; a tensor in, a tensor (batch, outputs) out.
        inputs: the batch that noise is added to.
        others: further inputs of the same kind, to fit a calibration to; may be empty.
        noises: standard deviations of independent noise on every element of `inputs`, in the
            units of `inputs`; a tensor broadcasts with them.
        labels: the same in the units of what was measured, for people.
        source: where network and inputs come from.
    """

    name: str
    model: nn.Module
    inputs: Tensor
    others: Tensor
    noises: tuple[Noise, Noise, Noise]
    labels: tuple[str, str, str]
    source: str


def subject(
    name: str,
    model: nn.Module,
    inputs: Tensor,
    others: Tensor,
    levels: tuple[float, float, float],
    source: str,
    unit: Noise = 1.0,
    of: str = "[0,1]",
) -> Subject:
    """Assemble a subject; ``unit`` is one of what the levels count, in the units of the inputs."""
    low, middle, high = levels
    return Subject(
        name=name,
        model=model.eval().requires_grad_(False),
        inputs=inputs.contiguous(),
        others=others.contiguous(),
        noises=(low * unit, middle * unit, high * unit),
        labels=(f"{low:g} of {of}", f"{middle:g} of {of}", f"{high:g} of {of}"),
        source=source,
    )
