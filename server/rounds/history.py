"""The memory of answers, from the gateway's side: whose it is, and what goes into it (docs/wire.md)."""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b

from protocol.messages import MAX_TOKENS_PER_MESSAGE, RememberRequest
from protocol.worker_info import Vocabulary
from server.backend import GenerationRequest
from server.fleet.failures import WorkerFailure
from server.fleet.worker import Worker
from server.rounds.context import RequestContext

_LEAD_TOKENS = 64
"""Of the prompt's end: enough for the first tokens of an answer to be found again by what was asked."""
_LEAST_TOKENS = 4
_SECONDS = 5.0


def scope_of(request: GenerationRequest, vocabulary: Vocabulary, needs_q: bool) -> str | None:
    """Whose memory a request has: that of its API key and `cache_salt` alone, in the target's own token ids.

    None, and so no memory, if a strategy that needs q meets a seed from the client: an answer under the same seed may
    be remembered, and a draft from it would depend on the noise that verification draws with again.
    """
    if needs_q and not request.drawn_seed:
        return None
    parts = (vocabulary.fingerprint, request.caller, request.cache_salt or "")
    hashed = blake2b(digest_size=16, person=b"tandem-history")
    for part in parts:
        raw = part.encode()
        hashed.update(len(raw).to_bytes(8, "little") + raw)
    return hashed.hexdigest()


def remember(context: RequestContext, worker: Worker, scope: str) -> None:
    """Have the worker remember the answer as it is now, in the background. If that fails, it is not remembered."""
    prompt = len(context.request.prompt)
    if worker.info is None or not worker.info.capabilities.history or len(context.sequence) < prompt + _LEAST_TOKENS:
        return
    token_ids = context.sequence.since(max(0, prompt - _LEAD_TOKENS))[:MAX_TOKENS_PER_MESSAGE]
    request = RememberRequest(history=scope, token_ids=token_ids)

    async def call() -> None:
        with suppress(WorkerFailure):
            await worker.client.remember(request, _SECONDS)

    context.background.start(call())
