"""Shared text: the target's context is text to the drafter, and its draft is text to the target's tokenizer.

Only the end of either is tokenised in a round. Text is cut into pieces at places where a tokenizer divides words
anyway, and what is before the last such place never changes.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from basics.prefix import shared_prefix
from draft_worker.vocabularies.speech import Speech

_SEAM = re.compile(rb"(?<=[^\s])(?= [A-Za-z0-9\x80-\xff])|(?<=[A-Za-z0-9])(?=\n[A-Za-z0-9])")
"""Tokenizers divide text here, whatever comes before and after: a word with the space before it begins."""
_SHORTEST_PIECE = 24
_LONGEST_PIECE = 512
"""Bytes. Text without a seam is cut all the same, at a whole character, so that a round never reads more again."""
_WINDOW_TOKENS = 32


class TextReading:
    """One session's context: the target's ids, their bytes, and the draft model's ids for the same text."""

    def __init__(self, target: Speech, draft: Speech) -> None:
        self._speech, self._draft = target, draft
        self._lead = draft.lead
        self.target: list[int] = []
        self.data = bytearray()
        self._ends = array("l")
        """How many bytes the first 1, 2, … of the target's tokens have."""
        self._closed: list[int] = list(self._lead)
        self._piece_ends: list[int] = []
        self._piece_reads: list[int] = []
        self._own_prompt: tuple[int, list[int]] | None = None

    def use_prompt(self, prompt_tokens: int, read: list[int]) -> None:
        """Read `read` in place of the first `prompt_tokens` tokens. To be called before the first `update`."""
        self._own_prompt = prompt_tokens, read
        self._closed = list(read)
        self._lead = self._closed[:]

    def update(self, token_ids: Sequence[int], unchanged: int, prompt_tokens: int) -> None:
        """Make it the context `token_ids`, whose first `unchanged` are as they were. O(what is new).

        A piece ends with the prompt, `prompt_tokens` tokens, so that a grammar for the answer begins with a token.
        """
        kept = min(unchanged, len(self.target))
        kept += shared_prefix(self.target, list(token_ids[kept:]), kept)
        del self.target[kept:], self._ends[kept:]
        del self.data[self._ends[-1] if kept else 0 :]
        self._reopen(len(self.data))
        for token_id in token_ids[kept:]:
            self.data += self._text_of(token_id)
            self.target.append(token_id)
            self._ends.append(len(self.data))
        self._close(self.byte_at(prompt_tokens))

    def byte_at(self, count: int) -> int:
        """Where the text of the first `count` tokens ends."""
        count = min(count, len(self._ends))
        return self._ends[count - 1] if count else 0

    def length_at(self, count: int) -> tuple[int, bool]:
        """How many of the draft model's tokens stand for the first `count` tokens, and whether exactly so many do."""
        byte = self.byte_at(count)
        if byte == 0:
            return len(self._lead), True
        place = bisect_right(self._piece_ends, byte)
        if not place:
            return len(self._lead), False
        return self._piece_reads[place - 1], self._piece_ends[place - 1] == byte

    def read(self) -> list[int] | None:
        """The whole context in the draft model's ids; None if it ends within a character that they can't spell."""
        start = self._piece_ends[-1] if self._piece_ends else 0
        whole = self._whole_characters(start)
        ids = [*self._closed, *self._encode([self._decoded(start, whole)], at_start=start == 0)[0]]
        if whole < len(self.data):
            alone = self._draft.bytes_alone
            if alone is None:
                return None
            ids += [alone[byte] for byte in self.data[whole:]]
        return ids

    def tokens_of(self, draft: bytes) -> list[int]:
        """The target's tokens for `draft` after the context; fewer or none where that is not certain.

        The end of the context is tokenised with it. Where that gives the context's own tokens again, what follows is
        the draft. Where it does not (the target wrote half a word), the draft is tokenised by itself.
        """
        start = self._window()
        if start is not None:
            text = _valid(bytes(self.data[self.byte_at(start) :]) + draft)
            tail = self.target[start:]
            ids = self._speech.encode(text)
            if ids[: len(tail)] == tail:
                return self._faithful(ids[len(tail) :], draft)
        return self._faithful(self._speech.encode(_valid(draft)), draft)

    def _faithful(self, ids: list[int], draft: bytes) -> list[int]:
        """Up to the first token that spells something else than was drafted (a normaliser at work)."""
        place = 0
        for index, token_id in enumerate(ids):
            spelled = self._speech.spell([token_id])
            if draft[place : place + len(spelled)] != spelled:
                return ids[:index]
            place += len(spelled)
        return ids

    def _text_of(self, token_id: int) -> bytes:
        if not self.target and token_id == self._speech.begin and self._draft.lead:
            return b""
        return self._speech.spell([token_id])

    def _window(self) -> int | None:
        """The last token that begins at a seam, if one near the end does."""
        last = len(self.target)
        for start in range(last - 1, max(0, last - _WINDOW_TOKENS) - 1, -1):
            if start == 0 or _SEAM.match(self.data, self.byte_at(start)):
                return start
        return None

    def _reopen(self, length: int) -> None:
        """Forget the pieces that text beyond `length` decided about."""
        kept = bisect_left(self._piece_ends, length)
        del self._piece_ends[kept:], self._piece_reads[kept:]
        del self._closed[self._piece_reads[-1] if kept else len(self._lead) :]

    def _close(self, prompt_end: int) -> None:
        """Tokenise all pieces that nothing can change any more."""
        begin = self._piece_ends[-1] if self._piece_ends else 0
        if self._own_prompt is not None and begin < prompt_end:
            # The prompt is read otherwise: its text is not part of what is tokenised.
            self._piece_ends.append(prompt_end)
            self._piece_reads.append(len(self._closed))
            begin = prompt_end
        ends = self._cuts(begin, prompt_end)
        if not ends:
            return
        starts = [begin, *ends[:-1]]
        texts = [self._decoded(start, end) for start, end in zip(starts, ends, strict=True)]
        for end, ids in zip(ends, self._encode(texts, at_start=begin == 0), strict=True):
            self._closed += ids
            self._piece_ends.append(end)
            self._piece_reads.append(len(self._closed))

    def _cuts(self, begin: int, prompt_end: int) -> list[int]:
        """Where pieces end in the text from `begin` on."""
        cuts: list[int] = []
        last = begin
        wanted = [match.start() for match in _SEAM.finditer(self.data, begin)]
        if begin < prompt_end < len(self.data) and self.data[prompt_end] & 0xC0 != 0x80:
            wanted.insert(bisect_left(wanted, prompt_end), prompt_end)
        for place in [*wanted, len(self.data)]:
            while place - last > _LONGEST_PIECE:
                last += _LONGEST_PIECE
                while self.data[last] & 0xC0 == 0x80 and last < place - 1:
                    last += 1
                cuts.append(last)
            if place < len(self.data) and (place - last >= _SHORTEST_PIECE or place == prompt_end) and place > last:
                cuts.append(place)
                last = place
        return cuts

    def _encode(self, texts: list[str], at_start: bool) -> list[list[int]]:
        """The draft model's ids of each; the first is the beginning of the whole text if `at_start` says so."""
        if not at_start or not texts or self._own_prompt is not None:
            return [self._draft.encode(texts[0])] if len(texts) == 1 else self._draft.encode_all(texts)
        rest = self._draft.encode_all(texts[1:]) if len(texts) > 1 else []
        return [self._draft.encode_start(texts[0].removeprefix(" ")), *rest]

    def _decoded(self, start: int, end: int) -> str:
        return self.data[start:end].decode(errors="replace")

    def _whole_characters(self, start: int) -> int:
        """The end of the last whole character; an end that can be none anyway counts as one."""
        return start + len(self.data) - start - _unfinished(self.data[max(start, len(self.data) - 4) :])


