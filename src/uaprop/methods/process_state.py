"""Settings outside of a model that it may change: random numbers, warnings, switches of torch."""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["ProcessState", "random_states", "same_states", "thread_settings"]

_AUTOCAST = ("cpu", "cuda")


def _deterministic() -> tuple[bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


# How to read and how to write torch's switches; those of cuDNN without the checks of torch.backends.
_SWITCHES: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (_deterministic, _set_deterministic),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.get_num_threads, torch.set_num_threads),
    (torch._C._get_cudnn_benchmark, torch._C._set_cudnn_benchmark),
    (torch._C._get_cudnn_deterministic, torch._C._set_cudnn_deterministic),
)


class ProcessState:
    """What is one for the whole process: generators, warning filters, torch's switches.

    Args:
        own_code: whether the model has Python code of its own. Torch's layers change nothing here but
            torch's generators.
    """

    def __init__(self, own_code: bool) -> None:
        self._own_code = own_code
        self._random = random_states(own_code)
        self._filters = list(warnings.filters) if own_code else None
        self._switches = [read() for read, _ in _SWITCHES] if own_code else []

    def restore(self) -> None:
        """Put everything back that has changed."""
        if not same_states(self._random, random_states(self._own_code)):
            _set_random(self._random, self._own_code)
        if self._filters is not None and list(warnings.filters) != self._filters:
            warnings.filters[:] = self._filters  # type: ignore[index]
            with warnings.catch_warnings():
                pass  # which tells Python that the filters have changed
        for value, (read, write) in zip(self._switches, _SWITCHES, strict=False):
            if read() != value:
                write(value)


def random_states(own_code: bool = True) -> list[Any]:
    """The states of the generators that all of a process share: torch's, Python's and numpy's.

    Args:
        own_code: whether a model has Python code of its own; torch's layers use torch's generators only.

    Returns:
        Values for :func:`same_states`.
    """
    states: list[Any] = [torch.default_generator.get_state()]
    if own_code:
        states.append(random.getstate())
        if (numpy := _numpy()) is not None:
            states.append(numpy.random.get_state())
    if torch.cuda.is_initialized():
        states += torch.cuda.get_rng_state_all()
    return states


def same_states(known: list[Any], now: list[Any]) -> bool:
    """Whether two lists of :func:`random_states` are of the same states."""
    return len(known) == len(now) and all(map(_same, known, now))


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if _is_numpy(a):  # name, key, position, and a normal number made ahead
        return bool(a[2:] == b[2:] and (a[1] == b[1]).all())
    return bool(a == b)


def _is_numpy(state: Any) -> bool:
    return isinstance(state, tuple) and isinstance(state[0], str)


def _numpy() -> Any:
    """The package, if it was imported."""
    found = sys.modules.get("numpy")
    return found if hasattr(found, "random") else None


def _set_random(states: list[Any], own_code: bool) -> None:
    rest = list(states)
    torch.default_generator.set_state(rest.pop(0))
    if own_code:
        random.setstate(rest.pop(0))
        if rest and _is_numpy(rest[0]):
            _numpy().random.set_state(rest.pop(0))
    if rest:
        torch.cuda.set_rng_state_all(rest)


@contextlib.contextmanager
def thread_settings() -> Iterator[None]:
    """Put back what each thread has of its own: gradients, autocast, the default device."""
    grad = torch.is_grad_enabled()
    autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _AUTOCAST]
    context = _device_context()
    try:
        yield
    finally:
        if torch.is_grad_enabled() != grad:
            torch.set_grad_enabled(grad)
        for name, enabled, dtype in autocast:
            if torch.is_autocast_enabled(name) != enabled:
                torch.set_autocast_enabled(name, enabled)
            if torch.get_autocast_dtype(name) != dtype:
                torch.set_autocast_dtype(name, dtype)
        if _device_context() is not context:
            torch.set_default_device(None if context is None else context.device)


def _device_context() -> Any:
    """What ``torch.set_default_device`` has set in this thread, or None."""
    return getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
