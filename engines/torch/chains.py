"""Chains of drawn tokens without the host: feed, draw, feed what was drawn, γ times, then one copy back.

A small model's step on a GPU is launches and waits rather than work. Here a step is one compiled pass over static
buffers (its attention: engines/torch/slot_attention.py) and one static draw (engines/sampling/static.py), on CUDA each
captured as a graph for a few numbers of sequences. Everything but the capture runs on CPU as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from engines.runtime.rows import Row, flattened
from engines.runtime.runner import ChainRow
from engines.sampling.edits import is_edited
from engines.sampling.process import Way, way_of
from engines.sampling.rows import SamplingRow
from engines.sampling.static import WAYS
from engines.torch.attention import PASS_ARGUMENT
from engines.torch.chain_buffers import LONGEST_APART, ChainBuffers
from engines.torch.graphs import GraphPool
from engines.torch.runner import Runner
from engines.torch.slot_attention import StaticPass

logger = logging.getLogger(__name__)

MAX_SEQUENCES = 32
MAX_STEPS = 32
MAX_TAIL = 16
"""Tokens of context that a chain may begin with: after a round one, or two if all drafts were accepted; more where
rounds went by without a draft, so that a drafter that fell behind catches up in passing."""
_SEQUENCES = (2, 4, 8, 16, MAX_SEQUENCES)
"""One sequence is computed as two: matrix products take as long, and torch.compile would compile for one anew."""
_TAILS = (1, 2, 4, 8, MAX_TAIL)
APART_PLACES = MAX_SEQUENCES * LONGEST_APART
"""That a runner's memory needs (KeyValueCache.apart) for chains apart."""

Replay = Callable[[], None]


