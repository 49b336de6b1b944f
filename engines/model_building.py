"""One model at a time: transformers is not safe to build models with in several threads.

While it builds or loads one, transformers replaces functions of its own classes and of torch for the whole process
(`no_tie_weights` and others in transformers/initialization.py), and puts back what it found. With two threads inside,
the second finds the first one's replacement and puts that back: from then on no model of the process ties its weights,
and a tied head stays empty.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

_BUILDING = threading.RLock()


def build_model(make: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """What `make`, a model's `from_pretrained`, `from_config` or what else builds it, returns for these arguments:
    called while no other thread builds a model."""
    with _BUILDING:
        return make(*arguments, **options)
