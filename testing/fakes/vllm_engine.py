"""What the proposer sees of vLLM: batches whose rows move, and a target that accepts drafts as vLLM's does."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from engines.vllm.proposer import TandemProposer
from engines.vllm.proposer.soundness import Sampler

VOCABULARY = 32
MAX_MODEL_LEN = 200


def config(options: dict[str, Any], draft_tokens: int = 4, rank: int = 0, ranks: int = 1) -> Any:
    """A VllmConfig, as far as the proposer reads it."""
    return SimpleNamespace(
        additional_config={"tandem": options},
        speculative_config=SimpleNamespace(num_speculative_tokens=draft_tokens, rejection_sample_method="standard"),
        parallel_config=SimpleNamespace(rank=rank, tensor_parallel_size=ranks),
        model_config=SimpleNamespace(max_model_len=MAX_MODEL_LEN, get_vocab_size=lambda: VOCABULARY),
    )


def proposer(url: str, draft_tokens: int = 4, **options: Any) -> TandemProposer:
    """One whose engine is sound, and which does not compare vocabularies."""
    given = {"draft_url": url, "deadline_ms": 60_000, "check_vocabulary": False, "trust_sampler": True, **options}
    made = TandemProposer(config(given, draft_tokens))
    made.load_model()
    return made


def following(ids: list[int]) -> int:
    """The target's next token: the text is a loop."""
    return 3 + (ids[-1] - 3 + 1) % 7


@dataclass
class Request:
    prompt: list[int]
    ids: list[int]
    drafts: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    sampled: list[int] = field(default_factory=list)


class Engine:
    """Steps a batch of requests, each of which starts over at the context's end. `rows` may change between steps."""

    def __init__(self, proposer: TandemProposer, *prompts: list[int]) -> None:
        self.proposer = proposer
        self.rows = [Request(prompt, list(prompt)) for prompt in prompts]

    def step(self) -> None:
        for row in self.rows:
            if len(row.ids) == MAX_MODEL_LEN:
                row.ids, row.drafts = list(row.prompt), []
            row.sampled = []
            for token_id in [*row.drafts, None]:
                row.sampled.append(following(row.ids + row.sampled))
                if row.sampled[-1] != token_id:
                    break
                row.accepted += 1
            row.ids += row.sampled
        self._propose([row.sampled for row in self.rows])

    def read(self) -> None:
        """A step that reads a part of the prompts and samples nothing."""
        self._propose([[] for _ in self.rows])

    def has_read(self) -> bool:
        """Whether the worker has read all that it should read beside the engine of the last step's requests."""
        waiting = self.proposer._sequences._before.values()
        return not any(sequence.reading for sequences in waiting for sequence in sequences)

    def _propose(self, sampled: list[list[int]]) -> None:
        lengths = np.array([len(row.ids) for row in self.rows], dtype=np.int32)
        ids = table(*(row.ids for row in self.rows))
        drafts = self.proposer.propose(sampled, lengths, ids, slot_mappings=None)
        assert len(drafts) == len(self.rows)
        for row, tokens in zip(self.rows, drafts, strict=True):
            row.drafts = tokens
            row.drafted += len(tokens)


def broken_sampler() -> Sampler:
    sampler = Sampler()
    sampler.beside_sampled = False
    return sampler


def table(*rows: list[int]) -> Any:
    """vLLM's token_ids_cpu."""
    ids = np.zeros((len(rows), MAX_MODEL_LEN), dtype=np.int32)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = row
    return ids
