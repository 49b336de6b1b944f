"""A target with other token ids: which way it is drafted for, and the model's drafts in its ids."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

from basics.prefix import shared_prefix
from config.workers import DraftPrompt, DraftWorkerConfig
from draft_worker.drafter import Asked
from draft_worker.engine import Drafted, DraftEngine, SharedNoise
from draft_worker.vocabularies.prompt_choice import Prompt, PromptChoice
from draft_worker.vocabularies.sample import SAMPLE
from draft_worker.vocabularies.shared_ids import IdMap, IdReading
from draft_worker.vocabularies.shared_text import TextReading, stable
from draft_worker.vocabularies.speech import Speech
from engines.token_bytes import UnsupportedTokenizer
from engines.tokenizer import fingerprint_vocabulary
from protocol.errors import BadRequest, EngineFailure, Unsupported, WireError
from protocol.messages import MAX_TOKENS_PER_MESSAGE, Candidate, DraftRequest, DraftTimings, TopK
from protocol.worker_info import ModelInfo, TokenizerInfo, Translation

_LEAST_COVERAGE = 0.85
"""Of a sample's tokens, how many the drafter must be able to say for shared ids. Where it can't, a draft ends."""
_LONG = 2_048
"""Tokens that are read on a thread of their own: others are served meanwhile."""
_MOST_DRAWN = 64
OWN_PROMPT = "own_prompt"
"""Where a session keeps the chat as the draft model's own template has it."""
_CHOSEN = "chosen_prompt"
_LAST = "last_by_text"

Judged = Callable[[Prompt, int, int], None]
"""Called with a prompt, how many draft tokens after it were judged, and how many of them accepted."""


