"""Whether a worker's answer can be true. Workers are trusted with nothing but their choice of tokens."""

from __future__ import annotations

from math import exp, fsum, inf, isfinite

from basics.names import MAX_DRAFT_TOKENS
from protocol.messages import (
    Q_SUM_TOLERANCE,
    Candidate,
    DraftRequest,
    DraftResponse,
    DraftTimings,
    GenerateRequest,
    VerifyRequest,
    VerifyResponse,
    VerifyTimings,
)
from protocol.prepared import PreparedRequest, PreparedResponse
from server.fleet.failures import BadAnswer

_MAX_TIMING_MS = 1e8


def check_draft(request: DraftRequest, answer: DraftResponse, vocabulary_size: int) -> None:
    """Raises BadAnswer if the draft is not one that was asked for. `vocabulary_size` counts the target's logits."""
    _echo(request.session_id, request.round, answer.session_id, answer.round)
    _timings(answer.timings)
    _require(len(answer.candidates) <= request.num_candidates, "more candidates than asked")
    first = len(answer.candidates[0].token_ids) if answer.candidates else 0
    most = max(request.draft_tokens, request.prepared_tokens)
    _require(not answer.parts or sum(part.tokens for part in answer.parts) == first, "parts that are not the draft")
    _require(answer.planned is None or first <= answer.planned <= most, "plans more than was asked")
    for candidate in answer.candidates:
        _require(len(candidate.token_ids) <= most, "a candidate longer than asked")
        _ids(candidate.token_ids, vocabulary_size)
        if request.want_q:
            _check_q(candidate, vocabulary_size)


def check_prepared(request: PreparedRequest, answer: PreparedResponse, vocabulary_size: int) -> None:
    """As check_draft, for drafts that may be verified ahead."""
    _echo(request.session_id, request.round, answer.session_id, answer.round)
    for prepared in answer.prepared:
        _ids(prepared.alternative.token_ids, vocabulary_size)
        candidate = prepared.alternative.candidate
        length = len(candidate.token_ids)
        _require(length > 0, "an empty draft")
        parts = sum(part.tokens for part in prepared.parts)
        _require(parts == length if prepared.parts else prepared.planned is None, "parts that are not the draft")
        _require(prepared.planned is None or length <= prepared.planned <= MAX_DRAFT_TOKENS, "not the planned length")
        _ids(candidate.token_ids, vocabulary_size)
        if candidate.q is not None:
            _check_q(candidate, vocabulary_size)


def check_verify(request: VerifyRequest, answer: VerifyResponse, vocabulary_size: int) -> None:
    """Raises BadAnswer if the answer contradicts the request or itself."""
    _echo(request.session_id, request.round, answer.session_id, answer.round)
    _emitted(request.max_tokens, request.logprobs, answer, vocabulary_size)
    if not request.candidates:
        _require(answer.candidate is None and answer.num_drafted == 0, "keeps a candidate though none was sent")
        return
    kept = answer.candidate
    _require(kept is not None and 0 <= kept < len(request.candidates), "keeps a candidate that was not sent")
    assert kept is not None
    drafted = request.candidates[kept].token_ids
    _require(answer.num_drafted == len(drafted), "num_drafted is not the kept candidate's length")
    accepted = answer.num_accepted
    _require(answer.token_ids[:accepted] == drafted[:accepted], "accepted tokens differ from the candidate's")
    mask = answer.acceptance_mask
    _require(len(mask) == len(drafted) and all(mask[:accepted]), "acceptance_mask does not fit")
    own = len(answer.token_ids) - accepted
    _require(own == 1 or (own == 0 and answer.stop_reason is not None), "not one token of the target's own")


def check_generated(request: GenerateRequest, remaining: int, answer: VerifyResponse, vocabulary_size: int) -> None:
    """As check_verify, for one round of a stream with `remaining` tokens to go."""
    _require(answer.session_id == request.session_id, "answers another session")
    _emitted(remaining, request.logprobs, answer, vocabulary_size)


def _emitted(max_tokens: int, logprobs: int | None, answer: VerifyResponse, vocabulary_size: int) -> None:
    ids = answer.token_ids
    _timings(answer.timings)
    _require(len(ids) <= max_tokens, "more tokens than max_tokens")
    _ids(ids, vocabulary_size)
    _require(answer.num_accepted <= answer.num_drafted, "accepts more than was drafted")
    _require(answer.num_accepted <= len(ids), "accepts more than it emits")
    if answer.stop_reason == "length":
        _require(len(ids) == max_tokens, "stops for length before max_tokens")
    if answer.stop_reason == "stop_token":
        _require(answer.stop_token_id == ids[-1], "stops at a token that is not its last")
    if logprobs is not None:
        entries = answer.logprobs
        _require(entries is not None and len(entries) == len(ids), "logprobs do not fit the tokens")
        for entry in entries or ():
            _require(isfinite(entry.logprob) and len(entry.top) <= max(logprobs, 1), "a logprob that is not finite")
            _ids([token for token, _ in entry.top], vocabulary_size)
            _require(all(isfinite(value) for _, value in entry.top), "a logprob that is not finite")


def _check_q(candidate: Candidate, vocabulary_size: int) -> None:
    _require(candidate.q is not None, "no q though asked for")
    for token_id, q in zip(candidate.token_ids, candidate.q or (), strict=True):
        _ids(q.token_ids, vocabulary_size)
        _require(len(set(q.token_ids)) == len(q.token_ids), "q names a token twice")
        _require(max(q.logprobs) <= Q_SUM_TOLERANCE, "a log-probability above zero")  # exp() could overflow
        _require(abs(fsum(map(exp, q.logprobs)) - 1.0) <= Q_SUM_TOLERANCE, "q does not sum to one")
        of = dict(zip(q.token_ids, q.logprobs, strict=True))
        _require(exp(of.get(token_id, -inf)) > 0.0, "a drafted token without probability in its q")


def _echo(session: str | None, round_: int, answered_session: str | None, answered_round: int) -> None:
    _require(answered_session == session and answered_round == round_, "answers another session or round")


def _ids(token_ids: list[int], vocabulary_size: int) -> None:
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocabulary_size):
        raise BadAnswer(f"a token id outside the vocabulary of {vocabulary_size}")


def _timings(timings: DraftTimings | VerifyTimings) -> None:
    for value in (timings.queue_ms, timings.forward_ms, timings.sample_ms, timings.total_ms):
        _require(0.0 <= value < _MAX_TIMING_MS, "a time that is not a duration")
    if isinstance(timings, VerifyTimings):
        _require(timings.rows >= 0 and timings.sessions >= 0, "a count below zero")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise BadAnswer(message)
