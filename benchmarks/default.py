"""The default alone against plain Monte Carlo that takes as much time: `ua.propagate(model, x)`.

Run from the repository: make bench-default, or
OMP_NUM_THREADS=1 .venv/bin/python benchmarks/default.py [NAME ...] [--seeds 20]

For every network and noise level: what the default costs, how many plain samples the same processor time
buys, and the errors of both. The truth is Monte Carlo (benchmarks/truth.py), computed once and cached in
benchmarks/.cache. Every network's part of benchmarks/results/default.json is replaced when it has been
measured, so networks can be run one at a time; docs/default.py writes the page.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import platform
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import truth as known_truth
from audio import fcpe, fcpe_no_grad, pesto, pesto_scores, silero
from image_to_image import denoiser, superresolution
from minilm import minilm
from photographs import imagenet, opennsfw
from records import read, write
from subject import Subject
from tabular import breast_cancer, controller, diabetes, smooth_controller, wine
from torch import Tensor
from truth import Truth, truth
from zoo import crepe, digits, onet, resnet20, resnet44, rnet

import uaprop as ua

RESULTS = Path(__file__).parent / "results" / "default.json"

# Items of each network, and samples that count as the truth.
NETWORKS: dict[Callable[[], Subject], tuple[int, int]] = {
    diabetes: (16, 400_000),
    breast_cancer: (16, 400_000),
    wine: (16, 400_000),
    controller: (16, 400_000),
    smooth_controller: (16, 400_000),
    digits: (8, 50_000),
    rnet: (4, 20_000),
    onet: (4, 8_000),
    resnet20: (4, 10_000),
    resnet44: (4, 4_000),
    crepe: (4, 5_000),
    silero: (4, 40_000),
    pesto: (2, 4_000),
    pesto_scores: (2, 4_000),
    fcpe: (2, 3_000),
    fcpe_no_grad: (2, 3_000),
    minilm: (1, 4_000),
    denoiser: (2, 4_000),
    superresolution: (4, 4_000),
    opennsfw: (2, 2_000),
    imagenet: (2, 2_000),
}
SEEDS = 20
FEWEST_SEEDS = 5
BUDGET = 10.0  # seconds for the default's results at one level: large networks get fewer seeds
TIMING = 2.0  # seconds to measure each cost for
ROUNDS = (3, 15)
FOLDS = (1, 4, 16, 64, 256, 1024)  # samples in one batch, by hand
FOLDED_ELEMENTS = 2**22  # of the input, at most
FOLDED_TRUTH = 100_000  # elements of the input that go through the network together for the truth

ACTIVE = 0.01  # activations whose true mean is larger are active
ACTIVATIONS = ("crepe", "fcpe", "fcpe_no_grad")
ROUNDING = 3e-6  # a std below this part of the mean is one of rounding errors
UNKNOWN = 0.1  # outputs whose true std is not known to this part are not judged

REMOVED = 0.1  # of the pixels, whose noise attribution is tested with
ATTRIBUTED = {"digits", "rnet", "resnet20", "crepe"}
TOLERANCES = (0.2, 0.1, 0.05, 0.02)
LEVEL = 1  # at which attribution and tolerances are measured

Record = dict[str, Any]


def loaders() -> dict[str, Callable[[], Subject]]:
    """The networks, cheapest kind first; calling one loads it."""
    return {load.__name__: load for load in NETWORKS}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="networks; all by default")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of errors, at most")
    parser.add_argument("--levels", type=int, nargs="+", default=[0, 1, 2], help="of the noise")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the JSON file")
    options = parser.parse_args()
    if unknown := set(options.names) - set(loaders()):
        parser.error(f"no network {', '.join(unknown)}; there are {', '.join(loaders())}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in options.names or loaders():
        start = time.perf_counter()
        subject, samples = load(name)
        record: Record = {
            "source": subject.source,
            "inputs": list(subject.inputs.shape),
            "machine": f"{platform.machine()}, one thread, torch {torch.__version__}",
            "levels": [
                measured(subject, level, samples, options.seeds) for level in options.levels
            ],
        }
        if name in ATTRIBUTED:
            record["attribution"] = attribution(subject, samples)
        if has_tolerance():
            record["tolerances"] = tolerances(subject, samples, options.seeds)
        write(options.output, name, record, loaders())
        print(f"{lines(name, record)}\n{name}: {time.perf_counter() - start:.0f} s\n", flush=True)
    print(summary(read(options.output)))


def load(name: str) -> tuple[Subject, int]:
    """A network with as many items as are measured, and the number of samples of its truth."""
    found = loaders()[name]
    items, samples = NETWORKS[found]
    whole = found()
    noises = []
    for noise in whole.noises:
        one_each = isinstance(noise, Tensor) and len(noise) == len(whole.inputs) > 1
        one_each = one_each and noise.ndim == whole.inputs.ndim
        noises.append(noise[:items] if one_each else noise)
    size = whole.inputs[:items].numel()
    known_truth.FOLDED[name] = max(1, min(1000, FOLDED_TRUTH // size))
    return dataclasses.replace(whole, inputs=whole.inputs[:items], noises=tuple(noises)), samples


# ------------------------------------------------------------------------------------------ errors


def measured(subject: Subject, level: int, samples: int, seeds: int) -> Record:
    """Costs and errors at one noise level."""
    known = truth(subject, level, samples)
    x = gaussian(subject, level)
    found = views(subject, known)
    record: Record = {
        "label": subject.labels[level],
        "outputs": known.mean.shape[1],
        "judged": {name: int(mask.sum()) for name, mask in found.items()},
        "all": known.mean.numel(),
        "constant": int((~varies(known)).sum()),
        "unknown": int((varies(known) & ~is_known(known)).sum()),
        "truth": samples,
    }
    first = processor_time(lambda: propagated(subject, x))
    record |= costs(subject, level) | {"first_seconds": first}
    seeds = max(FEWEST_SEEDS, min(seeds, int(BUDGET / record["seconds"])))
    ours = []
    for seed in range(seeds):
        y = propagated(subject, x, seed=seed, keys=range(len(subject.inputs)))
        ours.append(y)
        if not seed:
            record["provenance"] = str(y.provenance)
            record["method"] = method(y)
    plain = [monte_carlo(subject, level, record["samples"], seed) for seed in range(seeds)]
    record["seeds"] = seeds
    record["views"] = {
        name: compared(ours, plain, known, mask) for name, mask in found.items() if mask.any()
    }
    return record


def gaussian(subject: Subject, level: int) -> ua.Gaussian:
    return ua.Gaussian(subject.inputs, std=subject.noises[level])


def propagated(subject: Subject, x: ua.Gaussian, **options: Any) -> ua.Gaussian:
    """The default's mean and standard deviation, computed and not only promised."""
    with torch.no_grad():
        y: ua.Gaussian = ua.propagate(subject.model, x, **options)
        y.mean, y.std  # noqa: B018
    return y


