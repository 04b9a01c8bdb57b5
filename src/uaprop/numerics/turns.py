"""What is one for the whole process, so that threads have to take turns.

Torch's generator, which a model's own draws come from, is seeded for a propagation and given back as it was;
Python's warning filters are set and reset where ``torch.vmap`` and ``torch.export`` warn. Two threads that
do so at the same time would draw each other's numbers, and leave each other's filters behind.
"""

from __future__ import annotations

import threading

__all__ = ["one_at_a_time"]

one_at_a_time = threading.RLock()
