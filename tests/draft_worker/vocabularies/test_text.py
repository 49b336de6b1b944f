"""Random tokenizers, random Unicode: the drafter reads the text that there is, and drafts are the target's tokens."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draft_worker.vocabularies.sample import SAMPLE
from draft_worker.vocabularies.shared_ids import IdMap, IdReading
from draft_worker.vocabularies.shared_text import TextReading, stable
from draft_worker.vocabularies.speech import Speech
from testing.vocabularies import llama_like, qwen_like, tokenizer_info

CORPORA = {
    "english": [SAMPLE, "the quick brown fox and the lazy dog were friends for many happy years together " * 3],
    "code": ["def f(x):\n    return [y for y in x if y]\n\n\nclass A:\n    pass\n" * 3, "x = {'a': 1}\n"],
    "other": ["日本語のテキスト、東京の空。 привет мир, как дела? être où naïveté 😀👍🏽", "مرحبا بالعالم " * 3],
}
KINDS = {"qwen": qwen_like, "llama": llama_like}
LANGUAGES = [(kind, corpus) for kind in KINDS for corpus in CORPORA]
TEXT = st.lists(
    st.one_of(
        st.characters(codec="utf-8"),
        st.sampled_from(list(" \n\t  abcdeéxyz.,'0123456789日本語😀\u0301\u200d")),
        st.sampled_from([" the", " friends", "return", "\n\n", "<|im_end|>", "</s>", "<s>", "  "]),
    ),
    max_size=60,
).map("".join)


@cache
def speech(kind: str, corpus: str) -> Speech:
    tokenizer = KINDS[kind](CORPORA[corpus], 520)
    if kind == "llama":
        return Speech(tokenizer_info(tokenizer, "<s>", "</s>"))
    return Speech(tokenizer_info(tokenizer, None, "<|im_end|>"))


@st.composite
def written(draw: st.DrawFn, by: Speech) -> list[int]:
    """What a model might write: text in its usual tokens, tokens at random among them."""
    ids: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        ids += by.encode(draw(TEXT))
        ids += draw(st.lists(st.integers(0, len(by.spelled) - 1), max_size=4))
    return ids


def replaced(data: bytes) -> str:
    return data.decode(errors="replace")


@pytest.mark.parametrize("target", LANGUAGES, ids="-".join)
@pytest.mark.parametrize("draft", [("qwen", "code"), ("llama", "other")], ids="-".join)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_what_the_drafter_reads_is_the_text_at_every_step_and_after_every_change(
    target: tuple[str, str], draft: tuple[str, str], data: st.DataObject
) -> None:
    theirs, ours = speech(*target), speech(*draft)
    ids = data.draw(written(theirs))
    prompt = data.draw(st.integers(0, len(ids)))
    reading = TextReading(theirs, ours)
    by_ids = IdReading(IdMap(theirs, ours, len(ours.spelled)), ours.lead, theirs.begin)
    for _ in range(data.draw(st.integers(1, 5))):
        kept = data.draw(st.integers(0, len(ids)))
        changed = ids[:kept] + (data.draw(written(theirs)) if data.draw(st.booleans()) else ids[kept:])
        known = data.draw(st.integers(0, kept)) if reading.target else 0
        ids = changed
        reading.update(ids, min(known, len(reading.target)), min(prompt, len(ids)))
        by_ids.update(ids, min(known, len(by_ids.target)))
        spoken = theirs.spell(ids[1:] if ids[:1] == [theirs.begin] and ours.lead else ids)
        assert bytes(reading.data) == spoken
        fresh = TextReading(theirs, ours)
        fresh.update(ids, 0, min(prompt, len(ids)))
        assert reading.read() == fresh.read()
        read = reading.read()
        assert read is not None
        assert read[: len(ours.lead)] == ours.lead
        assert same_text(ours.spell(read[len(ours.lead) :]), spoken)
        # The end of a turn is one, however it is named.
        ends = (ours.spelled[ours.stop or 0], theirs.spelled[theirs.stop or 0])
        assert same_text(ours.spell(by_ids.read[len(ours.lead) :]).replace(*ends), spoken.replace(*ends))


def same_text(found: bytes, spoken: bytes) -> bool:
    """But for the space before a text, U+2581, which SentencePiece takes for one, and bytes that are no UTF-8, which
    are read as U+FFFD, piece by piece."""
    found, spoken = (text.replace("\u2581".encode(), b" ") for text in (found, spoken))
    try:
        spoken.decode()
    except UnicodeDecodeError:
        plain = str.maketrans("", "", "\ufffd")
        rest = [line.translate(plain) for line in (replaced(found), replaced(spoken))]
        return rest[0].lstrip(" ") == rest[1].lstrip(" ") or bool(len(rest[0]) <= len(rest[1]))
    return found.lstrip(b" ") == spoken.lstrip(b" ")


@pytest.mark.parametrize("target", LANGUAGES, ids="-".join)
@pytest.mark.parametrize("draft", LANGUAGES, ids="-".join)
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_a_draft_in_the_targets_tokens_says_what_was_drawn(
    target: tuple[str, str], draft: tuple[str, str], data: st.DataObject
) -> None:
    theirs, ours = speech(*target), speech(*draft)
    reading = TextReading(theirs, ours)
    ids = data.draw(written(theirs))
    reading.update(ids, 0, 0)
    drawn = ours.encode(data.draw(TEXT)) + data.draw(st.lists(st.integers(0, len(ours.spelled) - 1), max_size=3))
    spoken = [ours.spell([token_id]) for token_id in drawn]
    now = reading.tokens_of(b"".join(spoken))
    assert all(0 <= token_id < len(theirs.spelled) for token_id in now)
    assert b"".join(spoken).startswith(theirs.spell(now))
    kept = stable(now, reading.tokens_of(b"".join(spoken[:-1])), spoken, theirs)
    assert 0 <= kept <= len(now)


@pytest.mark.parametrize("target", LANGUAGES, ids="-".join)
def test_a_drafter_that_says_what_the_target_would_is_right_everywhere(target: tuple[str, str]) -> None:
    """The text of one is drafted by another after every token; what is drafted is the target's own tokens."""
    theirs = speech(*target)
    text = SAMPLE + " ".join(CORPORA["other"])
    ids = theirs.encode(text)
    for draft in LANGUAGES:
        ours = speech(*draft)
        reading = TextReading(theirs, ours)
        right = total = 0
        for count in range(1, len(ids) - 12, 7):
            if "\ufffd" in replaced(theirs.spell(ids[:count])):
                continue  # within a character: the rest of it is no text to tokenise here
            reading.update(ids[:count], len(reading.target), 3)
            rest = theirs.spell(ids[count : count + 12])
            drawn = [ours.spell([token_id]) for token_id in ours.encode(rest.decode(errors="ignore"))]
            now = reading.tokens_of(b"".join(drawn))
            kept = now[: stable(now, reading.tokens_of(b"".join(drawn[:-1])), drawn, theirs)]
            right += kept == ids[count : count + len(kept)] and bool(kept)
            total += 1
        assert right >= 0.85 * total, (draft, right, total)


