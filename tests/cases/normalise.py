"""Cases of normalisation layers, norms and spreads."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from .table import Table, constant, like

T = Table()


def _weights(x: Any, *shape: int) -> tuple[Any, Any]:
    return like(constant(*shape, seed=1), x), like(constant(*shape, seed=2), x)


# ------------------------------------------------------------------ layers
T.add("layer_norm", lambda x: F.layer_norm(x, (8,), *_weights(x, 8)), (2, 8), "joint",
      tolerance=0.05)  # fmt: skip
T.add("layer_norm", lambda x: F.layer_norm(x, (4, 4), eps=0.1), (2, 4, 4), "joint", label="two",
      tolerance=0.03)  # fmt: skip
T.add("layer_norm", lambda x: F.layer_norm(x, (5,)), (2, 5), "joint", label="small",
      tolerance=0.1)  # fmt: skip
T.add("torch_layer_norm", lambda x: torch.layer_norm(x, (16,), *_weights(x, 16)), (1, 16), "joint",
      tolerance=0.03)  # fmt: skip
T.add("rms_norm", lambda x: F.rms_norm(x, (8,), like(constant(8), x)), (2, 8), "joint",
      tolerance=0.05)  # fmt: skip
T.add("group_norm", lambda x: F.group_norm(x, 2, *_weights(x, 4), 1e-3), (2, 4, 2, 2), "joint",
      tolerance=0.05)  # fmt: skip
T.add("torch_group_norm", lambda x: torch.group_norm(x, 2), (1, 4, 5), "joint", tolerance=0.05)
T.add("instance_norm", lambda x: F.instance_norm(x, None, None, *_weights(x, 2)), (2, 2, 9),
      "joint", tolerance=0.05)  # fmt: skip
T.add(
    "instance_norm",
    lambda x: F.instance_norm(x, like(constant(3), x), like(constant(3).abs(), x),
                              use_input_stats=False),
    (2, 3, 4),
    label="fixed",
)  # fmt: skip
T.add("batch_norm", lambda x: F.batch_norm(x, None, None, *_weights(x, 2), True), (3, 2, 4),
      "joint", label="training", tolerance=0.05)  # fmt: skip
T.add("local_response_norm", lambda x: F.local_response_norm(x, 3, 0.5), (1, 5, 3), "joint",
      tolerance=0.03)  # fmt: skip

# ------------------------------------------------------------------ spreads and norms
T.add("var", lambda x: torch.var(x, (0, 2), keepdim=True), (2, 3, 4), "joint", tolerance=1e-9)
T.add("var", lambda x: torch.var(x, 1, correction=0), (2, 5), "joint", label="biased",
      tolerance=1e-9)  # fmt: skip
T.add("std", lambda x: torch.std(x, 1), (2, 8), "joint", tolerance=0.02)
T.add("var_mean", lambda x: torch.var_mean(x, 1)[0], (2, 5), "joint", rounds=True, tolerance=1e-9)
T.add(
    "var_mean", lambda x: torch.var_mean(x, 1, keepdim=True)[1], (2, 5), label="mean", rounds=True
)
T.add("std_mean", lambda x: torch.std_mean(x)[0], (2, 5), "joint", rounds=True, tolerance=0.02)
T.add("vector_norm", lambda x: torch.linalg.vector_norm(x, dim=1), (2, 8), "joint", tolerance=0.02)
T.add("vector_norm", lambda x: torch.linalg.vector_norm(x, 1, -1, True), (2, 4), "joint",
      label="first", tolerance=1e-9)  # fmt: skip
T.add("vector_norm", lambda x: torch.linalg.vector_norm(0.2 * x + 1, 4, 1), (2, 8), "joint",
      label="fourth", rounds=True, tolerance=0.03)  # fmt: skip
T.add("vector_norm", lambda x: torch.linalg.vector_norm(x.unsqueeze(-1), 2, -1), (2, 4), "joint",
      label="alone", tolerance=1e-9)  # fmt: skip
T.add("vector_norm", lambda x: torch.linalg.vector_norm(x, float("inf"), 1), (2, 6), "joint",
      label="largest", tolerance=1e-6)  # fmt: skip
T.add("vector_norm", lambda x: torch.linalg.vector_norm(x + 9, -float("inf"), 1, True), (2, 6),
      "joint", label="smallest", tolerance=1e-6)  # fmt: skip
T.add("norm", lambda x: torch.norm(x), (3, 4), "joint", tolerance=0.02)
T.add("norm", lambda x: torch.norm(x, p=2, dim=(1, 2)), (2, 3, 4), "joint", label="dims",
      tolerance=0.02)  # fmt: skip
T.add("norm_method", lambda x: x.norm(dim=-1, keepdim=True), (2, 8), "joint", tolerance=0.02)
T.add("linalg_norm", lambda x: torch.linalg.norm(x, dim=1), (2, 8), "joint", tolerance=0.02)
T.add("pairwise_distance", lambda x: F.pairwise_distance(x[:1], x[1:]), (2, 8), "joint",
      tolerance=0.02)  # fmt: skip
T.add("normalize", lambda x: F.normalize(x), (2, 8), "joint", tolerance=0.05)
T.add("normalize", lambda x: F.normalize(x, dim=-2), (1, 6, 2), "joint", label="dim",
      tolerance=0.1)  # fmt: skip
T.add("cosine_similarity", lambda x: F.cosine_similarity(x, like(constant(2, 8), x)), (2, 8),
      "joint", tolerance=0.05)  # fmt: skip
T.add("cosine_similarity", lambda x: F.cosine_similarity(x[:2], x[2:], 1), (4, 8), "joint",
      label="random", tolerance=0.06)  # fmt: skip
T.add("lp_pool1d", lambda x: F.lp_pool1d(x, 2, 4), (1, 2, 8), "joint", tolerance=0.05)
T.add("lp_pool2d", lambda x: F.lp_pool2d(x, 2, 3, 2), (1, 1, 5, 5), "joint", tolerance=0.03)
T.add("lp_pool2d", lambda x: F.lp_pool2d(x, 1, 2), (1, 1, 4, 4), label="sums")
T.add("lp_pool3d", lambda x: F.lp_pool3d(x, 2, 2), (1, 1, 4, 2, 2), "joint", tolerance=0.03)
