"""Attention, gates and recurrent networks: whole modules, under methods that carry correlation."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import uaprop as ua
from uaprop.kinds import Noise
from uaprop.rules.noise import drop_path, stochastic_depth

from .cases import constant

DOUBLE = torch.float64


def random(*shape: int, std: float = 0.2, seed: int = 3) -> ua.Gaussian:
    generator = torch.Generator().manual_seed(seed)
    return ua.Gaussian(torch.randn(shape, generator=generator, dtype=DOUBLE), std=std)


def module(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return make().double().eval().requires_grad_(False)


def close(call: Callable[[Any], Any], x: ua.Gaussian, methods: dict[str, float]) -> None:
    """Deviations agree with those of samples to the given relative error, on average."""
    truth = ua.propagate(call, x, method="samples", samples=3000)
    for method, tolerance in methods.items():
        options = {"hybrid": {"samples": 64}, "sketch": {"probes": 64}}.get(method, {})
        y = ua.propagate(call, x, method=method, **options)
        assert (y.std / truth.std - 1).abs().mean() < tolerance, method
        assert ((y.loc - truth.loc).abs() / truth.std).mean() < 0.1, method


CARRYING = {"hybrid": 0.03, "adjoint": 0.03}

# ------------------------------------------------------------------ softmax


def test_probabilities_sum_to_one_whatever_the_noise() -> None:
    for count in (3, 12, 40):
        x = random(2, count, std=0.7)
        p = F.softmax(ua.Gaussian.from_factors(x.loc, constant(4, 2, count)), -1)
        torch.testing.assert_close(p.loc.sum(-1), torch.ones(2, dtype=DOUBLE))
        assert p.sum(-1).var.max() < 1e-20


@pytest.mark.parametrize("count", [5, 40])
@pytest.mark.parametrize("method", ["diagonal", "sketch", "hybrid"])
def test_masked_logits_have_no_weight(count: int, method: str) -> None:
    x = random(2, count, std=0.5)
    masked = torch.arange(count) >= count - 2

    def plainly(x: Any) -> Any:
        return F.softmax(x[:, : count - 2], -1)

    for fill in (-torch.inf, torch.finfo(torch.float32).min):
        answer = ua.propagate(
            lambda x, fill=fill: F.softmax(x.masked_fill(masked, fill), -1), x, method=method
        )
        assert torch.count_nonzero(answer.loc[:, -2:]) == 0
        assert torch.count_nonzero(answer.var[:, -2:]) == 0
        if method == "diagonal" and count > 16:
            expected = ua.propagate(plainly, x, method=method)
            torch.testing.assert_close(answer.loc[:, :-2], expected.loc)
            torch.testing.assert_close(answer.var[:, :-2], expected.var)
    added = torch.zeros(count, dtype=DOUBLE).masked_fill(masked, torch.finfo(DOUBLE).min)
    answer = ua.propagate(lambda x: F.softmax(x + added, -1), x, method=method)
    assert torch.isfinite(answer.var).all()
    assert torch.count_nonzero(answer.var[:, -2:]) == 0


# ------------------------------------------------------------------ attention

KEYS, VALUES = constant(2, 20, 4), constant(2, 20, 3, seed=2) + 1
ATTENTION: dict[str, Callable[[Any], Any]] = {
    "queries": lambda x: F.scaled_dot_product_attention(x[:, :5], KEYS, VALUES),
    "keys": lambda x: F.scaled_dot_product_attention(KEYS[:, :5], x, VALUES),
    "all": lambda x: F.scaled_dot_product_attention(x[:, :4], x[:, 4:12], x[:, 12:]),
    "itself": lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True)[:, 2:],
    "bias": lambda x: F.scaled_dot_product_attention(x[:, :5], KEYS, VALUES, constant(5, 20)),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str) -> None:
    close(ATTENTION[name], random(2, 20, 4), CARRYING)


def test_a_query_without_keys_gives_zero() -> None:
    mask = torch.tensor([[False] * 3, [True, False, True]])
    x = random(1, 3, 2)
    y = F.scaled_dot_product_attention(x[:, :2], x, x, mask)
    assert torch.count_nonzero(y.loc[0, 0]) == torch.count_nonzero(y.var[0, 0]) == 0
    assert torch.isfinite(y.loc).all()
    assert (y.var[0, 1] > 0).all()


def test_dropout_of_weights_adds_its_noise() -> None:
    call = lambda x: F.scaled_dot_product_attention(KEYS[:, :2], KEYS, x, dropout_p=0.3)  # noqa: E731
    x = random(2, 20, 3)
    truth = ua.propagate(call, x, method="samples", samples=4000)
    torch.testing.assert_close(call(x).std, truth.std, rtol=0.06, atol=0)


@functools.cache
def heads(**options: Any) -> nn.Module:
    return module(lambda: nn.MultiheadAttention(8, 2, **options))


PADDING = torch.tensor([[False] * 6, [False] * 4 + [True] * 2])
MULTIHEAD: dict[str, Callable[[Any], Any]] = {
    "batch first": lambda x: heads(batch_first=True)(x, x, x, key_padding_mask=PADDING)[0],
    "weights": lambda x: heads()(x, x, x, average_attn_weights=False)[1],
    "average": lambda x: heads(bias=False)(x, x, x, attn_mask=torch.ones(2, 2).triu(1).bool())[1],
    "extra keys": lambda x: heads(add_bias_kv=True, add_zero_attn=True)(x, x, x)[0],
    "separate": lambda x: heads(kdim=3, vdim=5)(x, x[..., :3], x[..., 3:], need_weights=False)[0],
    "causal": lambda x: heads()(
        x, x, x, attn_mask=nn.Transformer.generate_square_subsequent_mask(2, dtype=DOUBLE),
        is_causal=True, need_weights=False)[0],
    "one": lambda x: heads()(x[0], x[1], x[1])[0],
}  # fmt: skip


@pytest.mark.parametrize("name", MULTIHEAD)
def test_multi_head_attention(name: str) -> None:
    x, call = random(2, 6, 8), MULTIHEAD[name]
    torch.testing.assert_close(call(ua.Gaussian(x.loc, 0.0)).loc, call(x.loc))
    if name in ("batch first", "separate", "extra keys"):
        close(call, x, CARRYING)


def test_a_transformer_encoder_runs_unmodified() -> None:
    layer = lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)  # noqa: E731
    model = module(lambda: nn.TransformerEncoder(layer(), 2, enable_nested_tensor=True))
    x = random(2, 6, 8, std=0.1)
    y = model(ua.Gaussian(x.loc, 0.0), src_key_padding_mask=PADDING)
    seen = ~PADDING
    torch.testing.assert_close(y.loc[seen], model(x.loc, src_key_padding_mask=PADDING)[seen])
    close(lambda x: model(x)[:, 0], x, {"hybrid": 0.04, "adjoint": 0.06})


# ------------------------------------------------------------------ embeddings and gates


def test_an_index_is_not_random() -> None:
    with pytest.raises(ua.UnsupportedOperation, match="inputs_embeds"):
        nn.Embedding(4, 2)(ua.Gaussian(torch.zeros(3), 1.0))


W, V = 0.5 * random(8, 8, seed=5).loc, 0.5 * random(8, 8, seed=6).loc
GATES: dict[str, Callable[[Any], Any]] = {
    "glu": lambda x: F.glu(x @ W),
    "swiglu": lambda x: (x @ W) * F.silu(x @ V),
    "geglu": lambda x: (x @ W) * F.gelu(x @ V),
    "squeeze and excite": lambda x: x * torch.sigmoid(x.unflatten(1, (2, 4)).mean(2) @ W[:2]) + x,
}


@pytest.mark.parametrize("name", GATES)
def test_gates(name: str) -> None:
    close(GATES[name], random(3, 8, std=0.15), {"hybrid": 0.06, "adjoint": 0.06, "sketch": 0.12})


# ------------------------------------------------------------------ recurrent networks

RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(4, 5),
    "lstm of two layers": lambda: nn.LSTM(4, 5, 2, bidirectional=True, proj_size=3),
    "gru": lambda: nn.GRU(4, 5, batch_first=True),
    "gru of two layers": lambda: nn.GRU(4, 5, 2, bias=False),
    "rnn": lambda: nn.RNN(4, 5, bidirectional=True),
    "relu": lambda: nn.RNN(4, 5, nonlinearity="relu", batch_first=True),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_networks_run_unmodified(name: str) -> None:
    model, x = module(RECURRENT[name]), random(4, 3, 4)
    y, plain = model(ua.Gaussian(x.loc, 0.0)), model(x.loc)
    torch.testing.assert_close(y[0].loc, plain[0])
    states = zip(y[1], plain[1], strict=True) if isinstance(y[1], tuple) else [(y[1], plain[1])]
    for found, expected in states:
        torch.testing.assert_close(found.loc, expected)
    if name != "relu":  # some of its units are never active
        close(lambda x: model(x)[0], x, CARRYING)


def test_states_may_be_random() -> None:
    model, h = module(lambda: nn.GRU(4, 5)), random(1, 3, 5)
    close(lambda h: model(constant(4, 3, 4), h)[0][-1], h, CARRYING)
    cell = module(lambda: nn.LSTMCell(4, 5))
    close(lambda h: cell(constant(3, 4), (h, h * 0.5))[0], h[0], CARRYING)


def test_dropout_between_layers_adds_its_noise() -> None:
    model = module(lambda: nn.RNN(4, 5, 2, dropout=0.4)).train()
    x = random(1, 3, 4)
    truth = ua.propagate(lambda x: model(x)[0], x, method="samples", samples=3000)
    y = ua.propagate(lambda x: model(x)[0], x, method="sketch", probes=256)
    assert (y.std / truth.std - 1).abs().mean() < 0.05


def test_packed_sequences_are_refused() -> None:
    x = random(4, 3, 4)
    with pytest.raises(ua.UnsupportedOperation, match="padded tensor"):
        nn.utils.rnn.pack_padded_sequence(x, torch.tensor([4, 3, 2]))
    packed = nn.utils.rnn.PackedSequence(x[0], torch.tensor([2, 1]))
    with pytest.raises(ua.UnsupportedOperation, match="padded tensor"):
        module(lambda: nn.LSTM(4, 5))(packed)


# ------------------------------------------------------------------ stochastic depth


def test_stochastic_depth_is_noise_by_rows_or_for_all() -> None:
    x = random(3, 2, 4)
    rows = stochastic_depth(x, 0.2, "row")
    assert isinstance(rows, Noise)
    assert rows.var == pytest.approx(0.25)
    assert rows.shape == (3, 1, 1)
    assert stochastic_depth(x, 0.2, "batch").shape == (1, 1, 1)
    assert stochastic_depth(x, 0.2, "row", training=False) is x
    assert drop_path(x, 0.2) is x
    kept = drop_path(x, 0.2, training=True, scale_by_keep=False)
    torch.testing.assert_close(kept.inputs[0].loc, 0.8 * x.loc)
    with pytest.raises(ValueError, match="mode"):
        stochastic_depth(x, 0.2, "column")
