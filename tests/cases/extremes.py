"""Cases of maxima, sums that run on, windows, grids and further scalar functions."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from .table import Table, constant, like

T = Table()

# ------------------------------------------------------------------ maxima and minima
T.add("amax", lambda x: torch.amax(x, (0, -1), keepdim=True), (2, 3, 4), "joint", tolerance=2e-3)
T.add("amax", lambda x: x.amax(1), (4, 2), "joint", label="two", tolerance=1e-9)
T.add("amin", lambda x: x.amin(1), (2, 20, 3), "joint", tolerance=2e-3)
T.add("max", lambda x: x.max(), (3, 3), "joint", tolerance=2e-3)
T.add("max", lambda x: torch.max(x, 1, keepdim=True).values, (2, 5), "joint", label="dim",
      tolerance=2e-3)  # fmt: skip
T.add("max", lambda x: torch.max(x[:2], x[2:]), (4, 3), "joint", label="random", tolerance=1e-9)
T.add("min", lambda x: torch.min(x), (2, 3), "joint", tolerance=2e-3)
T.add("min", lambda x: x.min(dim=0)[0], (4, 2), "joint", label="dim", tolerance=2e-3)
T.add("maximum", lambda x: torch.maximum(x[:1], x[1:]), (3, 2), "joint", label="random",
      tolerance=1e-9)  # fmt: skip
T.add("maximum", lambda x: torch.maximum(x, like(0.4 * constant(2, 1), x)), (2, 3), "elementwise")
T.add("minimum", lambda x: x[:, :2].minimum(x[:, 2:]), (2, 4), "joint", label="random",
      tolerance=1e-9)  # fmt: skip
T.add("minimum", lambda x: torch.minimum(like(0.4 * constant(3), x), x), (2, 3), "elementwise")
T.add("fmax", lambda x: x.fmax(like(torch.tensor([0.3, float("nan"), -0.2]), x)), (2, 3),
      "elementwise")  # fmt: skip
T.add("fmin", lambda x: torch.fmin(x, like(torch.tensor([0.3, float("nan"), -0.2]), x)), (2, 3),
      "elementwise")  # fmt: skip
T.add("adaptive_max_pool1d", lambda x: F.adaptive_max_pool1d(x, 3), (1, 2, 7), "joint",
      tolerance=2e-3)  # fmt: skip
T.add("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, (2, None)), (1, 2, 5, 3), "joint",
      tolerance=2e-3)  # fmt: skip
T.add("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 1), (2, 2, 3, 4), "joint",
      label="global", tolerance=2e-3)  # fmt: skip
T.add("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (1, 2, 2)), (1, 2, 3, 2), "joint",
      tolerance=2e-3)  # fmt: skip
T.add("max_pool2d", lambda x: F.max_pool2d(x, 2, ceil_mode=True), (1, 5, 7), "joint",
      label="ceil", tolerance=2e-3)  # fmt: skip
T.add("max_pool2d", lambda x: F.max_pool2d(x, 2, 3, 1, 2), (1, 2, 6, 7), "joint",
      label="dilated", tolerance=2e-3)  # fmt: skip

# ------------------------------------------------------------------ running sums, windows
T.add("cumsum", lambda x: x.cumsum(1), (2, 4))
T.add("cumsum", lambda x: torch.cumsum(x, axis=0), (3, 2), label="axis")
T.add("diff", lambda x: torch.diff(x), (2, 5))
T.add("diff", lambda x: x.diff(n=3, dim=0), (5, 2), label="third")
T.add("diff", lambda x: x.diff(prepend=like(constant(2, 1), x), append=like(constant(2, 2), x)),
      (2, 3), label="ends")  # fmt: skip
T.add("diff", lambda x: x.diff(n=0, prepend=like(constant(2, 1), x)), (2, 3), label="none")
T.add("trace", lambda x: torch.trace(x), (3, 3))
T.add("unfold_windows", lambda x: F.unfold(x, (2, 3), dilation=(2, 1), padding=1, stride=(1, 2)),
      (1, 2, 5, 6))  # fmt: skip
T.add("fold", lambda x: F.fold(x, (4, 5), (2, 3), padding=1, stride=(2, 1)), (1, 12, 15))
for _mode in ("bilinear", "nearest", "bicubic"):
    for _padding in ("zeros", "border", "reflection"):
        for _aligned in (True, False):
            T.add(
                "grid_sample",
                lambda x, m=_mode, p=_padding, a=_aligned: F.grid_sample(
                    x, like(constant(2, 3, 4, 2), x), m, p, a
                ),
                (2, 2, 3, 4),
                label=f"{_mode}-{_padding}-{_aligned}",
            )
T.add("grid_sample", lambda x: F.grid_sample(x, like(constant(1, 2, 2, 3, 3), x), "bilinear",
      "border", False), (1, 2, 2, 3, 2), label="volume")  # fmt: skip

# ------------------------------------------------------------------ rearrangements and places
for _name, _call, _shape in (
    ("diag", lambda x: torch.diag(x, 1), (3,)),
    ("diag_embed", lambda x: torch.diag_embed(x, 1), (2, 3)),
    ("take", lambda x: x.take(torch.tensor([[0, 5], [2, 2]])), (2, 3)),
    ("dsplit", lambda x: x.dsplit(2)[1], (2, 2, 4)),
    ("dstack", lambda x: torch.dstack([x, like(constant(2, 3), x)]), (2, 3)),
    ("column_stack", lambda x: torch.column_stack([x, like(constant(2, 2), x)]), (2, 3)),
):
    T.add(_name, _call, _shape, label="more")
_PLACES = torch.tensor([[2, 0, 2], [1, 1, 0]])
_ROWS = torch.tensor([2, 0])
T.add("scatter", lambda x: x.scatter(1, torch.tensor([[2, 0], [1, 3]]), like(constant(2, 2), x)),
      (2, 4))  # fmt: skip
T.add("scatter", lambda x: torch.scatter(x, 1, torch.tensor([[2], [0]]), 1.5), (2, 4),
      label="number")  # fmt: skip
T.add("scatter_add", lambda x: x[:3].scatter_add(0, _PLACES, x[3:]), (5, 3), label="random")
T.add("scatter_add", lambda x: torch.scatter_add(like(constant(3, 3), x), 0, _PLACES, x), (2, 3))
T.add("scatter_reduce", lambda x: x[:3].scatter_reduce(0, _PLACES, x[3:], "sum"), (5, 3))
T.add("index_add", lambda x: torch.index_add(x[:3], 0, _ROWS, x[3:], alpha=-2), (5, 2))
T.add("index_copy", lambda x: x[:3].index_copy(0, _ROWS, x[3:]), (5, 2))
T.add("index_fill", lambda x: x.index_fill(1, _ROWS, 0.5), (2, 3))
T.add("index_fill", lambda x: x[:, :3].index_fill(1, _ROWS, x[0, 3]), (2, 4), label="random")
T.add(
    "index_fill",
    lambda x: x[:, :3].index_fill(1, torch.tensor([2, 0, 2]), x[0, 3]),
    (2, 4),
    label="twice",
)
T.add("index_put", lambda x: x.index_put((_ROWS,), like(constant(2), x)), (3, 2))
T.add("index_put", lambda x: x[:3].index_put((torch.tensor([0, 2, 0]),), x[3:], accumulate=True),
      (6, 2), label="sum")  # fmt: skip
T.add("masked_scatter", lambda x: x[:2].masked_scatter(torch.tensor([True, False, True]), x[2:]),
      (4, 3))  # fmt: skip
T.add("select_scatter", lambda x: x[:2].select_scatter(x[2] * 2, 0, 1), (3, 3))
T.add(
    "slice_scatter", lambda x: torch.slice_scatter(x, like(constant(2, 1), x), 1, 1, 4, 2), (2, 3)
)
T.add("diagonal_scatter", lambda x: torch.diagonal_scatter(like(constant(3, 3), x), x, 1), (2,))
T.add("as_strided", lambda x: x.contiguous().as_strided((2, 2), (1, 2), 1), (2, 3))
T.add("as_strided_copy", lambda x: torch.as_strided_copy(x, (2, 2), (1, 2)), (2, 3))
T.add("as_strided_scatter", lambda x: torch.as_strided_scatter(x, like(constant(2, 2), x), (2, 2),
      (1, 2), 1), (2, 3))  # fmt: skip
T.add("as_strided_scatter", lambda x: torch.as_strided_scatter(like(constant(2, 3), x), x, (2, 2),
      (1, 2)), (2, 2), label="source")  # fmt: skip

# ------------------------------------------------------------------ convolutions with every argument
T.add("conv1d", lambda x: F.conv1d(x, like(constant(3, 2, 4), x), padding="same", dilation=3),
      (1, 2, 9), label="even")  # fmt: skip
T.add("conv2d", lambda x: F.conv2d(x, like(constant(4, 1, 2, 4), x), like(constant(4), x), 1, "same",
      (2, 1), 2), (1, 2, 5, 6), label="even")  # fmt: skip
T.add("conv2d", lambda x: F.conv2d(x, like(constant(3, 2, 2, 3), x), stride=2, padding="valid"),
      (1, 2, 6, 5), label="valid")  # fmt: skip
T.add("conv_transpose2d", lambda x: F.conv_transpose2d(x, like(constant(4, 2, 3, 2), x),
      like(constant(4), x), (3, 2), (1, 2), (2, 1), 2, (2, 3)), (1, 4, 4, 3), label="all")  # fmt: skip

# ------------------------------------------------------------------ scalar functions
for _name, _call in (
    ("threshold", lambda x: F.threshold(x, 0.2, -0.5)),
    ("hardshrink", lambda x: F.hardshrink(x, 0.4)),
    ("softshrink", lambda x: F.softshrink(x, 0.3)),
    ("tanhshrink", lambda x: F.tanhshrink(2 * x)),
    ("exp2", lambda x: torch.exp2(0.5 * x)),
    ("expm1", lambda x: torch.expm1(0.5 * x)),
    ("sinh", lambda x: (0.5 * x).sinh()),
    ("cosh", lambda x: torch.cosh(0.5 * x)),
):
    T.add(_name, _call, (2, 3), "elementwise")
T.add(
    "prelu", lambda x: F.prelu(x, like(torch.tensor([0.3]), x)), (), "elementwise", label="scalar"
)
