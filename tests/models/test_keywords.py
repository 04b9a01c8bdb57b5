"""Models of transformers, called by keywords as they are everywhere, with their own output classes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import uaprop as ua

METHODS = ("auto", "hybrid", "adjoint", "linear", "sketch", "diagonal", "samples")


def classifier() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=16,
        patch_size=8,
        num_labels=4,
    )
    return ViTForImageClassification(config).eval()


def images() -> ua.Gaussian:
    return ua.Gaussian(torch.linspace(0, 1, 2 * 3 * 16 * 16).view(2, 3, 16, 16), std=0.2)


@pytest.mark.parametrize("method", METHODS)
def test_a_classifier_takes_its_pixels_by_name(method: str) -> None:
    model = classifier()
    y = ua.propagate(model, method=method, pixel_values=images())
    wanted = ua.propagate(model, {"pixel_values": images()}, method)
    assert type(y) is type(model(pixel_values=images().loc))
    assert y.logits.provenance.method == wanted.logits.provenance.method
    torch.testing.assert_close(y.logits.loc, wanted.logits.loc)
    torch.testing.assert_close(y.logits.cov.var, wanted.logits.cov.var)
    flips = ua.flip_probability(y.logits)
    part = ua.flip_probability(y.logits[1:])
    torch.testing.assert_close(part.flip, flips.flip[1:], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("method", ["hybrid", "linear", "diagonal"])
def test_what_a_language_model_keeps_for_its_next_call_is_no_result(method: str) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=1,
        n_head=2,
        n_embd=8,
        vocab_size=5,
        n_positions=8,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = GPT2LMHeadModel(config).eval()
    words = ua.Gaussian(torch.randn(2, 3, 8), std=0.1)
    mask = torch.ones(2, 3, dtype=torch.long)
    y = ua.propagate(model, method=method, inputs_embeds=words, attention_mask=mask)
    assert y.logits.shape == (2, 3, 5)
    assert y.logits.provenance.method == method