class Translator:
    """Drafts in one target's ids from a model that has others."""

    def __init__(
        self,
        target: Speech,
        draft: Speech,
        info: ModelInfo,
        told: Translation,
        ids: IdMap | None,
        wish: DraftPrompt,
        judged: Judged,
    ) -> None:
        """`info` describes the worker to those who use the target's ids; `ids` None: by shared text. `judged` is called
        with what came of each draft after a chat for which there are two prompts."""
        self.info = info
        self.told = told
        self._target, self._draft, self._ids = target, draft, ids
        self._drawn_per_token = 1.0
        self._wish: DraftPrompt = wish
        self._prompts = PromptChoice()
        self._tell = judged

    async def draft(self, engine: DraftEngine, asked: Asked, ahead: Sequence[int], tokens: int) -> Drafted:
        """`tokens` tokens after the context and `ahead`, which is drafted already. Raises WireError."""
        self._judge(asked)
        reading = await self._reading(asked, ahead)
        if isinstance(reading, IdReading):
            return await self._by_ids(engine, asked, reading, len(asked.ids) + len(ahead), tokens)
        drafted = await self._by_text(engine, asked, reading, tokens)
        if drafted.candidates and not ahead:
            asked.session.state[_LAST] = len(asked.ids), drafted.candidates[0].token_ids
        return drafted

    async def _reading(self, asked: Asked, ahead: Sequence[int]) -> IdReading | TextReading:
        """What the session's context is to the draft model."""
        session, name = asked.session, f"in {self.told.vocabulary}"
        unchanged = session.settle(name)
        reading: IdReading | TextReading | None = session.state.get(name)
        whole = [*asked.ids, *ahead]
        if reading is not None and len(whole) - min(unchanged, len(reading.target)) <= _LONG:
            self._update(reading, whole, unchanged, asked)
            return reading
        # A new one, so that a call that is cancelled leaves none behind that a thread still changes.
        session.state.pop(name, None)
        reading = self._new_reading(asked)
        if len(whole) > _LONG:
            await asyncio.to_thread(self._update, reading, whole, 0, asked)
        else:
            self._update(reading, whole, 0, asked)
        session.state[name] = reading
        return reading

    def _new_reading(self, asked: Asked) -> IdReading | TextReading:
        if self._ids is not None:
            return IdReading(self._ids, self._draft.lead, self._target.begin)
        reading = TextReading(self._target, self._draft)
        own: str | None = asked.session.state.get(OWN_PROMPT)
        if own is not None and self._prompt_for(asked) == "own":
            reading.use_prompt(asked.request.num_prompt_tokens, self._draft.encode_prompt(own))
        return reading

    def _prompt_for(self, asked: Asked) -> Prompt:
        """What was chosen for this session, which holds to its end."""
        chosen: Prompt | None = asked.session.state.get(_CHOSEN)
        if chosen is None:
            chosen = self._prompts.choose() if self._wish == "auto" else self._wish
            asked.session.state[_CHOSEN] = chosen
        return chosen

    def _judge(self, asked: Asked) -> None:
        """What the target made of this session's last draft."""
        chosen: Prompt | None = asked.session.state.get(_CHOSEN)
        place, drafted = asked.session.state.pop(_LAST, (0, []))
        if chosen is None or not drafted:
            return
        came = asked.ids[place:]
        accepted = shared_prefix(came, drafted)
        looked_at = min(len(drafted), accepted + 1, len(came))
        self._prompts.observe(chosen, looked_at, accepted)
        self._tell(chosen, looked_at, accepted)

    @staticmethod
    def _update(reading: IdReading | TextReading, whole: list[int], unchanged: int, asked: Asked) -> None:
        if isinstance(reading, IdReading):
            reading.update(whole, unchanged)
        else:
            reading.update(whole, unchanged, asked.request.num_prompt_tokens)

    async def _by_ids(
        self, engine: DraftEngine, asked: Asked, reading: IdReading, position: int, tokens: int
    ) -> Drafted:
        ids = self._ids
        assert ids is not None
        sampling = asked.request.sampling
        stops = [*sampling.stop_token_ids, *(() if sampling.ignore_eos else self._target.stops)]
        biased = ((_to(ids.to_draft, int(key)), bias) for key, bias in sampling.logit_bias.items())
        changes: dict[str, Any] = {
            "logit_bias": {str(ours): bias for ours, bias in biased if ours >= 0},
            "stop_token_ids": [ours for stop in stops if (ours := _to(ids.to_draft, stop)) >= 0],
        }
        start = reading.length_at(asked.request.grammar.start) if asked.request.grammar is not None else None
        prompt = reading.length_at(min(asked.request.num_prompt_tokens, len(reading.target)))
        request = self._request(asked, changes, tokens, prompt, start)
        shared = SharedNoise(ids.columns, position)
        drafted = await self._ask(engine, asked, request, reading.read[:], shared)
        candidates = [_mapped(candidate, ids.to_target) for candidate in drafted.candidates]
        return Drafted(candidates, min(drafted.cached_tokens, len(asked.ids)), drafted.timings)

    async def _by_text(self, engine: DraftEngine, asked: Asked, reading: TextReading, tokens: int) -> Drafted:
        if asked.request.want_q:
            raise Unsupported("q is not known of drafts by shared text", "want_q")
        read = reading.read()
        if read is None:
            return _nothing()
        drawn = min(_MOST_DRAWN, math.ceil(tokens * self._drawn_per_token)) if tokens else 0
        start = None
        if asked.request.grammar is not None:
            length, exactly = reading.length_at(asked.request.grammar.start)
            start = length if exactly else None
        prompt, _ = reading.length_at(min(asked.request.num_prompt_tokens, len(reading.target)))
        # Its noise is not the target's: the token that is likeliest is likeliest to be drawn.
        changes = {"temperature": 0.0, "logit_bias": {}, "stop_token_ids": [], "min_tokens": 0}
        request = self._request(asked, changes, drawn, prompt, start)
        drafted = await self._ask(engine, asked, request, read, None)
        candidates: list[Candidate] = []
        for candidate in drafted.candidates:
            token_ids = self._retokenised(reading, candidate.token_ids, asked.request)[:tokens]
            if not candidates or (token_ids and all(token_ids != one.token_ids for one in candidates)):
                candidates.append(Candidate(token_ids=token_ids))
        return Drafted(candidates, min(drafted.cached_tokens, len(asked.ids)), drafted.timings)

    def _retokenised(self, reading: TextReading, drawn: list[int], request: DraftRequest) -> list[int]:
        """The target's tokens for what the draft model drew, as far as what it says next can't change them."""
        ended = bool(drawn) and drawn[-1] in self._draft.stops
        spoken = [self._draft.spell([token_id]) for token_id in (drawn[:-1] if ended else drawn)]
        now = reading.tokens_of(b"".join(spoken))
        kept = len(now)
        if not ended and spoken:
            kept = stable(now, reading.tokens_of(b"".join(spoken[:-1])), spoken, self._target)
            if kept:
                used = len(self._target.spell(now[:kept])) / max(1, sum(map(len, spoken)))
                self._drawn_per_token += 0.05 * (len(spoken) * used / kept - self._drawn_per_token)
        token_ids = now[:kept]
        stops = {*request.sampling.stop_token_ids, *(() if request.sampling.ignore_eos else self._target.stops)}
        for place, token_id in enumerate(token_ids):
            if token_id in stops:
                return token_ids[: place + 1]
            if token_id in self._target.special:
                return token_ids[:place]
        if ended and self._target.stop in stops and self._target.stop is not None:
            token_ids = [*token_ids, self._target.stop]
        return token_ids

    def _request(
        self, asked: Asked, sampling: dict[str, Any], tokens: int, prompt: int, grammar_start: int | None
    ) -> DraftRequest:
        """The same request in the draft model's ids."""
        grammar = asked.request.grammar
        if grammar is not None:
            grammar = grammar.model_copy(update={"start": grammar_start}) if grammar_start is not None else None
        return asked.request.model_copy(
            update={
                "sampling": asked.request.sampling.model_copy(update=sampling),
                "draft_tokens": tokens,
                "max_tokens": MAX_TOKENS_PER_MESSAGE,
                "num_prompt_tokens": prompt,
                "grammar": grammar,
            }
        )

    async def _ask(
        self, engine: DraftEngine, asked: Asked, request: DraftRequest, read: list[int], shared: SharedNoise | None
    ) -> Drafted:
        """The engine's draft; none where the model's context has no room for it."""
        room = engine.model.info.context_length - len(read)
        if room < max(1, request.draft_tokens) or not read:
            return _nothing()
        try:
            return await engine.draft(request, read, asked.owner, asked.deadline, shared)
        except (BadRequest, EngineFailure) as error:
            if request.grammar is None:
                raise
            # What the grammar permits may be nothing that both can say, or its text not end with a token here.
            del error
        return await engine.draft(
            request.model_copy(update={"grammar": None}), read, asked.owner, asked.deadline, shared
        )


