"""An :class:`~uaprop.deploy.module.AsModule` under ``torch.compile``.

Dynamo follows Python byte code, and knows tensor-likes only in part: of a Gaussian it takes neither
``x.mean(dim)`` nor ``F.hardswish(x)``. So the whole call is one node of its graph, and what is recorded
beneath are the tensor operations that the library runs.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._dynamo
from torch import Tensor, nn

__all__ = ["traced"]


@torch._dynamo.nonstrict_trace
def traced(
    module: nn.Module,
    modes: list[bool],
    mean: Tensor,
    var: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """``module.run``; ``modes`` has the training modes, for Dynamo to compile anew when they change.

    Returns:
        What the module returns.

    Raises:
        IndexError: whatever went wrong while tracing, in the words of its cause.
    """
    try:
        return module.run(mean, var, args, kwargs)  # type: ignore[operator]
    except Exception as error:
        if not torch.compiler.is_compiling():
            raise
        # The only class whose message Dynamo passes on; it replaces the others by one of its own.
        raise IndexError(str(error)) from error
