"""Stop strings over text that arrives in pieces."""

from __future__ import annotations

from collections.abc import Sequence


def _borders(pattern: str) -> list[int]:
    """For every prefix, the length of its longest proper prefix that is its suffix too (Knuth, Morris, Pratt 1977)."""
    borders = [0] * len(pattern)
    length = 0
    for index in range(1, len(pattern)):
        while length and pattern[index] != pattern[length]:
            length = borders[length - 1]
        length += pattern[index] == pattern[length]
        borders[index] = length
    return borders


class StopStrings:
    """Cuts text before the first stop string to be completed, however the text is split into pieces.

    Of several completed by one character the longest counts. Text is held back only as far as it could still turn out
    to be the beginning of a stop string. Costs a step a character and stop string.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """`stops` must not hold the empty string; `include` shows the stop string itself."""
        self._automata = [(stop, _borders(stop)) for stop in stops]
        self._matched = [0] * len(self._automata)
        self._held = ""
        self._include = include
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The text that is safe to show now. Nothing once `found` is set."""
        if self.found is not None:
            return ""
        if not self._automata:
            return text
        buffer = self._held + text
        for end in range(len(self._held), len(buffer)):
            self._step(buffer[end])
            if self.found is not None:
                self._held = ""
                cut = end + 1 if self._include else end + 1 - len(self.found)
                return buffer[:cut]
        safe = len(buffer) - max(self._matched)
        self._held = buffer[safe:]
        return buffer[:safe]

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _step(self, character: str) -> None:
        for which, (stop, borders) in enumerate(self._automata):
            length = self._matched[which]
            while length and stop[length] != character:
                length = borders[length - 1]
            length += stop[length] == character
            self._matched[which] = length
            if length == len(stop) and (self.found is None or len(stop) > len(self.found)):
                self.found = stop