def test_no_more_is_tokenised_than_the_end() -> None:
    theirs, ours = speech("llama", "english"), speech("qwen", "code")
    asked: list[str] = []

    class Counting(Speech):
        def encode(self, text: str) -> list[int]:
            asked.append(text)
            return super().encode(text)

        def encode_all(self, texts: list[str]) -> list[list[int]]:  # type: ignore[override]
            asked.extend(texts)
            return super().encode_all(texts)

    counting = Counting.__new__(Counting)
    counting.__dict__.update(ours.__dict__)
    for text in (SAMPLE * 20, "本" * 9_000):
        ids = theirs.encode(text)
        reading = TextReading(theirs, counting)
        reading.update(ids[:-20], 0, 10)
        reading.read()
        for count in range(len(ids) - 19, len(ids) + 1):
            asked.clear()
            reading.update(ids[:count], count - 1, 10)
            reading.read()
            assert sum(map(len, asked)) < 1_200


@pytest.mark.parametrize("draft", LANGUAGES, ids="-".join)
def test_a_text_is_read_in_the_tokens_that_the_drafters_own_tokenizer_has_for_it(draft: tuple[str, str]) -> None:
    """From its beginning, where some put a space, over every seam."""
    theirs, ours = speech("qwen", "other"), speech(*draft)
    for text in (SAMPLE, "the quick brown fox", "x"):
        reading = TextReading(theirs, ours)
        reading.update(theirs.encode(text), 0, 0)
        assert reading.read() == KINDS[draft[0]](CORPORA[draft[1]], 520).encode(text, add_special_tokens=True).ids


@pytest.mark.parametrize("draft", LANGUAGES, ids="-".join)
def test_a_context_that_ends_within_a_character_is_read_to_its_last_byte(draft: tuple[str, str]) -> None:
    theirs, ours = speech("qwen", "code"), speech(*draft)
    letters = theirs.ids_by_bytes
    for text in ("the 鬱", "x 🦀"):
        ids = [letters[bytes([byte])] for byte in text.encode()]
        for cut in range(1, len(text[-1].encode())):
            reading = TextReading(theirs, ours)
            reading.update(ids[:-cut], 0, 0)
            read = reading.read()
            assert read is not None
            spelled = ours.spell(read[len(ours.lead) :]).replace("\u2581".encode(), b" ").removeprefix(b" ")
            assert spelled == text.encode()[:-cut]


def test_a_character_that_the_targets_tokenizer_takes_for_another_ends_the_draft() -> None:
    reading = TextReading(speech("llama", "english"), speech("qwen", "english"))
    said = "the friends"
    found = reading.tokens_of(f"{said}\u2581and".encode())
    assert speech("llama", "english").spell(found) == said.encode()


def test_a_context_that_goes_on_otherwise_is_read_as_if_it_always_had() -> None:
    """Cut back to anywhere, the end of a piece among others: what follows may belong to its last word."""
    theirs, ours = speech("qwen", "code"), speech("llama", "english")
    ids = [theirs.ids_by_bytes[bytes([byte])] for byte in SAMPLE[:400].encode()]
    more = theirs.encode("s and others")
    for kept in range(1, len(ids)):
        reading, fresh = TextReading(theirs, ours), TextReading(theirs, ours)
        reading.update(ids, 0, 0)
        reading.update([*ids[:kept], *more], kept, 0)
        fresh.update([*ids[:kept], *more], 0, 0)
        assert reading.read() == fresh.read(), kept
