"""Text that the target itself generates: many sequences side by side, each at its own position, one token each a step.

A sequence that ends makes way for the next prompt, so that the batch stays full. The model is a transformers causal
language model on the torch engine's attention interface; a step has the same shapes always and is one CUDA graph.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from engines.torch.attention import ATTENTION_NAME, PASS_ARGUMENT, ShapeProbe, Special
from engines.torch.graphs import GraphPool
from training.errors import TrainingError

_STEPS_BETWEEN_LOOKS = 16
_PREFILL_TOKENS = 32_768
_WIDTH_STEP = 32
_MOST_PASSED_OVER = 20_000
"""So many prompts in a row without room for an answer, and none of an endless stream will have it."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What a sequence starts with. `temperature` 0 takes the likeliest token. `most` new tokens at most."""

    ids: tuple[int, ...]
    temperature: float
    most: int
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """`ids` are only the new tokens, including the one that ended it."""

    prompt: Prompt
    ids: tuple[int, ...]


class _StepPass:
    """One token of every sequence: its key and value go to its own position, it attends over what is before."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], positions: Tensor, slot_length: int) -> None:
        self.keys, self.values, self.slot_length = keys, values, slot_length
        self._positions = positions
        self._rows = torch.arange(len(positions), device=positions.device)
        self._places = torch.arange(slot_length, device=positions.device)

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, special: Special | None
    ) -> Tensor:
        _refuse(special, self.slot_length)
        count, heads, _, dim = query.shape
        keys, values = self.keys[layer], self.values[layer]
        keys[self._rows, :, self._positions] = key[:, :, 0]
        values[self._rows, :, self._positions] = value[:, :, 0]
        grouped = query.reshape(count, key.shape[1], -1, dim) * scaling
        scores = torch.matmul(grouped, keys.transpose(2, 3))
        hidden = self._places > self._positions[:, None]
        weights = scores.masked_fill(hidden[:, None, None], float("-inf")).softmax(dim=-1)
        return torch.matmul(weights, values).reshape(count, 1, heads, -1)


class _PromptPass:
    """Whole prompts, padded behind: causal attention within them, keys and values kept in their slots."""

    def __init__(self, keys: list[Tensor], values: list[Tensor], slots: Tensor, slot_length: int) -> None:
        self.keys, self.values, self.slots, self.slot_length = keys, values, slots, slot_length

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, special: Special | None
    ) -> Tensor:
        _refuse(special, self.slot_length)
        width = key.shape[2]
        self.keys[layer][self.slots, :, :width] = key
        self.values[layer][self.slots, :, :width] = value
        repeat = query.shape[1] // key.shape[1]
        attended = scaled_dot_product_attention(
            query,
            key.repeat_interleave(repeat, dim=1),
            value.repeat_interleave(repeat, dim=1),
            is_causal=True,
            scale=scaling,
        )
        return attended.transpose(1, 2)


def _refuse(special: Special | None, length: int) -> None:
    if special is None:
        return
    if special.softcap is not None or special.sinks is not None:
        raise TrainingError(
            "the target caps its attention scores or has attention sinks, which training can't generate with"
        )
    if special.window is not None and length > special.window:
        raise TrainingError(
            f"the target attends over {special.window} tokens: texts of {length} are too long (--length)"
        )


class Sampler:
    """Generates with `model`, `sequences` at a time of at most `length` tokens each, until a stop id or a limit.

    Tokens are drawn from softmax(logits / temperature), uncut. The model's attention is the engine's until `close`.
    """

    def __init__(self, model: Any, *, sequences: int, length: int, stop_ids: Iterable[int], seed: int = 0) -> None:
        self._model = model
        self._length = length
        self._device = model.device
        self._before = model.config._attn_implementation
        model.eval()
        model.set_attn_implementation(ATTENTION_NAME)
        shapes = self._probe()
        kind, device = model.dtype, self._device
        self._keys = [torch.zeros(sequences, heads, length, dim, dtype=kind, device=device) for heads, dim, _ in shapes]
        self._values = [torch.zeros(sequences, h, length, dim, dtype=kind, device=device) for h, _, dim in shapes]
        self._tokens = torch.zeros(sequences, dtype=torch.long, device=device)
        self._positions = torch.zeros_like(self._tokens)
        self._limits = torch.zeros_like(self._tokens)
        self._active = torch.zeros(sequences, dtype=torch.bool, device=device)
        self._heat = torch.zeros(sequences, device=device)
        self._out = torch.zeros(sequences, length, dtype=torch.int32, device=device)
        self._rows = torch.arange(sequences, device=device)
        self._stops = torch.tensor(sorted(set(stop_ids)), dtype=torch.long, device=device)
        self._step_pass = _StepPass(self._keys, self._values, self._positions, length)
        torch.manual_seed(seed)
        with torch.inference_mode():
            self._step = GraphPool(torch.device(device)).capture(self._one_step)

    @property
    def sequences(self) -> int:
        return len(self._rows)

    def close(self) -> None:
        self._model.set_attn_implementation(self._before)

    @torch.inference_mode()
    def run(self, prompts: Iterator[Prompt], *, until: Callable[[], bool] = lambda: False) -> Iterator[Answer]:
        """Answers in the order in which they end. From the moment `until()` is true no further prompt is begun, and
        what is unfinished is dropped. Prompts that leave no room for an answer are passed over; TrainingError if none
        of a great many leaves any."""
        running: dict[int, Prompt] = {}
        upcoming: list[Prompt] = []
        ended: list[Answer] = []
        count = self.sequences
        self._active.zero_()
        while not until():
            free = [slot for slot in range(count) if slot not in running]
            if len(free) >= max(1, count // 32) or not running:
                upcoming.extend(self._take(prompts, len(free) - len(upcoming)))
                started = dict(zip(free, upcoming, strict=False))
                upcoming = upcoming[len(started) :]
                self._begin(started)
                running.update(started)
            if not running:
                break
            for _ in range(_STEPS_BETWEEN_LOOKS):
                self._step()
            # While a GPU runs these steps, handle the results of the last ones and prepare the next.
            yield from ended
            upcoming.extend(self._take(prompts, count // 16 - len(upcoming)))
            ended = self._harvest(running)
        yield from ended

    def _harvest(self, running: dict[int, Prompt]) -> list[Answer]:
        active = self._active.tolist()
        slots = [slot for slot in running if not active[slot]]
        if not slots:
            return []
        where = torch.tensor(slots, device=self._device)
        rows, lengths = self._out[where].cpu().tolist(), self._positions[where].tolist()
        answers = []
        for slot, row, length in zip(slots, rows, lengths, strict=True):
            prompt = running.pop(slot)
            answers.append(Answer(prompt, tuple(row[len(prompt.ids) : length + 1])))
        return answers

    def _take(self, prompts: Iterator[Prompt], count: int) -> list[Prompt]:
        taken: list[Prompt] = []
        passed_over = 0
        while len(taken) < count:
            prompt = next(prompts, None)
            if prompt is None:
                break
            if prompt.ids and len(prompt.ids) + 8 <= self._length and prompt.most > 0:
                taken.append(prompt)
                passed_over = 0
            elif (passed_over := passed_over + 1) >= _MOST_PASSED_OVER:
                raise TrainingError(f"no prompt leaves room for an answer in {self._length} tokens (--length)")
        return taken

    def _begin(self, started: dict[int, Prompt]) -> None:
        """Read prompts into their slots, several of about one length in a pass, and draw each one's first token."""
        order = sorted(started, key=lambda slot: len(started[slot].ids))
        while order:
            width = min(self._length, -(-len(started[order[-1]].ids) // _WIDTH_STEP) * _WIDTH_STEP)
            count = max(1, _PREFILL_TOKENS // width)
            chosen, order = order[-count:], order[:-count]
            self._read(chosen, [started[slot] for slot in chosen], width)

    def _read(self, slots: list[int], prompts: list[Prompt], width: int) -> None:
        device = self._device
        ids = torch.tensor([[*prompt.ids, *[0] * (width - len(prompt.ids))] for prompt in prompts], device=device)
        where = torch.tensor(slots, device=device)
        last = torch.tensor([len(prompt.ids) - 1 for prompt in prompts], device=device)
        positions = torch.arange(width, device=device).expand(len(slots), width)
        # All but the last token: the next step feeds it, and writes its key and value again.
        self._model(
            input_ids=ids,
            position_ids=positions,
            use_cache=False,
            logits_to_keep=1,
            **{PASS_ARGUMENT: _PromptPass(self._keys, self._values, where, self._length)},
        )
        self._out[where, :width] = ids.int()
        self._positions[where] = last
        self._tokens[where] = ids[torch.arange(len(slots), device=device), last]
        limits = [min(self._length - 1, len(prompt.ids) - 1 + prompt.most) for prompt in prompts]
        self._limits[where] = torch.tensor(limits, device=device)
        self._heat[where] = torch.tensor([prompt.temperature for prompt in prompts], device=device)
        self._active[where] = True

    def _one_step(self) -> None:
        logits = self._model(
            input_ids=self._tokens[:, None],
            position_ids=self._positions[:, None],
            use_cache=False,
            **{PASS_ARGUMENT: self._step_pass},
        ).logits[:, -1]
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log_()
        # argmax(logits / T + Gumbel) = argmax(logits − T · log(exponential noise)); at T = 0 the likeliest.
        drawn = (logits.float() - self._heat[:, None] * noise).argmax(dim=-1)
        places = torch.where(self._active, self._positions + 1, self._positions)
        drawn = torch.where(self._active, drawn, self._tokens)
        self._out[self._rows, places] = drawn.int()
        self._tokens.copy_(drawn)
        self._positions.copy_(places)
        ended = (drawn[:, None] == self._stops).any(dim=-1) | (places >= self._limits)
        self._active &= ~ended

    @torch.inference_mode()
    def _probe(self) -> list[tuple[int, int, int]]:
        probe = ShapeProbe(self._length)
        token = torch.zeros(1, 1, dtype=torch.long, device=self._device)
        self._model(input_ids=token, position_ids=token, use_cache=False, **{PASS_ARGUMENT: probe})
        return [probe.shapes[layer] for layer in sorted(probe.shapes)]


def timer(seconds: float | None) -> Callable[[], bool]:
    """A function that returns True after `seconds`; never if that is None."""
    end = None if seconds is None else time.monotonic() + seconds
    return lambda: end is not None and time.monotonic() >= end
