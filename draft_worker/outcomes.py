"""What may come of a verification, and the drafts that are prepared for it (docs/lookahead.md)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from protocol.messages import TopK

if TYPE_CHECKING:  # lookup alone can do without torch
    from torch import Tensor

Place: TypeAlias = "list[int] | Tensor | None"
"""What is known of the place of a drafted token: what else may stand there, the likeliest first; or the logits that it
was drawn from, float32 [1, V], of which that is made when there is time."""

BONUS = -1
"""Stands for the place after the whole draft."""
MOST_CHAINED = 4
"""Tokens that are drawn at once: a call that comes meanwhile waits for them."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The target's own token after `place` accepted ones (BONUS: all) is the likeliest (rank 0), second likeliest, …

    `tokens` are to be prepared for that; `in_turn`: by drawing in a row, outcome by outcome.
    """

    place: int
    rank: int
    tokens: int = 0
    in_turn: bool = False


@dataclass(slots=True)
class Branch:
    """A chain that leaves a draft after its first `at` tokens, and is to have `depth` tokens.

    `tokens` begin with one that was not drawn for the branch: what it leaves the draft with. `q` has an entry for each
    of the others, if distributions were asked for, and so has `places`; they are appended to before the tokens are.
    """

    at: int
    tokens: list[int]
    depth: int
    stopped: bool = False
    done: bool = False
    keeps: bool = False
    """Whether `places` is to have the logits."""
    q: list[TopK] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)

    def keep(self, logits: Tensor) -> None:
        """Those that its next token is drawn from, float32 [1, V]: a copy, since a pass's tensor has all its rows."""
        self.places.append(logits.clone() if self.keeps else None)

    def add(self, token_id: int, stops: frozenset[int]) -> None:
        self.stopped = token_id in stops
        self.tokens.append(token_id)
        self.done = self.stopped or len(self.tokens) >= self.depth


@dataclass(slots=True)
class Ahead:
    """What to prepare while `drafted` is verified, and what has been prepared by now: an engine fills in the rest.

    Drafts for the outcomes of `guesses`, with their q if `wants_q`, by passes for which there is `time`: of so many
    rows, none of which should be under way when the session's next call comes. With `chains` the engine may draw up to
    MOST_CHAINED tokens in a row at once, for which there is `time_to_draw`, for up to `abreast` outcomes together.
    `places` is what drawing has found out of those of the draft; with `known` enough to guess from, so that only what
    follows the draft has to be computed.
    The logits of `most_kept` tokens may be kept, those of the branches that come first.
    `likely` are, for each place, the tokens that were guessed, at most `most_guesses`, none where nothing was looked
    for; `everywhere`: look at all places, whatever is prepared. `passes` are what passes took: rows and seconds;
    `draws` what drawing in a row took: tokens and seconds.
    """

    drafted: list[int]
    guesses: list[Guess]
    most_guesses: int
    wants_q: bool = False
    everywhere: bool = False
    chains: bool = False
    abreast: int = 1
    time: Callable[[int], bool] = lambda rows: True
    time_to_draw: Callable[[int], bool] = lambda tokens: True
    places: Sequence[Place] = ()
    known: bool = False
    most_kept: int = 0
    likely: list[list[int]] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    passes: list[tuple[int, float]] = field(default_factory=list)
    draws: list[tuple[int, float]] = field(default_factory=list)
    _begun: int = 0

    @property
    def alone(self) -> bool:
        """Whether each outcome grows by itself, the first after the whole draft, and no place has to be looked at."""
        looks = self.everywhere and not self.known
        by_itself = len(self.guesses) == 1 or all(guess.in_turn for guess in self.guesses)
        return by_itself and self.guesses[0].place == BONUS and not looks

    def begin(self, room: int, stops: frozenset[int]) -> None:
        """Make branches of the guesses at places that `likely` has an entry for, each once. `room`: tokens that the
        sequence may still get."""
        branches = []
        for guess in self.guesses:
            place = len(self.drafted) if guess.place == BONUS else guess.place
            if not self._begun <= place < len(self.likely) or (guess.place != BONUS and place >= len(self.drafted)):
                continue  # begun already, or not known yet, or the draft is shorter than asked
            depth = 1 + min(guess.tokens, room - place - 1)
            if guess.rank < len(self.likely[place]) and depth > 1:
                token_id = self.likely[place][guess.rank]
                if token_id not in stops:
                    branches.append(Branch(place, [token_id], depth))
        for branch in branches:
            branch.keeps = self.most_kept >= branch.depth - 1
            self.most_kept -= branch.depth - 1
        self.branches = [*self.branches, *branches]
        self._begun = len(self.likely)

    def forget(self) -> None:
        """Let go of the logits, once nothing is appended any more."""
        for branch in self.branches:
            branch.places = [place if isinstance(place, list) else None for place in branch.places]

    def following(self, came: list[int]) -> tuple[Branch, int] | None:
        """The branch that says what came after the context, and how many of its tokens that were; None without one."""
        for branch in self.branches:
            own = len(came) - branch.at
            if own < 1 or came[: branch.at] != self.drafted[: branch.at]:
                continue
            if own <= len(branch.tokens) and branch.tokens[:own] == came[branch.at :]:
                return branch, own
        return None
