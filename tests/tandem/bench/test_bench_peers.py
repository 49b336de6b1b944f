"""transformers' own generate, as the benchmark runs it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tandem.bench.peers import LOOKUP, PLAIN, load_peers
from tandem.bench.samples import Reply
from testing.tiny_models import make_tiny_model


@pytest.mark.parametrize("way", [PLAIN, LOOKUP])
def test_an_end_of_text_is_ignored_where_tandem_ignores_it(way: str, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny", layers=1, hidden=32)

    def reply(ignore_eos: bool) -> Reply:
        peer = load_peers([way], str(model), None, "float32", "cpu", ignore_eos)[way]
        messages = [{"role": "user", "content": "Hi"}]
        return asyncio.run(peer.generate(messages, raw=False, max_tokens=12, temperature=0.0, seed=1))

    whole = reply(ignore_eos=True)
    assert (whole.tokens, whole.finish_reason) == (12, "length")
    every = list(range(json.loads((model / "config.json").read_text())["vocab_size"]))
    settings = model / "generation_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"eos_token_id": every}))
    assert reply(ignore_eos=False).finish_reason == "stop"
    assert reply(ignore_eos=True).text == whole.text
