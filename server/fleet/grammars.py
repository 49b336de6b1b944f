"""Grammars are checked by a target before anything is generated, and not again while the result is cached."""

from __future__ import annotations

from collections import OrderedDict

from protocol.messages import Grammar
from server.backend import GrammarFault
from server.fleet.failures import Refused, WorkerFailure
from server.fleet.worker import Worker

_REMEMBERED = 1024
# Longer than a worker takes to compile one, or to refuse it as too slow.
_CHECK_SECONDS = 45.0


class GrammarChecks:
    """What targets answered about grammars, by the target's fingerprint."""

    def __init__(self) -> None:
        self._good: OrderedDict[tuple[str, str, int], None] = OrderedDict()

    async def fault(self, grammar: Grammar, worker: Worker) -> GrammarFault | None:
        """See server.backend.Backend.grammar_fault. Other failures of the worker are left to the next call."""
        assert worker.info is not None
        key = (worker.info.fingerprint, grammar.type, hash(grammar.value))
        if key in self._good:
            self._good.move_to_end(key)
            return None
        try:
            await worker.client.check_grammar(grammar, _CHECK_SECONDS)
        except Refused as refused:
            place = (refused.error.field or "").removeprefix("grammar.value").removeprefix(".")
            return GrammarFault(refused.error.message, place)
        except WorkerFailure:
            return None
        self._good[key] = None
        if len(self._good) > _REMEMBERED:
            self._good.popitem(last=False)
        return None
