"""What is left of each row of logits after processing: the distribution a token is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from engines.sampling import mass
from engines.sampling.ranking import first, lowest_best


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one form. `rows` int64 [r] are their indices in the distribution.

    `logits` float32 [r, K], −inf for tokens that were removed; `token_ids` int64 [r, K] says which tokens these are,
    distinct and ordered by logit (highest first, lowest id on ties); None: K is the whole vocabulary in its own order.
    """

    rows: Tensor
    logits: Tensor
    token_ids: Tensor | None

    @property
    def only_token(self) -> Tensor | None:
        """The one token that each row has, as greedy ones do, int64 [r]; None: there are more."""
        if self.token_ids is None or self.token_ids.shape[-1] != 1:
            return None
        return self.token_ids[:, 0]

    def select(self, index: Tensor, rows: Tensor) -> Part:
        ids = None if self.token_ids is None else self.token_ids[index]
        return Part(rows, self.logits[index], ids)


@dataclass(frozen=True, slots=True)
class Distribution:
    """R distributions over a vocabulary, dense or sparse as each row's parameters make it.

    Rows with the whole vocabulary left, rows cut to a few tokens, and greedy ones (one token) sit in parts of their
    own, so that no row pays for the form of another, and its results are the same bits whatever is beside it.
    """

    num_rows: int
    vocabulary: int
    parts: tuple[Part, ...]

    @property
    def device(self) -> torch.device:
        return self.parts[0].logits.device if self.parts else torch.device("cpu")

    @property
    def is_certain(self) -> bool:
        """Whether every row has a single token: no noise changes what is drawn."""
        return all(part.only_token is not None for part in self.parts)

    def by_row(self, value: Callable[[Part], Tensor]) -> Tensor:
        """Put together, in row order, what `value` gives for the rows of each part."""
        if len(self.parts) == 1:
            found = value(self.parts[0])
            return found if self.num_rows == 1 else found[torch.argsort(self.parts[0].rows)]
        values = [value(part) for part in self.parts]
        if not values:
            return torch.empty(0, dtype=torch.int64)
        order = torch.argsort(torch.cat([part.rows for part in self.parts]))
        return torch.cat(values)[order]

    def _homes(self) -> tuple[Tensor, Tensor]:
        """For each row the number of its part and its index there, int64 [R] both."""
        home = torch.empty(self.num_rows, dtype=torch.int64, device=self.device)
        place = torch.empty_like(home)
        for number, part in enumerate(self.parts):
            home[part.rows] = number
            place[part.rows] = torch.arange(len(part.rows), device=self.device)
        return home, place

    def rows(self, index: Tensor) -> Distribution:
        """The rows of `index` (int64 [r], in any order, repeats allowed) as a distribution of their own."""
        home, place = self._homes()
        parts = []
        for number, part in enumerate(self.parts):
            chosen = torch.nonzero(home[index] == number).flatten()
            if len(chosen):
                parts.append(part.select(place[index[chosen]], chosen))
        return Distribution(len(index), self.vocabulary, tuple(parts))

    def log_normaliser(self, part: Part) -> Tensor:
        """log Σ exp(logits) of each row of a part, float64 [r]."""
        bits = mass.scale_bits(self.vocabulary)
        peak = part.logits.amax(dim=-1)
        return mass.log_total(mass.total(part.logits, peak, bits), peak, bits)

    def part_logprobs(self, part: Part) -> Tensor:
        """Log-probabilities of a part's own entries, float64 [r, K]."""
        return part.logits.to(torch.float64) - self.log_normaliser(part)[:, None]

    def logprobs(self) -> Tensor:
        """Log-probabilities over the whole vocabulary, float64 [R, V], −inf for tokens that were removed."""

        def dense(part: Part) -> Tensor:
            values = self.part_logprobs(part)
            if part.token_ids is None:
                return values
            empty = values.new_full((len(part.rows), self.vocabulary), -torch.inf)
            return empty.scatter_(-1, part.token_ids, values)

        return self.by_row(dense)

    def logprob_of(self, token_ids: Tensor, rows: Tensor | None = None) -> Tensor:
        """log p of token `token_ids[i]` in row `rows[i]` (None: row i), int64 [M] → float64 [M].

        −inf if the token was removed or is outside the vocabulary.
        """
        rows = torch.arange(self.num_rows, device=self.device) if rows is None else rows
        home, place = self._homes()
        found = torch.full(rows.shape, -torch.inf, dtype=torch.float64, device=self.device)
        for number, part in enumerate(self.parts):
            chosen = torch.nonzero(home[rows] == number).flatten()
            index, wanted = place[rows[chosen]], token_ids[chosen]
            if part.token_ids is None:
                inside = (wanted >= 0) & (wanted < self.vocabulary)
                logit = part.logits[index, wanted.clamp(0, self.vocabulary - 1)].masked_fill(~inside, -torch.inf)
            else:
                logit = part.logits[index].masked_fill(part.token_ids[index] != wanted[:, None], -torch.inf).amax(-1)
            found[chosen] = logit.to(torch.float64) - self.log_normaliser(part)[index]
        return found

    def probability_of(self, token_ids: Tensor, rows: Tensor | None = None) -> Tensor:
        """p of token `token_ids[i]` in row `rows[i]` (None: row i), int64 [M] → float64 [M]."""
        return self.logprob_of(token_ids, rows).exp()

    def top1(self) -> Tensor:
        """The most likely token of each row, the lowest id on ties: int64 [R]."""
        return self.by_row(_likeliest)

    def truncate(self, k: int) -> Distribution:
        """Each row cut to its k most likely tokens (lowest ids on ties), the rest renormalised by the cut itself."""
        k = min(k, self.vocabulary)
        return Distribution(self.num_rows, self.vocabulary, tuple(_first(part, k) for part in self.parts))

    def entries(self) -> list[tuple[list[int], list[float]]]:
        """For each row the ids that are left and their log-probabilities, which sum to one (the wire's TopK)."""
        found: list[tuple[list[int], list[float]]] = [([], [])] * self.num_rows
        for part in self.parts:
            logprobs = self.part_logprobs(part)
            ids = part.token_ids
            if ids is None:
                ids = torch.arange(self.vocabulary, device=self.device).expand_as(logprobs)
            for row, kept, row_ids, values in zip(
                part.rows.tolist(), (logprobs > -torch.inf).cpu(), ids.cpu(), logprobs.cpu(), strict=True
            ):
                found[row] = (row_ids[kept].tolist(), values[kept].tolist())
        return found


def _likeliest(part: Part) -> Tensor:
    only = part.only_token
    return lowest_best(part.logits, part.token_ids) if only is None else only


def _first(part: Part, k: int) -> Part:
    """A part's rows cut to their first k tokens in order."""
    if part.token_ids is not None:
        return Part(part.rows, part.logits[:, :k], part.token_ids[:, :k])
    return Part(part.rows, *first(part.logits, k))
