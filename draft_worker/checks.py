"""What a draft worker refuses before it does any work, by the name of the field."""

from __future__ import annotations

from basics.names import AUTO, LOOKUP
from protocol.errors import BadRequest, Unsupported
from protocol.messages import DraftRequest
from protocol.worker_info import ModelInfo
from worker.checks import check_ids, check_sequence

_AHEAD = ("lookahead_tokens", "prepared_tokens", "flight_seconds", "assumed_tokens", "lookahead_seconds")


def check_draft(request: DraftRequest, info: ModelInfo) -> None:
    """Raises a WireError for what this draft worker cannot honour."""
    check_sequence(request, info)
    if request.draft_model not in (None, AUTO, LOOKUP, info.id):
        raise Unsupported(f"this worker drafts with {info.id}, {LOOKUP} or {AUTO}", "draft_model")
    for name in _AHEAD:
        if getattr(request, name) and not info.capabilities.lookahead:
            raise Unsupported("this worker does not draft ahead", name)
    for name in ("lookahead_tokens", "prepared_tokens"):
        if getattr(request, name) and request.num_candidates > 1:
            raise Unsupported("only a single candidate is drafted ahead", name)
    output = request.context.start + len(request.context.token_ids) - request.num_prompt_tokens
    if (request.assumed_tokens or 0) > output:
        raise BadRequest("is more than the output has: a prompt needs no verdict", "assumed_tokens")
    if request.verifying is not None and info.vocabulary is not None:
        check_ids(request.verifying, info.vocabulary.logits_size, "verifying")
    if request.assumed_tokens and request.draft_model == AUTO:
        raise Unsupported("auto judges its drafters by the context, all of which must be certain", "assumed_tokens")
    if request.prepared_tokens and request.want_q:
        # How much is there follows from the time that passes took, and with it from tokens that may be drawn again.
        raise Unsupported("a draft whose q is wanted must not be as long as what is prepared", "prepared_tokens")
    if request.prepared_tokens and request.draft_model == AUTO:
        raise Unsupported("auto chooses lengths itself", "prepared_tokens")
    if request.verifying is not None and request.draft_model != AUTO:
        raise Unsupported("only what auto chose is told, and then verified", "verifying")
    most = info.capabilities.max_candidates
    if request.draft_model != LOOKUP and request.num_candidates > most:
        raise Unsupported(f"{info.id} drafts {most} candidates at most", "num_candidates")
    if request.draft_model == AUTO and request.num_candidates > 1:
        raise Unsupported("auto drafts a single candidate", "num_candidates")
    if request.verify_seconds is not None and len(request.verify_seconds) <= request.draft_tokens:
        raise BadRequest("must have an entry for 0, 1, … draft_tokens", "verify_seconds")
    if request.want_q and not info.capabilities.q and request.draft_model != LOOKUP:
        raise Unsupported(f"q is not known of what {info.id} drafts for this target: by shared text", "want_q")
    if request.want_q and request.num_candidates > 1:
        raise Unsupported("only a single candidate is sampled from q", "num_candidates")
