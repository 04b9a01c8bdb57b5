"""Cases of operators that only exported graphs have."""

from __future__ import annotations

from typing import Any

import torch

from .table import Table, constant, like

T = Table()
aten = torch.ops.aten

T.add("aten_slice", lambda x: aten.slice.Tensor(x, -1, 1, 9223372036854775807, 2), (2, 5))
T.add("aten_index", lambda x: aten.index.Tensor(x, [None, torch.tensor([2, 0, 2])]), (2, 3))


def _put(x: Any) -> Any:
    value = like(constant(2), x)
    return aten.index_put.default(x, [torch.tensor([0, 1]), torch.tensor([2, 0])], value)


T.add("aten_index_put", _put, (2, 3))
T.add("aten_split", lambda x: aten.split_with_sizes.default(x, [1, 3], 1)[1], (2, 4))
T.add("aten_split", lambda x: aten.unsafe_split.Tensor(x, 3, 1)[0], (2, 4), label="unsafe")
T.add("aten_chunk", lambda x: aten.unsafe_chunk.default(x, 2, 1)[1], (2, 4))
T.add("aten_view", lambda x: aten._unsafe_view.default(x, [3, 2]), (2, 3))
T.add("aten_alias", lambda x: aten.alias.default(x), (2, 3))
T.add("aten_to", lambda x: aten._to_copy.default(x, dtype=x.dtype), (2, 3))
T.add("aten_pad", lambda x: aten.constant_pad_nd.default(x, [1, 2], 0.5), (2, 3))
for _dims in (1, 2, 3):
    for _kind in ("reflection", "replication"):
        T.add(
            f"aten_{_kind}_pad{_dims}d",
            lambda x, n=f"{_kind}_pad{_dims}d", d=_dims: getattr(aten, n).default(x, [1, 1] * d),
            (2, *[3] * _dims),
        )
T.add(
    "aten_convolution",
    lambda x: aten.convolution.default(
        x, like(constant(4, 2, 2, 2), x), None, [1, 1], [1, 0], [1, 1], False, [0, 0], 1
    ),
    (1, 2, 3, 3),
)
T.add(
    "aten_convolution",
    lambda x: aten.convolution.default(
        x, like(constant(2, 3, 2), x), None, [2], [0], [1], True, [1], 1
    ),
    (1, 2, 3),
    label="transposed",
)
T.add("aten_softmax", lambda x: aten._softmax.default(x, 1, False), (2, 3), "joint", tolerance=0.03)
T.add("aten_log_softmax", lambda x: aten._log_softmax.default(x, 0, False), (2, 3), "joint",
      tolerance=0.03)  # fmt: skip
T.add("aten_embedding", lambda x: aten.embedding.default(x, torch.tensor([[2, 0], [1, 2]])), (3, 2))
T.add("aten_feature_dropout", lambda x: aten.feature_dropout.default(x, 0.3, True), (2, 3, 2, 2),
      "noise")  # fmt: skip
for _name, _shape, _size in (
    ("upsample_nearest1d", (1, 2, 3), [5]),
    ("upsample_nearest2d", (1, 1, 3, 2), [5, 4]),
    ("upsample_nearest3d", (1, 1, 2, 2, 2), [3, 4, 3]),
    ("_upsample_nearest_exact1d", (1, 2, 3), [5]),
    ("_upsample_nearest_exact2d", (1, 1, 3, 2), [5, 4]),
    ("_upsample_nearest_exact3d", (1, 1, 2, 2, 2), [3, 4, 3]),
):
    T.add(f"aten_{_name}", lambda x, n=_name, s=_size: getattr(aten, n).vec(x, s, None), _shape)
for _name, _shape, _size in (
    ("upsample_linear1d", (1, 2, 3), [5]),
    ("upsample_bilinear2d", (1, 1, 3, 2), [5, 4]),
    ("upsample_trilinear3d", (1, 1, 2, 2, 2), [3, 4, 3]),
    ("upsample_bicubic2d", (1, 1, 3, 3), [5, 4]),
    ("_upsample_bilinear2d_aa", (1, 1, 6, 5), [3, 2]),
    ("_upsample_bicubic2d_aa", (1, 1, 6, 5), [3, 2]),
):
    T.add(
        f"aten_{_name}",
        lambda x, n=_name, s=_size: getattr(aten, n).vec(x, s, False, None),
        _shape,
    )
T.add(
    "aten_upsample_bilinear2d",
    lambda x: aten.upsample_bilinear2d.vec(x, None, False, [2.0, 1.5]),
    (1, 1, 3, 4),
    label="factors",
)
T.add("aten_upsample_nearest2d", lambda x: aten.upsample_nearest2d.vec(x, None, [2.0, 2.0]),
      (1, 1, 2, 3), label="factors")  # fmt: skip

# The same functions by their operators, which have another order of arguments.
T.add(
    "batch_norm",
    lambda x: aten.batch_norm.default(
        x, None, like(constant(3), x), like(constant(3), x), like(constant(3).abs() + 0.5, x),
        False, 0.1, 1e-5, True,
    ),
    (2, 3, 4),
    label="operator",
)  # fmt: skip
T.add("relu", lambda x: aten.relu.default(x), (2, 3), "elementwise", label="operator")
T.add("where", lambda x: aten.where.self(torch.tensor([True, False, True]), x, x * 2), (2, 3),
      label="operator")  # fmt: skip
