"""Cases of products, joins and views that are less common in networks."""

from __future__ import annotations

import torch

from .table import Table, constant, like

T = Table()

# ------------------------------------------------------------------ joins and views
T.add("meshgrid", lambda x: torch.meshgrid(x, like(constant(2), x), indexing="ij")[0], (3,))
T.add("meshgrid", lambda x: torch.meshgrid(x[:2], x[2:], indexing="xy")[1], (5,), label="xy")
T.add("broadcast_tensors", lambda x: torch.broadcast_tensors(x, torch.empty(4, 1, 3))[0], (2, 3))
T.add("atleast_1d", lambda x: torch.atleast_1d(x), ())
T.add("atleast_2d", lambda x: torch.atleast_2d(x, x[0])[1], (3,))
T.add("atleast_3d", lambda x: torch.atleast_3d([x, x[0]])[1], (2, 3))
T.add("positive", lambda x: +x, (2, 3))
T.add("split_with_sizes", lambda x: x.split_with_sizes([1, 2], 1)[1], (2, 3))
T.add("block_diag", lambda x: torch.block_diag(x, like(constant(2, 2), x), x[0]), (2, 3))
T.add(
    "nan_to_num", lambda x: torch.where(constant(2, 3) > 0, x, float("nan")).nan_to_num(0.5), (2, 3)
)
for _name, _call in (
    ("alias_copy", lambda x: torch.alias_copy(x)),
    ("detach_copy", lambda x: torch.detach_copy(x)),
    ("diagonal_copy", lambda x: torch.diagonal_copy(x, 1)),
    ("expand_copy", lambda x: torch.expand_copy(x, (2, 3, 4))),
    ("narrow_copy", lambda x: torch.narrow_copy(x, 1, 1, 2)),
    ("permute_copy", lambda x: torch.permute_copy(x, (1, 0))),
    ("select_copy", lambda x: torch.select_copy(x, 1, 2)),
    ("slice_copy", lambda x: torch.slice_copy(x, 1, 0, 4, 2)),
    ("split_copy", lambda x: torch.split_copy(x, 3, 1)[1]),
    ("split_with_sizes_copy", lambda x: torch.split_with_sizes_copy(x, [1, 3], 1)[1]),
    ("squeeze_copy", lambda x: torch.squeeze_copy(x[:, :1])),
    ("t_copy", lambda x: torch.t_copy(x)),
    ("transpose_copy", lambda x: torch.transpose_copy(x, 0, 1)),
    ("unbind_copy", lambda x: torch.unbind_copy(x, 1)[2]),
    ("unfold_copy", lambda x: torch.unfold_copy(x, 1, 2, 1)),
    ("unsqueeze_copy", lambda x: torch.unsqueeze_copy(x, 1)),
    ("view_copy", lambda x: torch.view_copy(x, (2, 6))),
    ("linalg_diagonal", lambda x: torch.linalg.diagonal(x, offset=1)),
):
    T.add(_name, _call, (3, 4))

# ------------------------------------------------------------------ products
T.add("matmul", lambda x: torch.linalg.matmul(x, like(constant(3, 2), x)), (2, 3), label="linalg")
T.add("vdot", lambda x: torch.vdot(x, like(constant(3), x)), (3,))
T.add("vdot", lambda x: x[:2].vdot(x[2:]), (4,), "bilinear", label="random")
T.add("dot", lambda x: torch.dot(x, x), (4,), "joint", tolerance=1e-9, label="itself", rounds=True)
T.add("vecdot", lambda x: torch.linalg.vecdot(x, like(constant(3), x)), (2, 3))
T.add("vecdot", lambda x: torch.linalg.vecdot(x, like(constant(2, 4), x)), (2, 1), label="broadcast",
      rounds=True)  # fmt: skip
T.add("vecdot", lambda x: torch.linalg.vecdot(x[:2], x[2:], dim=0), (4, 3), "bilinear",
      label="random")  # fmt: skip
T.add("vecdot", lambda x: torch.linalg.vecdot(x, x), (2, 3), "joint", tolerance=1e-9, label="itself",
      rounds=True)  # fmt: skip
T.add("kron", lambda x: torch.kron(x, like(constant(2, 2), x)), (2, 3))
T.add("kron", lambda x: torch.kron(x[:1], x[1:]), (3, 2), "bilinear", label="random")
T.add("cross", lambda x: torch.cross(x, like(constant(2, 3), x), 1), (2, 3))
T.add(
    "cross", lambda x: x[:, :2].cross(x[:, 2:], 0), (3, 4), "bilinear", label="random", rounds=True
)
T.add("linalg_cross", lambda x: torch.linalg.cross(like(constant(1, 3), x), x), (2, 3))
T.add("linalg_cross", lambda x: torch.linalg.cross(x[:1], x[1:]), (3, 3), "bilinear", label="random",
      rounds=True)  # fmt: skip
T.add("prod", lambda x: torch.prod(x, 1), (2, 3), "joint", tolerance=1e-9)
T.add("prod", lambda x: x.prod(0, keepdim=True), (4, 2), "joint", tolerance=0.02, label="dim")
T.add("prod", lambda x: (1 + 0.2 * x).prod(), (2, 3), "joint", tolerance=1e-9, label="all")
