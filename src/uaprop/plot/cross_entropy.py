"""The report's figure of ``UABCELoss``."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from ..gaussian import Gaussian
from ..nn import UABCELoss
from .style import BLACK, GREY, by_deviation, grid

__all__ = ["uabce"]

_DEVIATIONS = (1.0, 2.0, 4.0)


def uabce(figure: Figure) -> None:
    """Expected cross-entropy of a random score against the plain one, for both labels."""
    means = torch.linspace(-8, 8, 401, dtype=torch.float64)
    panels = grid(figure, 1, 2, sharey=True)
    for label, axes in enumerate(panels):
        target = torch.full_like(means, label)
        plain = F.binary_cross_entropy_with_logits(means, target, reduction="none")
        axes.plot(means, plain, color=BLACK, label="standard BCE (σ = 0)")
        for deviation, colour in zip(_DEVIATIONS, by_deviation(len(_DEVIATIONS)), strict=True):
            score = Gaussian(means, std=deviation)
            taylor = UABCELoss("report", reduction="none")(score, target)
            axes.plot(means, taylor, color=colour, linewidth=1.1, alpha=0.55)
            exact = UABCELoss(reduction="none")(score, target)
            axes.plot(means, exact, "--", color=colour, label=f"UABCELoss, σ = {deviation:g}")
        axes.set(title=f"Label y = {label}", xlabel="mean score μ", xlim=(-8, 8), ylim=(0, 8.4))
    panels[0].set_ylabel("expected loss E[ℓ(x)] (nats)")
    handles, _ = panels[0].get_legend_handles_labels()
    faint = Line2D([], [], color=GREY, linewidth=1.1, alpha=0.8)
    faint.set_label("report's Taylor form, signs corrected")
    panels[0].legend(handles=[*handles, faint], loc="upper left")
    figure.suptitle("UABCELoss: binary cross-entropy of a random score x ~ N(μ, σ²)")
