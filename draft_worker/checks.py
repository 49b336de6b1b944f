"""What a draft worker refuses before it does any work, by the name of the field."""

from __future__ import annotations

from basics.names import LOOKUP
from protocol.errors import Unsupported
from protocol.messages import DraftRequest, ModelInfo
from worker.checks import check_sequence


def check_draft(request: DraftRequest, info: ModelInfo) -> None:
    """Raises a WireError for what this draft worker cannot honour."""
    check_sequence(request, info)
    if request.draft_model not in (None, LOOKUP, info.id):
        raise Unsupported(f"this worker drafts with {info.id} or {LOOKUP}", "draft_model")
    if request.lookahead_tokens:
        raise Unsupported("this worker does not draft ahead", "lookahead_tokens")
    most = info.capabilities.max_candidates
    if request.draft_model != LOOKUP and request.num_candidates > most:
        raise Unsupported(f"{info.id} drafts {most} candidates at most", "num_candidates")
    if request.want_q and request.num_candidates > 1:
        raise Unsupported("only a single candidate is sampled from q", "num_candidates")