def translator(
    theirs: TokenizerInfo,
    engine: DraftEngine,
    info: ModelInfo,
    draft: Speech,
    config: DraftWorkerConfig,
    judged: Judged,
) -> Translator:
    """What drafts for the target whose tokenizer is `theirs`, on a worker that describes itself by `info`.

    Takes seconds: call it in a thread.

    Raises:
        BadRequest: the tokenizer can't be read, or is not the one that its vocabulary's fingerprint is of.
        Unsupported: the two can't be translated into one another, or the settings refuse to.
    """
    wanted = config.other_vocabulary
    if wanted == "refuse":
        raise Unsupported("this worker drafts in its own vocabulary alone (other_vocabulary: refuse)", "tokenizer")
    target = opened(theirs)
    if fingerprint_vocabulary(target.vocabulary) != theirs.vocabulary.fingerprint:
        raise BadRequest("is not of the vocabulary that it comes with", "tokenizer.tokenizer_json")
    ids = IdMap(
        target, draft, engine.model.info.vocabulary.logits_size if engine.model.info.vocabulary is not None else 0
    )
    sample = target.encode(SAMPLE)
    coverage = sum(ids.to_draft[token_id] >= 0 for token_id in sample) / max(1, len(sample))
    if wanted == "shared_ids" and not engine.shares_noise:
        raise Unsupported(f"engine {engine.model.info.engine} can't draft by shared ids", "tokenizer")
    by_ids = wanted == "shared_ids" or (wanted == "auto" and engine.shares_noise and coverage >= _LEAST_COVERAGE)
    told = Translation(
        vocabulary=theirs.vocabulary.fingerprint,
        way="shared_ids" if by_ids else "shared_text",
        q=by_ids and engine.model.info.capabilities.q,
        shared=ids.shared,
        coverage=round(coverage, 4),
    )
    info = info.model_copy(
        update={
            "vocabulary": theirs.vocabulary,
            "stop_token_ids": theirs.stop_token_ids,
            "special_token_ids": sorted(target.special),
            "capabilities": info.capabilities.model_copy(update={"q": told.q}),
        }
    )
    return Translator(target, draft, info, told, ids if by_ids else None, config.draft_prompt, judged)


def opened(info: TokenizerInfo) -> Speech:
    """Raises BadRequest or Unsupported."""
    try:
        return Speech(info)
    except UnsupportedTokenizer as error:
        raise Unsupported(str(error), "tokenizer.tokenizer_json") from error
    except WireError:
        raise
    except BaseException as error:  # the bindings raise plain Exception, and panic with less
        if isinstance(error, KeyboardInterrupt | SystemExit | asyncio.CancelledError | MemoryError):
            raise
        raise BadRequest(f"can't be read: {error}"[:300], "tokenizer.tokenizer_json") from None


def _to(ids: Sequence[int], token_id: int) -> int:
    return ids[token_id] if token_id < len(ids) else -1


def _mapped(candidate: Candidate, to_target: Sequence[int]) -> Candidate:
    """A candidate in the target's ids. Only tokens that have one were drawn."""
    q = candidate.q
    return Candidate(
        token_ids=[to_target[token_id] for token_id in candidate.token_ids],
        logprobs=candidate.logprobs,
        q=[TopK(token_ids=[to_target[i] for i in top.token_ids], logprobs=top.logprobs) for top in q]
        if q is not None
        else None,
    )


def _nothing() -> Drafted:
    none = DraftTimings(queue_ms=0.0, forward_ms=0.0, sample_ms=0.0, total_ms=0.0)
    return Drafted([Candidate(token_ids=[])], 0, none)