def stable(now: Sequence[int], before: Sequence[int], drawn: Sequence[bytes], speech: Speech) -> int:
    """How many of the tokens `now` will not change with what the drafter goes on to say.

    `now` tokenises all that was drawn, `before` all but the drafter's last token: what both say stays. So does a token
    that the drafter drew as a whole itself, of the same bytes.
    """
    kept = shared_prefix(now, list(before))
    ends = set()
    place = 0
    for spelled in drawn:
        ends.add((place, place + len(spelled)))
        place += len(spelled)
    place = len(speech.spell(now[:kept]))
    for token_id in now[kept:]:
        size = len(speech.spell([token_id]))
        if (place, place + size) not in ends:
            break
        place += size
        kept += 1
    return kept


def _valid(text: bytes) -> str:
    """Up to the first byte that is not UTF-8."""
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        return text[: error.start].decode()


def _unfinished(tail: bytes | bytearray) -> int:
    """How many bytes at the end begin a character of UTF-8 and do not end it. `tail`: the last four bytes."""
    for back in range(1, min(3, len(tail)) + 1):
        byte = tail[-back]
        if byte & 0xC0 != 0x80:
            needed = 2 if 0xC2 <= byte < 0xE0 else 3 if 0xE0 <= byte < 0xF0 else 4 if 0xF0 <= byte < 0xF5 else 0
            return back if needed > back else 0
    return 0
