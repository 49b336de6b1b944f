"""One model at a time: transformers is not safe to build models with in several threads."""

from __future__ import annotations

import threading

MODEL_BUILDING = threading.RLock()
"""Held while transformers builds or loads a model.

While it does, transformers replaces functions of its own classes and of torch for the whole process (`no_tie_weights`
and others in transformers/initialization.py), and puts back what it found. With two threads inside, the second finds
the first one's replacement and puts that back: from then on no model of the process ties its weights, and a tied head
stays empty."""
