"""What a network really makes of its noisy input: plain Monte Carlo, computed once and kept.

Run from the repository: .venv/bin/python benchmarks/truth.py [NAME ...]
The files in benchmarks/.cache/ can be deleted at any time.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from zoo import Subject, subjects

CACHE = Path(__file__).parent / ".cache"

# Draws that count as the truth: a standard deviation of Gaussian outputs is then known to 0.5%,
# 0.7% and 1%.
SAMPLES = {"digits": 20_000, "resnet20": 10_000, "crepe_logits": 10_000, "efficientnet": 5_000}
DEFAULT_SAMPLES = 20_000

# Draws that go through the network together. More than this is no faster, and from 8 on
# efficientnet takes twice as long: its activations no longer fit what malloc keeps.
FOLDED = {"digits": 32, "efficientnet": 2}
DEFAULT_FOLDED = 16


@dataclass(frozen=True)
class Truth:
    """Moments of a network's outputs, each (batch, outputs) in float64, and how well known.

    Attributes:
        mean: the outputs' means.
        std: their standard deviations.
        samples: the number of draws.
        mean_error: the standard error of `mean`, std/√samples.
        std_error: the standard error of `std`, √((μ₄ − std⁴)/samples)/(2 std) with the fourth
            central moment μ₄ of the draws. Outputs that hardly ever move, such as a probability
            next to 1, have it underestimated: few draws decide it.
    """

    mean: Tensor
    std: Tensor
    samples: int
    mean_error: Tensor
    std_error: Tensor


def truth(subject: Subject, level: int, samples: int | None = None) -> Truth:
    """The outputs' moments under ``subject.noises[level]``, from the cache where it has them.

    Draws are seeded by everything that decides them, so that they repeat, and differ from those
    of every other subject and level and of `ua.propagate`.
    """
    samples = samples or SAMPLES.get(subject.name, DEFAULT_SAMPLES)
    digest = _digest(subject, level, samples)
    path = CACHE / f"{subject.name}-{level}-{samples}-{digest[:16]}.safetensors"
    if path.exists():
        return Truth(**load_file(path), samples=samples)
    answer = _monte_carlo(subject, level, samples, seed=int(digest[:15], 16))
    tensors = {key: value for key, value in asdict(answer).items() if key != "samples"}
    CACHE.mkdir(exist_ok=True)
    # Renamed when complete: another process never reads half a file.
    unfinished = path.with_suffix(f".{os.getpid()}")
    save_file(tensors, unfinished, metadata={"noise": subject.labels[level]})
    unfinished.replace(path)
    return answer


@torch.no_grad()
def _monte_carlo(subject: Subject, level: int, samples: int, seed: int) -> Truth:
    inputs, std = subject.inputs, torch.as_tensor(subject.noises[level], dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    folded = FOLDED.get(subject.name, DEFAULT_FOLDED)

    def outputs(draws: int) -> Tensor:
        noise = torch.randn(draws, *inputs.shape, generator=generator)
        answers = subject.model((inputs + std * noise).flatten(0, 1))
        return answers.unflatten(0, (draws, len(inputs))).double()

    # Powers of differences from a first estimate of the mean: no cancellation. The estimate only
    # shifts the sums, so its draws count like all others.
    first = outputs(min(folded, samples))
    shift = first.mean(0)
    powers = torch.arange(1, 5).view(4, 1, 1, 1)
    sums = ((first - shift) ** powers).sum(1)
    done = len(first)
    while done < samples:
        draws = min(folded, samples - done)
        sums += ((outputs(draws) - shift) ** powers).sum(1)
        done += draws
    m1, m2, m3, m4 = sums / samples
    second = m2 - m1.square()
    fourth = m4 - 4 * m1 * m3 + 6 * m1.square() * m2 - 3 * m1**4
    deviation = (second * samples / (samples - 1)).clamp(min=0).sqrt()
    spread = ((fourth - second.square()).clamp(min=0) / samples).sqrt()
    return Truth(
        mean=shift + m1,
        std=deviation,
        samples=samples,
        mean_error=deviation / samples**0.5,
        std_error=torch.where(deviation > 0, spread / (2 * deviation), 0.0),
    )


def _digest(subject: Subject, level: int, samples: int) -> str:
    """A hash of all that decides the draws: name, level, samples, weights, inputs and noise."""
    digest = hashlib.sha256(f"{subject.name} {level} {samples}".encode())
    noise = torch.as_tensor(subject.noises[level], dtype=torch.float32)
    tensors = {"inputs": subject.inputs, "noise": noise, **subject.model.state_dict()}
    for key, value in sorted(tensors.items()):
        digest.update(f"{key} {value.dtype} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=list(subjects()), help="all by default")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for name in options.names:
        subject = subjects()[name]()
        for level, label in enumerate(subject.labels):
            start = time.perf_counter()
            answer = truth(subject, level)
            std, error = answer.std.median(), (answer.std_error / answer.std).nanmedian()
            print(
                f"{name}, {label}: {answer.samples:,} draws in {time.perf_counter() - start:.0f} s,"
                f" median std {std:.3g}, known to {100 * error:.1f}%",
                flush=True,
            )


if __name__ == "__main__":
    main()