def method(y: ua.Gaussian) -> str:
    """What the default chose."""
    told = y.provenance
    assert told is not None
    parts = [told.method]
    for name in ("samples", "rank"):
        if told.options.get(name) is not None:
            parts.append(f"{name}={told.options[name]}")
    return " ".join(parts) + (", captured" if told.entrance else "")


def varies(known: Truth) -> Tensor:
    """Outputs that vary by more than their rounding errors."""
    return known.std > ROUNDING * known.mean.abs()


def is_known(known: Truth) -> Tensor:
    return known.std_error < UNKNOWN * known.std


def views(subject: Subject, known: Truth) -> dict[str, Tensor]:
    """Which outputs are judged, as masks ``(batch, outputs)``."""
    judged = varies(known) & is_known(known)
    found = {"all": judged}
    if subject.name in ACTIVATIONS:
        found["active"] = judged & (known.mean > ACTIVE)
    return found


def compared(
    ours: list[ua.Gaussian], plain: list[tuple[Tensor, Tensor]], known: Truth, mask: Tensor
) -> Record:
    """Errors of both, averaged over outputs, items and seeds, and the z-scores of ours.

    ``ratio_error`` is the ratio's standard error, from the spread between the seeds.
    """
    std_z, mean_z = [], []
    errors: dict[str, dict[str, list[float]]] = {"ours": {}, "plain": {}}
    for y in ours:
        _note(errors["ours"], y.mean, y.std, known, mask)
        error = y.standard_error
        if error is not None:
            std_z.append(_z(y.std - known.std, error.std, known.std_error, mask))
            mean_z.append(_z(y.mean - known.mean, error.mean, known.mean_error, mask))
    for mean, std in plain:
        _note(errors["plain"], mean, std, known, mask)
    record: Record = {}
    for quantity in ("std", "mean"):
        our, their = (torch.tensor(errors[who][quantity]) for who in ("ours", "plain"))
        ratio = float(our.mean() / their.mean())
        relative = [float(e.std() / e.mean()) / math.sqrt(len(e)) for e in (our, their)]
        record[quantity] = {
            "error": float(our.mean()),
            "plain": float(their.mean()),
            "ratio": ratio,
            "ratio_error": ratio * math.hypot(*relative),
        }
    record["std"]["bias"] = statistics.fmean(errors["ours"]["bias"])
    record["std"]["z"] = _rms(std_z)
    record["mean"]["z"] = _rms(mean_z)
    return record


