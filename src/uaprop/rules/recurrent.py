"""Recurrent networks, cell by cell: linear maps, scalar functions and products of gates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import UnsupportedOperation
from ..registry import rule
from .contract import mixture

State = tuple[Any, ...]  # (h,), or (h, c) of an LSTM
Step = Callable[[Any, State, Sequence[Any]], State]  # a cell, from what the input gives its gates


# ------------------------------------------------------------ cells


def _linear(weights: Sequence[Any], which: int, x: Any) -> Any:
    """``W x + b`` with the weights ``(w_ih, w_hh, b_ih, b_hh)``, the biases being optional."""
    bias = weights[which + 2] if len(weights) >= 4 else None
    return F.linear(x, weights[which], bias)


def _lstm_step(given: Any, state: State, weights: Sequence[Any]) -> State:
    """``c' = f c + i g``, ``h' = o tanh(c')``; projected where there is a further matrix."""
    h, c = state
    i, f, g, o = (given + _linear(weights, 1, h)).chunk(4, -1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    if len(weights) in (3, 5):
        h = F.linear(h, weights[-1])
    return h, c


def _gru_step(given: Any, state: State, weights: Sequence[Any]) -> State:
    (h,) = state
    x_r, x_z, x_n = given.chunk(3, -1)
    h_r, h_z, h_n = _linear(weights, 1, h).chunk(3, -1)
    new = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
    return (mixture(torch.sigmoid(x_z + h_z), h, new),)


def _simple_step(function: Callable[[Any], Any]) -> Step:
    def step(given: Any, state: State, weights: Sequence[Any]) -> State:
        return (function(given + _linear(weights, 1, state[0])),)

    return step


# ------------------------------------------------------------ layers


def _along(inputs: Any, state: State, weights: Sequence[Any], step: Step, back: bool) -> Any:
    """One direction of one layer: outputs ``(length, batch, …)`` and the last state."""
    given = _linear(weights, 0, inputs)
    outputs = []
    for t in reversed(range(len(given))) if back else range(len(given)):
        state = step(given[t], state, weights)
        outputs.append(state[0])
    return torch.stack(outputs[::-1] if back else outputs), state


def _network(
    input: Any,
    state: Sequence[Any],
    params: Sequence[Any],
    step: Step,
    layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Any, ...]:
    """All layers; the states are ``(layers · directions, batch, …)``."""
    directions = 2 if bidirectional else 1
    size = len(params) // (layers * directions)
    x = input.transpose(0, 1) if batch_first else input
    last: list[State] = []
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            number = layer * directions + direction
            weights = params[number * size : (number + 1) * size]
            begin = tuple(part[number] for part in state)
            output, end = _along(x, begin, weights, step, direction == 1)
            outputs.append(output)
            last.append(end)
        x = torch.cat(outputs, -1) if bidirectional else outputs[0]
        if dropout > 0 and train and layer < layers - 1:
            x = F.dropout(x, dropout, True)
    ends = [torch.stack([end[i] for end in last]) for i in range(len(last[0]))]
    return (x.transpose(0, 1) if batch_first else x, *ends)


def _refuse_packed(hx: Any) -> None:
    """Refuse the form for packed sequences, which has the sizes of batches in this place."""
    if isinstance(hx, Tensor) and not hx.is_floating_point():
        _packed()


def _packed() -> None:
    raise UnsupportedOperation(
        "",
        reason="a PackedSequence has no rule",
        remedy="Give it the padded tensor, or one sequence at a time.",
    )


@rule(torch._pack_padded_sequence)
def pack_padded_sequence(*args: Any, **kwargs: Any) -> Any:
    _packed()


def _state(hx: Any) -> State:
    """An initial state: an LSTM has two tensors, the others one."""
    return tuple(hx) if isinstance(hx, tuple | list) else (hx,)


def _register(operation: Callable[..., Any], step: Step) -> None:
    @rule(operation, exact=False)
    def recurrent(
        input: Any,
        hx: Any,
        params: Any,
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool = False,
    ) -> Any:
        _refuse_packed(hx)
        options = (num_layers, dropout, train, bidirectional, batch_first)
        return _network(input, _state(hx), params, step, *options)

    recurrent.__name__ = operation.__name__


def _register_cell(operation: Callable[..., Any], step: Step) -> None:
    @rule(operation, exact=False)
    def cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
        weights = (w_ih, w_hh) if b_ih is None else (w_ih, w_hh, b_ih, b_hh)
        state = _state(hx)
        result = step(_linear(weights, 0, input), state, weights)
        return result if len(state) == 2 else result[0]

    cell.__name__ = operation.__name__


for _operation, _cell, _step in (
    (torch.lstm, torch.lstm_cell, _lstm_step),
    (torch.gru, torch.gru_cell, _gru_step),
    (torch.rnn_tanh, torch.rnn_tanh_cell, _simple_step(torch.tanh)),
    (torch.rnn_relu, torch.rnn_relu_cell, _simple_step(torch.relu)),
):
    _register(_operation, _step)
    _register_cell(_cell, _step)