class ChainRunner:
    """Draws chains with a runner's model and key-value memory; for use by whoever uses the runner, not beside it.

    Made once, which on CUDA takes about a minute (torch.compile, less if its cache on disk has it) and `memory` for
    logits; the graphs' own working memory is that of the largest. Overwrites slot 0. Without `compiled`, or where
    compiling fails, the model's own code is captured as it is.
    """

    def __init__(self, runner: Runner, *, compiled: bool) -> None:
        self._runner = runner
        cache = runner.cache
        with_apart = cache.apart >= APART_PLACES
        most = MAX_SEQUENCES if with_apart else runner.num_slots
        sizes = [size for size in _SEQUENCES if size < 2 * most] or [_SEQUENCES[0]]
        self.max_sequences = sizes[-1]
        self.apart = self.max_sequences - 1 if with_apart else 0
        self.longest_apart = LONGEST_APART
        self._buffers = ChainBuffers(
            MAX_TAIL * self.max_sequences, self.max_sequences, MAX_STEPS, runner.device, cache.slot_length,
            cache.first_apart,
        )  # fmt: skip
        self._logits = torch.zeros(self.max_sequences, runner.vocab_size, dtype=runner.dtype, device=runner.device)
        self._order = torch.arange(self.max_sequences, device=runner.device)
        self._heads: dict[tuple[int, int], Replay] = {}
        self._steps: dict[int, Replay] = {}
        self._draws: dict[tuple[int, Way], Replay] = {}
        self._pass = self._compiled() if compiled else self._model
        self._capture(sizes)

    def takes(self, row: Row, sampling: SamplingRow) -> bool:
        """Whether a chain can be drawn after `row`; a grammar, q or a runner-up are not to be had."""
        return row.parents is None and 1 <= len(row.token_ids) <= MAX_TAIL and not is_edited(sampling)

    @torch.inference_mode()
    def read(self, rows: Sequence[Row]) -> None:
        """Feed chains of tokens, of which no logits are wanted, in as many static passes as that takes.

        A prompt's ordinary pass is thousands of launches, each of which waits its turn if another process keeps the
        GPU busy; this is a few. Raises ValueError if a row does not fit (engines.runtime.rows.check_rows).
        """
        self._runner.check(rows)
        columns = flattened(rows)
        most = MAX_TAIL * self.max_sequences
        for first in range(0, len(columns[0]), most):
            context = [column[first : first + most] for column in columns]
            size = next(size for size in self._heads if size[0] >= len(context[0]))
            self._buffers.fill_context(context, size[0])
            self._heads[size]()
            self._buffers.wait()

    @torch.inference_mode()
    def run(self, chains: Sequence[ChainRow]) -> list[list[int]]:
        """Draw for up to `max_sequences` sequences at a time: at most `count` and MAX_STEPS tokens for each.

        A chain ends early, maybe with none, if a token can't be drawn here: the ordinary way is then to go on. The
        slots hold, behind what `row` fed, keys and values for all tokens of the answer but the last. Chains apart are
        computed where no slot is, each in places of its own, which the next call overwrites.

        Raises:
            ValueError: if a row does not fit (engines.runtime.rows.check_rows), or a chain apart is longer than
                LONGEST_APART.
        """
        self._runner.check([chain.row for chain in chains if not chain.apart])
        for chain in chains:
            if chain.apart:
                self._runner.check([chain.row])
                if not self.apart or len(chain.row.token_ids) + chain.count > LONGEST_APART:
                    raise ValueError(f"a chain apart has room for {LONGEST_APART if self.apart else 0} tokens")
        found: list[list[int]] = []
        for first in range(0, len(chains), self.max_sequences):
            found += self._run(chains[first : first + self.max_sequences])
        return found

    def _run(self, chains: Sequence[ChainRow]) -> list[list[int]]:
        sequences = next(size for size in self._steps if size >= len(chains))
        fed = sum(len(chain.row.token_ids) for chain in chains)
        rows = next(size for size, of in self._heads if of == sequences and size >= fed)
        way = max((way_of(chain.sampling, self._runner.vocab_size) for chain in chains), key=WAYS.index)
        steps = min(max(chain.count for chain in chains), MAX_STEPS)
        self._buffers.fill(chains, rows, sequences)
        self._heads[rows, sequences]()
        self._draws[sequences, way]()
        for _ in range(steps - 1):
            self._steps[sequences]()
            self._draws[sequences, way]()
        tokens, sure, second = self._buffers.read(steps).unbind(1)
        lengths = sure.cumprod(0).sum(0).tolist()
        for number, chain in enumerate(chains):
            if chain.kept is not None:
                chain.kept.extend(second[:, number].tolist())
        return [
            drawn[: min(length, chain.count)]
            for chain, drawn, length in zip(chains, tokens.T.tolist(), lengths, strict=False)
        ]

    @torch.no_grad()
    def _capture(self, sizes: Sequence[int]) -> None:
        """The largest first, which takes the memory that the others then share."""
        pool = GraphPool(self._runner.device)
        for size in reversed(sizes):
            for tail in reversed(_TAILS):
                self._heads[tail * size, size] = pool.capture(self._head(tail * size, size))
            self._steps[size] = pool.capture(self._step(size))
            for way in WAYS:
                self._buffers.step.zero_()
                self._draws[size, way] = pool.capture(self._draw(size, way))
        self._heads = dict(sorted(self._heads.items()))
        self._steps = dict(sorted(self._steps.items()))

    def _head(self, rows: int, sequences: int) -> Replay:
        """Feeds the tails of contexts."""
        buffers = self._buffers
        tokens, positions, slots = buffers.tokens[:rows], buffers.positions[:rows], buffers.slots[:rows]
        shared, offsets = buffers.shared[:rows], buffers.offsets[:rows]
        last, logits = buffers.last[:sequences], self._logits[:sequences]
        return lambda: _put(self._pass(tokens, positions, slots, shared, offsets, last), logits)

    def _step(self, sequences: int) -> Replay:
        """Feeds the tokens just drawn."""
        buffers = self._buffers
        tokens, next_positions = buffers.drawn[:sequences], buffers.next_positions[:sequences]
        slots, order, logits = buffers.sequence_slots[:sequences], self._order[:sequences], self._logits[:sequences]
        shared, offsets = buffers.sequence_shared[:sequences], buffers.sequence_offsets[:sequences]
        # A sequence that is full waits in its last place for longer chains; nothing there counts as held.
        longest = buffers.longest[:sequences]

        def step() -> None:
            positions = torch.minimum(next_positions - 1, longest).clamp_(min=0)
            _put(self._pass(tokens, positions, slots, shared, offsets, order), logits)

        return step

    def _draw(self, sequences: int, way: Way) -> Replay:
        """Draws the next tokens and notes them."""
        buffers = self._buffers
        logits, positions = self._logits[:sequences], buffers.next_positions[:sequences]
        sampling, drawn, found = buffers.sampling(sequences), buffers.drawn[:sequences], buffers.found[..., :sequences]

        def draw() -> None:
            tokens, sure, second = sampling.draw(logits, positions, way)
            drawn.copy_(tokens)
            found.index_copy_(0, buffers.step, torch.stack([tokens, sure.to(torch.int64), second])[None])
            buffers.step.add_(1)
            positions.add_(1)

        return draw

    def _model(
        self, tokens: Tensor, positions: Tensor, slots: Tensor, shared: Tensor, offsets: Tensor, last: Tensor
    ) -> Tensor:
        """Feed n tokens, int64 [n] each → the model's logits [r, V] after the r tokens at `last`."""
        cache = self._runner.cache
        attention = StaticPass(cache.keys, cache.values, slots, positions, cache.slot_length, shared, offsets)
        output = self._runner.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=last,
            **{PASS_ARGUMENT: attention},
        )
        logits: Tensor = output.logits[0]
        return logits

    def _compiled(self) -> Callable[..., Tensor]:
        """The model's pass as torch.compile makes it, small kernels fused, for any number of rows from two up."""
        compiled = torch.compile(self._model, fullgraph=True)
        # Unlike numbers of rows and sequences, so that they are not taken for one and the same.
        sizes = [2 * self.max_sequences] * 5 + [self.max_sequences]
        inputs = [torch.zeros(size, dtype=torch.int64, device=self._runner.device) for size in sizes]
        for tensor in inputs:
            torch._dynamo.mark_dynamic(tensor, 0)
        try:
            with torch.no_grad():
                compiled(*inputs)
        except Exception as error:  # noqa: BLE001 - whatever it is, the model runs without
            logger.warning("the draft model's step is not compiled: %s", error)
            return self._model

        def run(*inputs: Tensor) -> Tensor:
            # It would be compiled anew for a tensor that begins elsewhere within its memory.
            logits: Tensor = compiled(*(tensor.clone() if tensor.storage_offset() else tensor for tensor in inputs))
            return logits

        return run


def _put(values: Tensor, place: Tensor) -> None:
    place.copy_(values)
