"""A model with error bars as a plain module of tensors, to be compiled, exported and shipped."""

from .export import export
from .module import AsModule, as_module

__all__ = ["AsModule", "as_module", "export"]