def _note(
    errors: dict[str, list[float]], mean: Tensor, std: Tensor, known: Truth, mask: Tensor
) -> None:
    off = (std.double() / known.std - 1)[mask]
    errors.setdefault("std", []).append(float(off.abs().mean()))
    errors.setdefault("bias", []).append(float(off.mean()))
    away = ((mean.double() - known.mean) / known.std)[mask]
    errors.setdefault("mean", []).append(float(away.abs().mean()))


def _z(difference: Tensor, own: Tensor, of_truth: Tensor, mask: Tensor) -> Tensor:
    return (difference.double() / torch.hypot(own.double(), of_truth))[mask]


def _rms(values: list[Tensor]) -> float | None:
    return float(torch.stack(values).square().mean().sqrt()) if values else None


# ------------------------------------------------------------------------------------------- costs


@torch.no_grad()
def monte_carlo(
    subject: Subject, level: int, samples: int, seed: int, fold: int = 16
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of so many samples, as one would compute them by hand."""
    generator = torch.Generator().manual_seed(1_000_003 * (seed + 1) + level)
    x = subject.inputs
    std = torch.as_tensor(subject.noises[level], dtype=x.dtype)
    outputs = []
    fold = max(1, min(fold, FOLDED_ELEMENTS // x.numel()))
    for start in range(0, samples, fold):
        noise = torch.randn(min(fold, samples - start), *x.shape, generator=generator)
        noisy = (x + std * noise).flatten(0, 1)
        outputs.append(subject.model(noisy).unflatten(0, (-1, len(x))))
    stack = torch.cat(outputs)
    return stack.mean(0), stack.std(0)


def costs(subject: Subject, level: int) -> Record:
    """The default's processor time, in passes and in plain samples that it could buy.

    A sample's time is the least of those with one sample in a batch, or several: noise, pass and moments.
    Passes, samples and the default take turns, so that whatever else the machine does slows all alike.
    """
    model, inputs, x = subject.model, subject.inputs, gaussian(subject, level)

    @torch.no_grad()
    def one_pass() -> None:
        model(inputs)

    def samples_of(fold: int) -> Callable[[], None]:
        return lambda: (monte_carlo(subject, level, fold, 0, fold), None)[1]

    def default() -> None:
        propagated(subject, x)

    folds = [fold for fold in FOLDS if fold == 1 or fold * inputs.numel() <= FOLDED_ELEMENTS]
    each: dict[int, float] = {}
    for fold in folds:
        run = samples_of(fold)
        run()
        each[fold] = min(processor_time(run, 0.05) for _ in range(3)) / fold
        if each[fold] > 1.5 * min(each.values()):
            break  # larger ones do not fit the caches either
    fold = min(each, key=lambda candidate: each[candidate])
    folded = samples_of(fold)
    one_pass()
    passes, singles, defaults = [], [], []
    end = time.perf_counter() + TIMING
    least, most = ROUNDS
    while len(defaults) < least or (len(defaults) < most and time.perf_counter() < end):
        passes.append(processor_time(one_pass, 0.02))
        singles.append(processor_time(folded, 0.05) / fold)
        defaults.append(processor_time(default, 0.02))
    in_passes = statistics.median(d / p for d, p in zip(defaults, passes, strict=True))
    in_samples = statistics.median(d / s for d, s in zip(defaults, singles, strict=True))
    return {
        "seconds": statistics.median(defaults),
        "pass_seconds": statistics.median(passes),
        "passes": in_passes,
        "samples": max(2, round(in_samples)),
        "fold": fold,
    }


def processor_time(run: Callable[[], Any], least: float = 0.0) -> float:
    """Of one run; of several in a row, averaged, until they took so many seconds."""
    start, count = time.process_time(), 0
    while True:
        run()
        count += 1
        spent = time.process_time() - start
        if spent >= least:
            return spent / count


# ---------------------------------------------------------------------------- attribution, tolerance


def attribution(subject: Subject, samples: int) -> list[Record]:
    """Predicted and measured fall of variance without the noise of the most important pixels.

    For each item: the tenth of the pixels that contribute most to the variance of the output with the
    largest mean. A pixel is all channels at one position. ``predicted`` is their part of the variance,
    ``of_parts`` that of what is attributed to any pixel, which is less than the variance.
    """
    x = gaussian(subject, LEVEL)
    y = propagated(subject, x)
    known = truth(subject, LEVEL, samples)
    chosen = torch.where(varies(known), known.mean, -torch.inf).argmax(1)
    quiet = torch.as_tensor(subject.noises[LEVEL]).expand_as(subject.inputs).clone()
    predicted, of_parts = [], []
    for item, output in enumerate(chosen.tolist()):
        try:
            parts = y.attribution(output)[item]
        except ValueError:  # plain samples say nothing of it
            return []
        of_pixels = parts.sum(0) if parts.ndim == 3 else parts
        flat = of_pixels.flatten()
        top = flat.topk(round(REMOVED * len(flat))).indices
        mask = torch.zeros_like(flat, dtype=torch.bool)
        mask[top] = True
        quiet[item][mask.view(of_pixels.shape).expand_as(parts)] = 0
        predicted.append(float(flat[top].sum() / y.var[item, output]))
        of_parts.append(float(flat[top].sum() / flat.sum()))
    noises = list(subject.noises)
    noises[LEVEL] = quiet
    without = dataclasses.replace(subject, noises=tuple(noises))
    rest = truth(without, LEVEL, samples)
    found = []
    for item, output in enumerate(chosen.tolist()):
        fall = 1 - float(rest.std[item, output] / known.std[item, output]) ** 2
        found.append(
            {
                "output": output,
                "predicted": predicted[item],
                "of_parts": of_parts[item],
                "measured": fall,
            }
        )
    return found


def has_tolerance() -> bool:
    """Whether the default can be asked for a precision."""
    try:
        ua.propagate(torch.exp, ua.Gaussian(torch.zeros(1, 2), std=0.1), rtol=0.5)
    except TypeError:
        return False
    return True


def tolerances(subject: Subject, samples: int, seeds: int) -> list[Record]:
    """Errors that were achieved, for errors that were asked for."""
    known = truth(subject, LEVEL, samples)
    mask = views(subject, known)["all"]
    x = gaussian(subject, LEVEL)
    found = []
    for rtol in TOLERANCES:
        off, away, spent, size = [], [], [], []
        started = time.perf_counter()
        for seed in range(seeds):
            begin = time.process_time()
            y = propagated(subject, x, seed=seed, keys=range(len(subject.inputs)), rtol=rtol)
            spent.append(time.process_time() - begin)
            off.append((y.std.double() / known.std - 1)[mask])
            away.append(((y.mean.double() - known.mean) / known.std)[mask])
            told = y.provenance.options.get("samples") if y.provenance else None
            size.append(told or 0)
            if len(off) >= 3 and time.perf_counter() - started > BUDGET:
                break
        std, mean = torch.stack(off), torch.stack(away)
        found.append(
            {
                "rtol": rtol,
                "seeds": len(off),
                "std_rms": float(std.square().mean().sqrt()),
                "std_error": float(std.abs().mean()),
                "std_within": float((std.abs() <= rtol).double().mean()),
                "mean_rms": float(mean.square().mean().sqrt()),
                "mean_within": float((mean.abs() <= rtol).double().mean()),
                "seconds": statistics.median(spent),
                "samples": statistics.median(size),
                "method": method(y),
            }
        )
    return found


# ------------------------------------------------------------------------------------------ records


def lines(name: str, record: Record) -> str:
    """A table for a terminal."""
    found = [
        f"{name}: {record['source']}",
        f"  {'noise':24} {'outputs':>14} {'method':28} {'passes':>7} {'MC':>6} | "
        f"{'std':>7} {'MC':>7} {'ratio':>5} {'z':>5} | {'mean':>7} {'MC':>7} {'ratio':>5} {'z':>5}",
    ]
    for level in record["levels"]:
        for view, values in level["views"].items():
            std, mean = values["std"], values["mean"]
            outputs = f"{view} {level['judged'][view]}/{level['all']}"
            found.append(
                f"  {level['label']:24} {outputs:>14} {level['method']:28} {level['passes']:7.1f} "
                f"{level['samples']:6} | {std['error']:7.2%} {std['plain']:7.2%} {std['ratio']:5.2f} "
                f"{_number(std['z'])} | {mean['error']:7.4f} {mean['plain']:7.4f} "
                f"{mean['ratio']:5.2f} {_number(mean['z'])}"
            )
    for each in record.get("attribution", ()):
        found.append(
            f"  attribution: output {each['output']}, predicted fall {each['predicted']:.3f} "
            f"({each['of_parts']:.3f} of all parts), measured {each['measured']:.3f}"
        )
    for each in record.get("tolerances", ()):
        found.append(
            f"  rtol {each['rtol']}: std {each['std_rms']:.3f} rms, {each['std_within']:.0%} within; "
            f"mean {each['mean_rms']:.3f} rms, {each['mean_within']:.0%} within; {each['method']}"
        )
    return "\n".join(found)


def _number(value: float | None) -> str:
    return f"{value:5.2f}" if value is not None else "    –"


def summary(results: dict[str, Any]) -> str:
    """Medians and maxima of the ratios over all networks and levels."""
    found = []
    for quantity in ("std", "mean"):
        ratios, high = [], []
        for name, record in results["networks"].items():
            for level in record["levels"]:
                for view, values in level["views"].items():
                    one = values[quantity]
                    ratios.append(one["ratio"])
                    if one["ratio"] > 1.05:
                        high.append(f"{name} {view} {level['label']} {one['ratio']:.2f}")
        median, most = statistics.median(ratios), max(ratios)
        found.append(f"{quantity}: median {median:.2f}, at most {most:.2f}, {len(ratios)} cases")
        found.append(f"  above 1.05: {len(high)}" + "".join(f"\n    {each}" for each in high))
        outside = []
        for name, record in results["networks"].items():
            z = [v[quantity]["z"] for level in record["levels"] for v in level["views"].values()]
            if any(value is None or not 0.7 <= value <= 1.3 for value in z):
                outside.append(f"{name} " + " ".join(_number(value).strip() for value in z))
        found.append(f"  z outside 0.7 to 1.3: {len(outside)} networks")
        found += [f"    {each}" for each in outside]
    return "\n".join(found)


if __name__ == "__main__":
    main()
