"""Train the classifier that `uaprop demo` uses, and write it with some test digits.

Run from the repository: .venv/bin/python examples/train_digits.py [--out DIR]

Scikit-learn's 1797 digits, in their own order: the first 1500 train, the other 297 test. Those
297 are harder than most (a support vector machine gets 95% of them, and 99% of the 300 before).
Rate and decay were chosen by training on the first 1200 and looking at the next 300.
The same seed on the same machine and torch gives the same weights, bit for bit.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save
from sklearn.datasets import load_digits
from torch import Tensor, nn

from uaprop.demo.digits import IMAGES, WEIGHTS, WHITE, architecture

TRAIN = 1500
SEED = 0
EPOCHS = 60
BATCH = 50
RATE = 1e-2
DECAY = 1e-2
PER_CLASS = 3
KEEP = 24


def read_digits() -> tuple[Tensor, Tensor]:
    """Raw images (N, 1, 8, 8) in uint8, 0 to WHITE, and labels (N,) in int64."""
    digits = load_digits()
    return torch.tensor(digits.images, dtype=torch.uint8)[:, None], torch.tensor(digits.target)


def train(images: Tensor, labels: Tensor) -> nn.Sequential:
    torch.manual_seed(SEED)
    model = architecture()
    steps = EPOCHS * (len(images) // BATCH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=steps)
    for epoch in range(1, EPOCHS + 1):
        total = 0.0
        for batch in torch.randperm(len(images)).split(BATCH):
            loss = F.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item() * len(batch)
        if epoch % 10 == 0:
            print(f"epoch {epoch:3d}  training loss {total / len(images):.5f}")
    return model.eval()


def first_of_each_class(labels: Tensor) -> Tensor:
    """Indices of the first KEEP digits, at most PER_CLASS of a class, in the order they come."""
    earlier = F.one_hot(labels).cumsum(0).gather(1, labels[:, None])[:, 0]
    return (earlier <= PER_CLASS).nonzero()[:KEEP, 0]


def main() -> None:
    package = Path(__file__).resolve().parents[1] / "src" / "uaprop" / "demo"
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=package, help="folder for the two files")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)

    # Sums over several threads depend on their number.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    raw, labels = read_digits()
    images = raw / WHITE
    model = train(images[:TRAIN], labels[:TRAIN])
    with torch.no_grad():
        right = model(images[TRAIN:]).argmax(1) == labels[TRAIN:]
    accuracy = right.float().mean().item()
    print(f"test accuracy {accuracy:.2%} ({int(right.sum())} of {len(right)})")

    metadata = {
        "accuracy": f"{accuracy:.4f}",
        "seed": str(SEED),
        "torch": torch.__version__,
    }
    (out / WEIGHTS).write_bytes(save(model.state_dict(), metadata))
    kept = TRAIN + first_of_each_class(labels[TRAIN:])
    source = {"source": f"scikit-learn load_digits, from its last {len(labels) - TRAIN}"}
    chosen = {"images": raw[kept], "labels": labels[kept]}
    (out / IMAGES).write_bytes(save(chosen, source))
    print(f"wrote {out / WEIGHTS} and {out / IMAGES}")


if __name__ == "__main__":
    main()
