"""How likely the prediction changes: `ua.flip_probability` of the default against a plain sample's frequency.

Run from the repository: OMP_NUM_THREADS=1 .venv/bin/python benchmarks/flips.py
Ten minutes. A hundred images of two networks, at two noise levels each. The plain sample is as large as the
default's processor time allows, `flip_probability` included; the truth is a larger one, whose own error is
not subtracted. docs/default.py puts the results on the page.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from default import FOLDED_ELEMENTS, gaussian, processor_time, propagated
from records import write
from sklearn.datasets import load_digits
from subject import Subject
from torch import Tensor
from zoo import cifar10, digits, resnet20

import uaprop as ua

RESULTS = Path(__file__).parent / "results" / "flips.json"
IMAGES, LEVELS = 100, (1, 2)
TRUTH, SEEDS = 1000, 5


def many_digits() -> Subject:
    """The demonstration's network on scans that it was not trained on."""
    scans = torch.from_numpy(load_digits().images[1500 : 1500 + IMAGES]).float()[:, None] / 16
    return dataclasses.replace(digits(), inputs=scans)


def many_photographs() -> Subject:
    """ResNet-20 on the first test images of CIFAR-10."""
    return dataclasses.replace(resnet20(), inputs=cifar10()[0][:IMAGES])


NETWORKS: dict[str, Callable[[], Subject]] = {"digits": many_digits, "resnet20": many_photographs}


@torch.no_grad()
def changed(subject: Subject, level: int, samples: int, seed: int) -> Tensor:
    """How often the class with the largest score is another than without noise, ``(images,)``."""
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + level)
    x, std = subject.inputs, torch.as_tensor(subject.noises[level])
    predicted = subject.model(x).argmax(1)
    fold = max(1, min(16, FOLDED_ELEMENTS // x.numel()))
    count = torch.zeros(len(x))
    for start in range(0, samples, fold):
        noise = torch.randn(min(fold, samples - start), *x.shape, generator=generator)
        found = subject.model((x + std * noise).flatten(0, 1)).argmax(1).view(-1, len(x))
        count += (found != predicted).sum(0)
    return count / samples


def measured(subject: Subject, level: int) -> dict[str, Any]:
    """Mean absolute errors of both, and the root mean square of the default's over what it states."""
    x, keys = gaussian(subject, level), range(len(subject.inputs))
    default_time = min(
        processor_time(lambda: ua.flip_probability(propagated(subject, x))) for _ in range(3)
    )
    sample_time = processor_time(lambda: changed(subject, level, 16, 0)) / 17  # and one pass before
    samples = max(2, round(default_time / sample_time))
    truth = changed(subject, level, TRUTH, seed=1000)
    ours, plain, scores = [], [], []
    for seed in range(SEEDS):
        found = ua.flip_probability(propagated(subject, x, seed=seed, keys=keys))
        ours.append(float((found.flip - truth).abs().mean()))
        plain.append(float((changed(subject, level, samples, seed) - truth).abs().mean()))
        if found.standard_error is not None:
            known = (truth * (1 - truth) / TRUTH).sqrt()
            error = torch.hypot(found.standard_error, known).clamp_min(1e-3)
            scores.append(((found.flip - truth) / error).square().mean())
    return {
        "label": subject.labels[level],
        "samples": samples,
        "changed": float(truth.mean()),
        "error": statistics.fmean(ours),
        "plain": statistics.fmean(plain),
        "z": float(torch.stack(scores).mean().sqrt()) if scores else None,
    }


def main() -> None:
    torch.set_num_threads(1)
    for name, load in NETWORKS.items():
        subject = load()
        levels = [measured(subject, level) for level in LEVELS]
        write(RESULTS, name, {"levels": levels}, NETWORKS)
        for level in levels:
            print(name, level, flush=True)


if __name__ == "__main__":
    main()
