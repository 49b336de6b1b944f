"""The prefix hash against its definition in docs/wire.md."""

from __future__ import annotations

from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.hashing import PrefixHashes

IDS = st.lists(st.integers(0, 2**32 - 1), max_size=12)


def defined(salt: str, token_ids: list[int]) -> str:
    digest = blake2b(salt.encode(), digest_size=8).digest()
    for token_id in token_ids:
        digest = blake2b(digest + token_id.to_bytes(4, "little"), digest_size=8).digest()
    return digest.hex()


@given(salt=st.text(max_size=5), token_ids=IDS)
def test_every_prefix_has_the_defined_hash(salt: str, token_ids: list[int]) -> None:
    hashes = PrefixHashes(salt)
    hashes.extend(token_ids)
    assert [hashes.at(n) for n in range(len(hashes) + 1)] == [
        defined(salt, token_ids[:n]) for n in range(len(token_ids) + 1)
    ]


@pytest.mark.parametrize("token_ids", [[], [5], [5, 6]])
def test_each_salt_has_hashes_of_its_own(token_ids: list[int]) -> None:
    """Otherwise a session of one salt could be taken for one of another."""
    found = set()
    for salt in (None, "a", "b", "ä"):
        hashes = PrefixHashes(salt)
        hashes.extend(token_ids)
        found.add(hashes.at(len(token_ids)))
    assert len(found) == 4
    assert PrefixHashes(None).at(0) == PrefixHashes("").at(0)


@given(token_ids=IDS, length=st.integers(0, 12), more=IDS)
def test_what_is_cut_off_is_forgotten(token_ids: list[int], length: int, more: list[int]) -> None:
    hashes = PrefixHashes()
    hashes.extend(token_ids)
    hashes.truncate(length)
    hashes.extend(more)
    assert hashes.at(len(hashes)) == defined("", [*token_ids[:length], *more])
    assert len(hashes) == len(token_ids[:length]) + len(more)
