"""What a request to vLLM carries, and what is read from its outputs."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from engines.sampling.rows import SamplingRow
from engines.vllm.versions import counts_cached_anew
from protocol.messages import Sampling
from protocol.target_rounds import is_greedy

if TYPE_CHECKING:
    from vllm import SamplingParams

EXTRA = "tandem"
"""Our key in SamplingParams.extra_args."""

DRAFTS = "tandem_drafts"
"""The key for requests that the proposer may draft for: {"draft_tokens", "key": whom to report them to, "cache_salt"}.

vLLM's model runner does not receive a request's salt, hence the copy.
"""

Logprobs = dict[int, Any]
"""One position's entries: token id → vllm.logprobs.Logprob (logprob, rank)."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where one request draws: the first token's row, and what a grammar permits there (bitmask int32 [1, W]).

    `top2` and `truncate` as in engines.sampling.batch.DrawRequest; `more` is for the worker's own processor.
    """

    row: SamplingRow
    allowed: Tensor | None = None
    top2: bool = False
    truncate: int | None = None
    more: dict[str, Any] | None = None


def asked(place: Place) -> dict[str, Any]:
    """What a request carries, in a form that vLLM can serialise."""
    row = place.row
    return {
        "sampling": row.sampling.model_dump(exclude_defaults=True),
        "seed": row.seed,
        "num_prompt_tokens": row.num_prompt_tokens,
        "stops": sorted(row.stop_token_ids),
        "allowed": place.allowed.contiguous().numpy().tobytes() if place.allowed is not None else None,
        "top2": place.top2,
        "truncate": place.truncate,
        **(place.more or {}),
    }


def sampling_of(asked: dict[str, Any]) -> Sampling:
    return Sampling(**asked["sampling"])


def sampling_params(
    place: Place | None,
    *,
    max_tokens: int = 1,
    stops: Collection[int] = (),
    logprobs: int = 0,
    prompt_logprobs: int | None = None,
    stream: bool = False,
) -> SamplingParams:
    """vLLM's parameters for tokens that our processor draws; without `place` they are vLLM's own greedy ones.

    `logprobs` entries beside the drawn token's come back for each token, `prompt_logprobs` for each of the prompt's.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        temperature=0.0,
        max_tokens=max_tokens,
        stop_token_ids=sorted(stops),
        ignore_eos=True,
        detokenize=False,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
        extra_args={EXTRA: asked(place)} if place is not None else None,
    )
    if prompt_logprobs is not None:
        # By default vLLM would recompute the whole prompt to return them all; only the drafts' are wanted.
        params.skip_reading_prefix_cache = False
    return params


def drafted_params(
    sampling: Sampling,
    seed: int,
    *,
    max_tokens: int,
    stops: Collection[int],
    logprobs: int,
    draft_tokens: int,
    key: str,
    cache_salt: str | None,
) -> SamplingParams:
    """vLLM's parameters for tokens that vLLM draws itself, several a step, from drafts reported under `key`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    greedy = is_greedy(sampling)
    return SamplingParams(
        temperature=0.0 if greedy else sampling.temperature,
        top_p=1.0 if greedy else sampling.top_p,
        top_k=0 if greedy else sampling.top_k,
        seed=None if greedy else seed,
        max_tokens=max_tokens,
        stop_token_ids=sorted(stops),
        ignore_eos=True,
        detokenize=False,
        logprobs=logprobs,
        output_kind=RequestOutputKind.DELTA,
        extra_args={DRAFTS: {"draft_tokens": draft_tokens, "key": key, "cache_salt": cache_salt}},
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's outcome. `logprobs` has an entry a token; `prompt_logprobs` one for each of the prompt's.

    `cached_tokens`: of the prompt, how many were not computed again. `computed_after`: entries of `prompt_logprobs` at
    greater indices were computed for this request, the others may be memory that was never written; None: unknown for
    all. Seconds: waiting to be scheduled, and in all.
    """

    token_ids: list[int]
    logprobs: list[Logprobs]
    prompt_logprobs: list[Logprobs | None]
    cached_tokens: int
    computed_after: int | None
    queue_seconds: float
    total_seconds: float


def answer_of(output: Any, began: float) -> Answer:
    """From vLLM's RequestOutput; `began` is time.perf_counter's when the request was made."""
    (completion,) = output.outputs
    metrics = output.metrics
    waited = 0.0
    if metrics is not None and metrics.scheduled_ts and metrics.queued_ts:
        waited = max(0.0, metrics.scheduled_ts - metrics.queued_ts)
    return Answer(
        list(completion.token_ids),
        list(completion.logprobs or []),
        list(output.prompt_logprobs or []),
        output.num_cached_tokens or 0,
        _computed_after(output),
        waited,
        time.perf_counter() - began,
    )


def _computed_after(output: Any) -> int | None:
    """See Answer. A request that was preempted may go on from blocks that another one has computed meanwhile.

    vLLM then keeps the number of cached tokens that it counted before (0.32), and reports the preemption. 0.24 does
    not, but counts them anew each time. Versions that do neither are not trusted.
    """
    preemptions = getattr(output.metrics, "num_preemptions", None)
    if preemptions is None and counts_cached_anew():
        preemptions = 0
    return output.num_cached_tokens if preemptions == 0 else None
