"""The token list of a request, and what workers check of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.hashing import PrefixHashes
from server.rounds.sequence import TokenSequence


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=300), st.data())
def test_contexts_are_what_a_worker_can_check(ids: list[int], data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, len(ids)))
    start = data.draw(st.integers(0, len(ids)))
    sequence = TokenSequence(ids[:cut], "salt")
    sequence.append(ids[cut:])
    hashes = PrefixHashes("salt")
    hashes.extend(ids)
    context = sequence.context(start)
    assert (context.start, context.token_ids, context.prefix_hash) == (start, ids[start:], hashes.at(start))
