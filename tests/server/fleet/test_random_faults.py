"""Random faults at random times: the text is always the target's."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing.fakes.worker import FakeWorker
from testing.patience import until
from tests.server.fleet.harness import PLAIN, collect, expected, fleet_over, request, tokens
from tests.server.rounds.test_draft_side import LIES_OF_DRAFTS
from tests.server.rounds.test_target_side import LIES_OF_TARGETS, PLAIN_FAULTS

NONE: list[Any] = [None] * 6
DRAFT_FAULTS = st.lists(st.sampled_from([*NONE, *LIES_OF_DRAFTS.values()]), max_size=8)
SHARED = [LIES_OF_TARGETS[name] for name in LIES_OF_TARGETS if name in PLAIN_FAULTS or name == "session evicted"]
TARGET_FAULTS = st.lists(st.sampled_from([*NONE, *SHARED]), max_size=5)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    drafts=DRAFT_FAULTS,
    targets=st.lists(TARGET_FAULTS, min_size=1, max_size=2),
    wrong=st.sampled_from([0.0, 0.3, 1.0]),
    draft_tokens=st.integers(1, 8),
    num_candidates=st.integers(1, 3),
    adaptive=st.booleans(),
    speculative=st.booleans(),
    max_tokens=st.integers(1, 50),
    streams=st.integers(1, 3),
)
def test_random_faults_never_change_the_text(
    drafts: list[Any],
    targets: list[list[Any]],
    wrong: float,
    draft_tokens: int,
    num_candidates: int,
    adaptive: bool,
    speculative: bool,
    max_tokens: int,
    streams: int,
) -> None:
    async def main() -> None:
        workers = [FakeWorker("target") for _ in targets]
        for worker, faults in zip(workers, targets, strict=True):
            worker.faults.extend(faults)
        draft = FakeWorker("draft", wrong=wrong)
        draft.faults.extend(drafts)
        async with fleet_over(workers, [draft], draft_timeout_seconds=0.05) as fleet:
            asked = [
                request(
                    max_tokens,
                    prompt=[stream + 1] * 10,
                    draft_tokens=draft_tokens,
                    num_candidates=num_candidates,
                    adaptive=adaptive,
                )
                for stream in range(streams)
            ]
            if not speculative:
                asked = [replace(one, speculation=PLAIN) for one in asked]
            results = await asyncio.gather(*(collect(fleet, one) for one in asked))
            for one, rounds in zip(asked, results, strict=True):
                assert tokens(rounds) == expected(max_tokens, one.prompt)
                assert all(r.num_accepted <= r.num_drafted for r in rounds)
            await until(lambda: not any(worker.sessions for worker in workers))

    asyncio.run(main())
