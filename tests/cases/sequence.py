"""Cases of attention, embeddings, gates and recurrent cells.

Where a rule is a composition, the independent elements of these cases stay independent on the way as far as
they can: each gate has inputs of its own. Dense weights are in ``tests/test_sequence.py``, under methods
that carry correlation.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from uaprop.numerics.softmax import Odds
from uaprop.rules.softmax import brief_sigmoid, odds

from .table import Table, constant, like

T = Table()

# ------------------------------------------------------------------ softmax and its logarithm
T.add("softmax", lambda x: F.softmax(x, -1), (2, 24), "joint", label="long", tolerance=0.06)
T.add("softmin", lambda x: F.softmin(x, dim=1), (2, 3), "joint", tolerance=0.03)
T.add("log_softmax", lambda x: F.log_softmax(x, dim=1), (2, 3), "joint", tolerance=0.03)
T.add("log_softmax", lambda x: F.log_softmax(x, 0), (2, 3), "joint", label="two", tolerance=1e-6)
T.add("log_softmax", lambda x: F.log_softmax(x, 1), (2, 24), "joint", label="long", tolerance=0.06)
T.add("torch_log_softmax", lambda x: x.log_softmax(-1), (2, 5), "joint", tolerance=0.03)
T.add("logsumexp", lambda x: torch.logsumexp(x, 1), (3, 2), "joint", label="two", tolerance=1e-6)
T.add("logsumexp", lambda x: x.logsumexp((0, 2), keepdim=True), (2, 3, 3), "joint", tolerance=0.06,
      rounds=True)  # fmt: skip
T.add("linear_odds", lambda x: odds(x, Odds.of(like(constant(2, 4), x))), (2, 4))
T.add("sigmoid_in_brief", lambda x: brief_sigmoid(x), (2, 3), "elementwise")

# ------------------------------------------------------------------ attention


def _attention(x: Any, **options: Any) -> Any:
    """Keys of one feature each, so that logits are independent."""
    query = like(constant(2, 3, 1), x)
    return F.scaled_dot_product_attention(query, x, like(constant(2, 5, 2), x), **options)


def _values(x: Any, **options: Any) -> Any:
    query, key = like(constant(1, 4, 3, 2), x), like(constant(1, 4, 3, 2, seed=1), x)
    return F.scaled_dot_product_attention(query, key, x, **options)


_MASK = torch.tensor([[True, False, True, True, False]])
T.add("scaled_dot_product_attention", _attention, (2, 5, 1), "joint", tolerance=0.2, rounds=True)
T.add("scaled_dot_product_attention", lambda x: _attention(x, attn_mask=_MASK, scale=0.5),
      (2, 5, 1), "joint", label="mask", tolerance=0.2, rounds=True)  # fmt: skip
T.add("scaled_dot_product_attention", lambda x: _values(x, is_causal=True), (1, 4, 3, 2),
      label="values", rounds=True)  # fmt: skip
T.add("scaled_dot_product_attention", lambda x: _values(x, enable_gqa=True), (1, 2, 3, 2),
      label="groups", rounds=True)  # fmt: skip


def _heads(x: Any) -> Any:
    matrices = like(constant(3, 2, 2), x)
    return F.multi_head_attention_forward(
        like(constant(3, 1, 2), x), like(constant(4, 1, 2), x), x, 2, 2, None, None, None, None,
        False, 0.0, like(torch.eye(2), x), None, use_separate_proj_weight=True,
        q_proj_weight=matrices[0], k_proj_weight=matrices[1], v_proj_weight=matrices[2],
    )[0]  # fmt: skip


T.add("multi_head_attention_forward", _heads, (4, 1, 2), rounds=True)

# ------------------------------------------------------------------ embeddings and gates
_INDEX = torch.tensor([[2, 0, 1], [1, 1, 3]])
T.add("embedding", lambda x: F.embedding(_INDEX, x), (4, 3))
T.add("embedding_bag", lambda x: F.embedding_bag(_INDEX, x), (4, 3), rounds=True)
T.add("embedding_bag", lambda x: F.embedding_bag(_INDEX.flatten(), x, torch.tensor([0, 2]),
      mode="sum", per_sample_weights=like(constant(6), x)), (4, 3), label="sum")  # fmt: skip
T.add("glu", lambda x: F.glu(x, 1), (2, 6), "joint", tolerance=0.01)

# ------------------------------------------------------------------ recurrent networks


def _gates(x: Any, count: int) -> tuple[Any, ...]:
    """Weights that give each gate of two units inputs of its own; state and recurrence constant."""
    w_hh, bias = like(0.3 * constant(2 * count, 2), x), like(0.3 * constant(2 * count), x)
    return like(torch.eye(2 * count), x), w_hh, bias, bias


def _states(x: Any) -> Any:
    return like(constant(1, 3, 2), x)


T.add("lstm_cell", lambda x: torch.lstm_cell(x, (_states(x)[0], _states(x)[0]), *_gates(x, 4))[0],
      (3, 8), "joint", tolerance=0.06, rounds=True)  # fmt: skip
T.add("gru_cell", lambda x: torch.gru_cell(x, _states(x)[0], *_gates(x, 3)), (3, 6), "joint",
      tolerance=0.06, rounds=True)  # fmt: skip
T.add("rnn_tanh_cell", lambda x: torch.rnn_tanh_cell(x, _states(x)[0], *_gates(x, 1)), (3, 2),
      "elementwise", rounds=True)  # fmt: skip
T.add("rnn_relu_cell", lambda x: torch.rnn_relu_cell(x, _states(x)[0], *_gates(x, 1)), (3, 2),
      "elementwise", rounds=True)  # fmt: skip


def _once(operation: Any, x: Any, count: int, *, lstm: bool = False) -> Any:
    h = _states(x)
    state = (h, h) if lstm else h
    return operation(x, state, _gates(x, count), True, 1, 0.0, False, False, False)[1]


T.add(
    "lstm",
    lambda x: _once(torch.lstm, x, 4, lstm=True),
    (1, 3, 8),
    "joint",
    tolerance=0.06,
    rounds=True,
)
T.add("gru", lambda x: _once(torch.gru, x, 3), (1, 3, 6), "joint", tolerance=0.06, rounds=True)
T.add(
    "rnn_tanh",
    lambda x: _once(torch.rnn_tanh, x, 1),
    (1, 3, 2),
    "joint",
    tolerance=0.01,
    rounds=True,
)
T.add(
    "rnn_relu",
    lambda x: _once(torch.rnn_relu, x, 1),
    (1, 3, 2),
    "joint",
    tolerance=0.01,
    rounds=True,
)

# ------------------------------------------------------------------ products
T.add("mm", lambda x: torch.mm(x[:2], x[2:]), (5, 3), "bilinear", label="random")
T.add("bmm", lambda x: torch.bmm(x[:, :2], x[:, 2:]), (2, 5, 3), "bilinear", label="random")
T.add("mv", lambda x: torch.mv(x, like(constant(3), x)), (2, 3))
T.add("mv", lambda x: torch.mv(x[:2], x[2]), (3, 3), "bilinear", label="random")
T.add("dot", lambda x: torch.dot(x, like(constant(3), x)), (3,))
T.add("dot", lambda x: x[:2].dot(x[2:]), (4,), "bilinear", label="random")
T.add("inner", lambda x: torch.inner(x, like(constant(4, 3), x)), (2, 3))
T.add("outer", lambda x: torch.outer(x, like(constant(2), x)), (3,))
T.add("outer", lambda x: torch.outer(x[:2], x[2:]), (5,), "bilinear", label="random")
T.add("tensordot", lambda x: torch.tensordot(x, like(constant(3, 2, 4), x), ([1, 2], [0, 1])),
      (2, 3, 2))  # fmt: skip
T.add("multi_dot", lambda x: torch.linalg.multi_dot([like(constant(2, 3), x), x[:, 0]]), (3, 2))
T.add("addmv", lambda x: torch.addmv(like(constant(2), x), x, like(constant(3), x), beta=2), (2, 3))
T.add("addr", lambda x: torch.addr(like(constant(3, 2), x), x, like(constant(2), x), alpha=2), (3,))
T.add("addbmm", lambda x: torch.addbmm(like(constant(3, 2), x), x, like(constant(2, 4, 2), x)),
      (2, 3, 4), rounds=True)  # fmt: skip
T.add("addcmul", lambda x: torch.addcmul(x, like(constant(2, 3), x), like(constant(3), x), value=2),
      (2, 3), rounds=True)  # fmt: skip
T.add("addcmul", lambda x: torch.addcmul(x[0], x[1], x[2]), (3, 3), "bilinear", label="random",
      rounds=True)  # fmt: skip
T.add("addcdiv", lambda x: torch.addcdiv(x[0], x[1], like(constant(3).abs() + 1, x)), (2, 3))
T.add("lerp", lambda x: torch.lerp(x[0], x[1], 0.3), (2, 3), rounds=True)
T.add("lerp", lambda x: torch.lerp(x[0], x[1], x[2]), (3, 3), "joint", tolerance=0.01, label="random",
      rounds=True)  # fmt: skip
T.add("bilinear", lambda x: F.bilinear(x, like(constant(2, 2), x), like(constant(4, 3, 2), x),
      like(constant(4), x)), (2, 3), rounds=True)  # fmt: skip
T.add("bilinear", lambda x: F.bilinear(x[:, :3], x[:, 3:], like(constant(4, 3, 2), x)), (2, 5),
      "joint", tolerance=0.01, label="random", rounds=True)  # fmt: skip
