"""From a call of torch to a rule: the only place that knows ``__torch_function__``."""

from .. import rules as rules  # fills the registry
from .apply import apply
from .branches import admit, admit_imported
from .handle import Handle

__all__ = ["Handle", "admit", "admit_imported", "apply"]
