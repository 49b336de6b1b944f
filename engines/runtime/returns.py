"""Whether a pass should wait for sessions that are about to come back, so that they share it.

A session that has its verdict is away for as long as its next draft takes, then comes with the next verification. A
pass that begins without it makes it wait for that whole pass. So sessions that share a target fall into groups that
take turns, and each group's round takes the passes of all. Where most of a pass is the same however many rows are in
it (reading the weights), it pays to wait a moment and to serve all by one pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from engines.runtime.pass_seconds import PassSeconds

_SMOOTHING = 0.3
_LATE = 1.5
"""So many mean deviations beyond its usual time a session is expected at the latest."""
_SLACK = 0.0005
"""Seconds beyond that."""
_ROUNDS = 4
"""Rounds to come for which those that share a pass are taken to go on sharing them."""
_LEAST = 0.0002
"""Seconds that waiting has to save for each session that waits."""
_MOST_KNOWN = 4096


@dataclass(slots=True)
class _Away:
    """Of a session: when its last call ended (None: one is here), how long it usually is away, give or take
    `deviation`, and the tokens it comes with."""

    since: float | None = None
    usually: float | None = None
    deviation: float = 0.0
    tokens: float = 1.0

    @property
    def due(self) -> float | None:
        """When it is there at the latest, as far as can be told; None while nothing is known, or it is here."""
        if self.since is None or self.usually is None:
            return None
        return self.since + self.usually + _LATE * self.deviation + _SLACK


class Returns:
    """Sessions by their owner's serial. All times in seconds, on one clock; on one thread."""

    def __init__(self, passes: PassSeconds) -> None:
        self._passes = passes
        self._sessions: dict[int, _Away] = {}
        self._waiting_since: float | None = None

    def came(self, owner: int, at: float) -> None:
        """A call of the session was submitted."""
        session = self._sessions.get(owner)
        if session is None:
            if len(self._sessions) >= _MOST_KNOWN:
                del self._sessions[next(iter(self._sessions))]
            session = self._sessions[owner] = _Away()
        if session.since is not None:
            away = max(0.0, at - session.since)
            if session.usually is None:
                session.usually, session.deviation = away, away / 2
            else:
                session.deviation = _smoothed(session.deviation, abs(away - session.usually))
                session.usually = _smoothed(session.usually, away)
        session.since = None

    def left(self, owner: int, at: float, tokens: int) -> None:
        """Its call has ended, which fed so many tokens beyond what was read of the prompt."""
        if (session := self._sessions.get(owner)) is not None:
            session.since = at
            session.tokens = _smoothed(session.tokens, float(tokens))

    def forget(self, owner: int) -> None:
        """The session is gone."""
        self._sessions.pop(owner, None)

    def passed(self) -> None:
        """A pass has begun: the next one may wait again."""
        self._waiting_since = None

    def wait(self, now: float, present: int) -> float:
        """Seconds until the first session comes that a pass over `present` calls should wait for; 0: it should not.

        With k more a pass takes k·tokens·per_token longer, and `present` calls wait for that and for the last of the k;
        these are spared a pass of their own, all but what their tokens take: `fixed`. And afterwards all come back
        together: their rounds take a pass and what they are `away`, those of two groups that take turns two passes.
        """
        if not self._passes.known:
            return 0.0
        fixed, per_token = self._passes.fixed, self._passes.per_token
        self._waiting_since = now if self._waiting_since is None else self._waiting_since
        left = self._waiting_since + fixed - now  # however estimates turn out, a pass waits no longer than it takes
        expected = sorted(
            (due - now, due - session.since, session.tokens)
            for session in self._sessions.values()
            if session.since is not None and (due := session.due) is not None and now < due <= now + left
        )
        tokens, longest, best, first = 0.0, 0.0, _LEAST * present, 0.0
        for count, (wait, away, more) in enumerate(expected, start=1):
            tokens, longest = tokens + more, max(longest, away)
            saved = count * (fixed - wait) - present * (wait + per_token * tokens)
            saved += _ROUNDS * (count + present) * max(0.0, fixed - longest)
            if saved > best:
                best, first = saved, expected[0][0]
        return first


def _smoothed(old: float, new: float) -> float:
    return old + _SMOOTHING * (new - old)
