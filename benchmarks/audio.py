"""Networks that hear a waveform: pitch and speech, with spectra inside.

All are measured on parts of one spoken sentence at 16 kHz. Of the packages only the files that are needed
are imported: torchaudio, which they load audio with, is not.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from packages import installed
from subject import Subject, subject
from torch import Tensor, nn
from zoo import sentence

STARTS = (1600, 3200, 9000, 10400)  # of four voiced parts
PESTO_SAMPLES = 2560  # five frames
FCPE_SAMPLES = 1600
CHUNK, CONTEXT = 512, 64  # of Silero's network
CHUNKS = 4
LEVELS = (0.01, 0.05, 0.2)
OF = "the signal's std"
PESTO = "pesto-pitch (LGPL-3.0)"
FCPE = "torchfcpe (MIT)"
SENTENCE = "a spoken sentence from AMFM_decompy (MIT)"


class Pesto(nn.Module):
    """Of each frame the confidence that it has a pitch, and the volume in decibels."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        _, confidence, volume, _ = self.network(x)
        return torch.cat([confidence, 10 * volume.log10()], 1)


class PestoScores(nn.Module):
    """384 scores of the middle frame, before the softmax."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        network.encoder.final_norm = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.network(x)[3]
        return scores[:, scores.shape[1] // 2]


class Fcpe(nn.Module):
    """360 activations of the middle frame."""

    def __init__(self, spectrum: nn.Module, network: nn.Module) -> None:
        super().__init__()
        self.spectrum = spectrum
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        activations: Tensor = self.network(self.spectrum(x[..., None], 16_000))
        return activations[:, activations.shape[1] // 2]


class Silero(nn.Module):
    """Probabilities of speech in successive chunks, from a recurrent network in TorchScript."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        state = torch.zeros(0)
        found = []
        for start in range(CONTEXT, x.shape[1], CHUNK):
            chunk = x[:, start - CONTEXT : start + CHUNK]
            probability, state = self.network(chunk, state)
            found.append(probability)
        return torch.cat(found, 1)


def pesto() -> Subject:
    """PESTO: constant-Q transform, decibels and convolutions. Confidences and volumes of five frames.

    The pitch is left out: it is a multiple of a third of a semitone, and hardly ever moves.
    """
    return _subject("pesto", Pesto(_pesto()), PESTO_SAMPLES, PESTO)


def pesto_scores() -> Subject:
    """Its scores for 384 pitches."""
    return _subject("pesto_scores", PestoScores(_pesto()), PESTO_SAMPLES, PESTO)


def _pesto() -> nn.Module:
    # Before the stand-ins: what is imported beside them is forgotten with them.
    importlib.import_module("scipy.signal")
    importlib.import_module(installed("omegaconf").name)
    core = SimpleNamespace(load_model=None, predict=None, predict_from_files=None)
    with patch.dict(sys.modules, {"torchaudio": _module("torchaudio"), "pesto.core": core}):
        loader = importlib.import_module("pesto.loader")
    network: nn.Module = loader.load_model("mir-1k_g7", step_size=40.0, sampling_rate=16_000)
    return network


def fcpe_no_grad() -> Subject:
    """FCPE as it is in the package: its spectrum is computed under ``no_grad``."""
    return _subject("fcpe_no_grad", _fcpe(), FCPE_SAMPLES, FCPE)


def fcpe() -> Subject:
    """FCPE: log-mel spectrum and convolutions with gates; 360 pitch activations of the middle frame."""
    model = _fcpe()
    spectrum = model.spectrum
    classes: list[Any] = [type(spectrum), type(spectrum.mel_extractor)]
    first, second = (type(c.__name__, (c,), {"__call__": c.__call__.__wrapped__}) for c in classes)
    spectrum.__class__, spectrum.mel_extractor.__class__ = first, second
    return _subject("fcpe", model, FCPE_SAMPLES, FCPE)


def silero() -> Subject:
    """Silero's voice activity detector: spectrum, convolutions and an LSTM, in TorchScript."""
    whole = torch.jit.load(str(installed("silero_vad") / "data" / "silero_vad.jit"))
    return _subject("silero", Silero(whole._model), CONTEXT + CHUNKS * CHUNK, "silero-vad (MIT)")


def _fcpe() -> Fcpe:
    importlib.import_module(installed("einops").name)  # before the stand-ins
    transforms = _module("torchaudio.transforms", Resample=None)
    stand_ins = {
        "torchaudio": _module("torchaudio", transforms=transforms),
        "torchaudio.transforms": transforms,
        "local_attention": _module("local_attention", LocalAttention=None),  # it has none
    }
    with _silent(), patch.dict(sys.modules, stand_ins):
        whole = importlib.import_module("torchfcpe").spawn_bundled_infer_model("cpu")
        whole.wav2mel(
            torch.zeros(1, FCPE_SAMPLES, 1), 16_000
        )  # makes the window that it then keeps
    return Fcpe(whole.wav2mel, whole.model)


def _subject(name: str, model: nn.Module, samples: int, source: str) -> Subject:
    signal = sentence()
    signal = signal / signal.abs().amax() / 2
    parts = torch.stack([signal[start : start + samples] for start in STARTS])
    return subject(
        name,
        model,
        parts,
        parts[:0],
        levels=LEVELS,
        unit=parts.std(1, keepdim=True),
        source=f"{source}; {SENTENCE}",
        of=OF,
    )


def _module(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(attributes)
    return module


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """FCPE prints what it does."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
