"""Token sequences to train on, as one file, and how they are gathered into batches."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.numpy import save_file
from torch import Tensor

from training.errors import TrainingError
from training.sampler import Answer

_WIDTH_STEP = 64
_POOL_BATCHES = 64


@dataclass(slots=True)
class Corpus:
    """`ids` are all sequences' tokens, one after another (int32 [tokens]); sequence i is [offsets[i], offsets[i+1]).

    What was generated, and is trained on, begins at its token `starts[i]`. `temperatures[i]` is the temperature it was
    drawn at, −1 for the data's own texts; `kinds[i]` names it.
    """

    ids: np.ndarray
    offsets: np.ndarray
    starts: np.ndarray
    temperatures: np.ndarray
    kinds: list[str]

    def __len__(self) -> int:
        return len(self.starts)

    def sequence(self, index: int) -> np.ndarray:
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    @property
    def said(self) -> int:
        """Tokens that are trained on."""
        return int((np.diff(self.offsets) - self.starts).sum())

    def save(self, path: Path) -> None:
        names = sorted(set(self.kinds))
        codes = {name: code for code, name in enumerate(names)}
        tensors = {
            "ids": self.ids.astype(np.int32),
            "offsets": self.offsets.astype(np.int64),
            "starts": self.starts.astype(np.int32),
            "temperatures": self.temperatures.astype(np.float32),
            "kinds": np.array([codes[kind] for kind in self.kinds], dtype=np.int32),
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".partial")
        save_file(tensors, temporary, metadata={str(code): name for name, code in codes.items()})
        temporary.rename(path)

    @classmethod
    def load(cls, path: Path) -> Corpus:
        with safe_open(path, framework="numpy") as file:
            names = file.metadata() or {}
            kinds = [names[str(code)] for code in file.get_tensor("kinds")]
            columns = [file.get_tensor(name) for name in ("ids", "offsets", "starts", "temperatures")]
        ids, offsets, starts, temperatures = columns
        return cls(ids, offsets, starts, temperatures, kinds)

    @classmethod
    def of(cls, sequences: Sequence[tuple[Sequence[int], int, float, str]]) -> Corpus:
        """From (ids, start, temperature, kind) of each sequence."""
        lengths = [len(ids) for ids, *_ in sequences]
        flat = np.fromiter((token for ids, *_ in sequences for token in ids), dtype=np.int32, count=sum(lengths))
        return cls(
            flat,
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            np.array([start for _, start, _, _ in sequences], dtype=np.int32),
            np.array([heat for _, _, heat, _ in sequences], dtype=np.float32),
            [kind for *_, kind in sequences],
        )

    @classmethod
    def of_answers(cls, answers: Sequence[Answer]) -> Corpus:
        return cls.of(
            [((*a.prompt.ids, *a.ids), len(a.prompt.ids), a.prompt.temperature, a.prompt.kind) for a in answers]
        )

    @classmethod
    def joined(cls, parts: Sequence[Corpus]) -> Corpus:
        if not parts:
            raise TrainingError("there is nothing to train on")
        shifts = np.cumsum([0, *[len(part.ids) for part in parts]])
        offsets = [part.offsets[:-1] + shift for part, shift in zip(parts, shifts, strict=False)]
        return cls(
            np.concatenate([part.ids for part in parts]),
            np.concatenate([*offsets, [shifts[-1]]]).astype(np.int64),
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.temperatures for part in parts]),
            [kind for part in parts for kind in part.kinds],
        )

    def token_counts(self, vocabulary: int) -> np.ndarray:
        """How often each id was generated (int64 [vocabulary])."""
        said = np.ones(len(self.ids), dtype=bool)
        for begin, start in zip(self.offsets[:-1], self.starts, strict=True):
            said[begin : begin + start] = False
        return np.bincount(self.ids[said], minlength=vocabulary)


@dataclass(frozen=True, slots=True)
class Batch:
    """`ids` int64 [sequences, width], zeros behind each. `places` int64 [n]: where, in the flattened ids, the next
    token is one that was said; `counts[i]` of them are the sequence i's."""

    ids: Tensor
    places: Tensor
    counts: list[int]

    def to(self, device: torch.device) -> Batch:
        return Batch(self.ids.to(device, non_blocking=True), self.places.to(device, non_blocking=True), self.counts)

    @property
    def said(self) -> Tensor:
        """The tokens that were generated after `places`, [n]."""
        return self.ids.flatten()[self.places + 1]


def plan_batches(corpus: Corpus, tokens: int, longest: int, seed: int) -> list[list[int]]:
    """One pass over the corpus: which sequences make each batch of about `tokens` tokens, like lengths together.

    The order follows from `seed`. Sequences are cut at `longest` tokens; those without anything to learn from are left
    out.
    """
    draw = random.Random(seed)
    lengths = np.minimum(np.diff(corpus.offsets), longest)
    usable = np.flatnonzero(lengths > np.maximum(1, corpus.starts)).tolist()
    draw.shuffle(usable)
    pool = max(64, _POOL_BATCHES * tokens // max(1, int(lengths.mean())))
    plans: list[list[int]] = []
    for begin in range(0, len(usable), pool):
        plans.extend(grouped(sorted(usable[begin : begin + pool], key=lambda i: int(lengths[i])), lengths, tokens))
    draw.shuffle(plans)
    return plans


def make_batch(corpus: Corpus, indices: Sequence[int], longest: int) -> Batch:
    parts = [corpus.sequence(index)[:longest] for index in indices]
    width = -(-max(map(len, parts)) // _WIDTH_STEP) * _WIDTH_STEP
    ids = np.zeros((len(parts), width), dtype=np.int64)
    places = []
    for row, (index, part) in enumerate(zip(indices, parts, strict=True)):
        ids[row, : len(part)] = part
        places.append(np.arange(max(0, corpus.starts[index] - 1), len(part) - 1) + row * width)
    return Batch(torch.from_numpy(ids), torch.from_numpy(np.concatenate(places)), [len(each) for each in places])


def grouped(ordered: Sequence[int], lengths: np.ndarray, tokens: int) -> Iterator[list[int]]:
    """Consecutive sequences, as many together as make `tokens` tokens when all are as long as the longest."""
    group: list[int] = []
    longest = 0
    for index in ordered:
        width = max(longest, -(-int(lengths[index]) // _WIDTH_STEP) * _WIDTH_STEP)
        if group and (len(group) + 1) * width > tokens:
            yield group
            group, width = [], -(-int(lengths[index]) // _WIDTH_STEP) * _WIDTH_STEP
        group.append(index)
        longest = width
    if group:
        yield group
