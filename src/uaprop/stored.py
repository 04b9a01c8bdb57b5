"""Copies of a Gaussian: in memory, in pickles and in files."""

from __future__ import annotations

import copy
import copyreg
from pathlib import Path
from typing import Any

from torch import Tensor

from .covariance import Diagonal
from .dispatch import Handle
from .provenance import Provenance
from .storage import State, packed, unpacked

__all__ = ["Stored"]


class Stored(Handle):
    """Copying, pickling and writing, of a mean, a covariance and a provenance."""

    __slots__ = ()

    def save(self, path: str | Path, *, attribution: bool = True) -> None:
        """Write to a safetensors file, which :func:`uaprop.load` reads.

        Mean, covariance, standard errors, nominal output, attribution and provenance are kept. Noise that
        is shared with other Gaussians (:meth:`Gaussian.from_factors`) is independent of theirs afterwards; a
        pickle of all of them keeps it.

        Args:
            path: of the file.
            attribution: whether to keep it: two numbers for each output and input element.

        Raises:
            TypeError: if this is only a value inside of a pass.
        """
        from .files import write  # here: most programs need no safetensors

        write(path, self.loc, self.cov, self._provenance, attribution)

    def restore(self, loc: Tensor, cov: Any, provenance: Provenance | None) -> Any:
        """Become what these are parts of."""
        self._hold(loc, cov)
        self._provenance = provenance
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        state = packed(self.loc, self.cov, self._provenance)
        return copyreg.__newobj__, (type(self),), tuple(state)  # type: ignore[attr-defined]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.restore(*unpacked(State(*state)))

    def __copy__(self) -> Any:
        return type(self).__new__(type(self)).restore(self.loc, self.cov, self._provenance)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        if type(self.cov) is Diagonal and self.loc.is_leaf and self.cov.var.is_leaf:
            parts = copy.deepcopy(self.loc, memo), Diagonal(copy.deepcopy(self.cov.var, memo))
            value: Any = type(self).__new__(type(self)).restore(*parts, self._provenance)
        else:  # as part of a graph it cannot be copied
            whole: Any = self
            value = whole.detach().clone()
        memo[id(self)] = value
        return value
