"""From what a request says to what the workers are asked for; what they cannot honour is refused by name."""

from __future__ import annotations

import secrets

from basics.names import AUTO, MAX_CANDIDATES, MAX_DRAFT_TOKENS
from config.gateway import GatewayConfig
from protocol.messages import MAX_TOKENS_PER_MESSAGE, Sampling
from protocol.worker_info import ModelInfo
from server.backend import ServedModel, Speculation
from server.errors import ContextLengthExceeded, InvalidRequest, NotSupported
from server.openai.options import GenerationOptions, SpeculativeOptions

_DEFAULT_DEPTH = 8
_DEFAULT_THRESHOLD = 0.1
# Fields of Sampling that a request sets under the same name.
_SAMPLING_FIELDS = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
)


def not_yet(param: str, what: str) -> NotSupported:
    return NotSupported(f"'{param}' is not yet supported: {what}", param=param)


def draw_seed() -> int:
    """For requests that name none."""
    return secrets.randbits(63)


def sampling(options: GenerationOptions, seed: int, target: ModelInfo) -> Sampling:
    """Raises InvalidRequest, or NotSupported for a parameter the target does not honour."""
    given = {name: value for name in _SAMPLING_FIELDS if (value := getattr(options, name)) is not None}
    if given.get("top_k") == -1:
        given["top_k"] = 0
    if given.get("top_p") == 0:  # the mass of nothing but the likeliest token
        del given["top_p"]
        given["temperature"] = 0.0
    rows = target.vocabulary.logits_size if target.vocabulary else 2**31
    for key in given.get("logit_bias", ()):
        if not (key.isascii() and key.isdecimal() and len(key) < 11 and int(key) < rows):
            raise InvalidRequest("the keys of 'logit_bias' must be token ids of the model", param="logit_bias")
    if len({int(key) for key in given.get("logit_bias", ())}) < len(given.get("logit_bias", ())):
        raise InvalidRequest("'logit_bias' must name a token once", param="logit_bias")
    for token_id in given.get("stop_token_ids", ()):
        if token_id >= rows:
            raise InvalidRequest("'stop_token_ids' must be token ids of the model", param="stop_token_ids")
    result = Sampling(**given, seed=seed)
    neutral = Sampling(seed=seed)
    for name in given:
        if name not in target.capabilities.sampling and getattr(result, name) != getattr(neutral, name):
            raise not_yet(name, "the target does not honour it")
    return result


def stop_strings(stop: str | list[str] | None, config: GatewayConfig) -> list[str]:
    """An empty one stops nothing: editors send it for fields left blank. Raises InvalidRequest."""
    stops = [string for string in ([stop] if isinstance(stop, str) else stop or ()) if string]
    if len(stops) > config.max_stop_strings:
        raise InvalidRequest(f"'stop' may hold at most {config.max_stop_strings} strings", param="stop")
    if any(len(string) > config.max_stop_string_chars for string in stops):
        raise InvalidRequest(f"a stop string may have at most {config.max_stop_string_chars} characters", param="stop")
    return stops


def requested_tokens(options: GenerationOptions) -> int | None:
    """max_completion_tokens, or its older name."""
    return options.max_tokens if options.max_completion_tokens is None else options.max_completion_tokens


def output_tokens(
    requested: int | None, default: int | None, prompt_tokens: int, target: ModelInfo, config: GatewayConfig, param: str
) -> int:
    """How many tokens may be generated; `default` null: what the context leaves. `param` names the prompt's field.

    Raises InvalidRequest for an empty prompt, ContextLengthExceeded where prompt and output do not fit.
    """
    if prompt_tokens == 0:
        raise InvalidRequest(f"'{param}' must not be empty", param=param)
    context = min(target.context_length, MAX_TOKENS_PER_MESSAGE)  # beyond it no worker is told of a text
    if config.max_prompt_tokens is not None and prompt_tokens > config.max_prompt_tokens:
        raise ContextLengthExceeded(
            f"this server takes prompts of at most {config.max_prompt_tokens} tokens; yours has {prompt_tokens}",
            param=param,
        )
    left = context - prompt_tokens
    if left < 1 or (requested is not None and requested > left):
        asked = f" and {requested} for the completion" if requested is not None else ""
        raise ContextLengthExceeded(
            f"this model's maximum context length is {context} tokens; "
            f"you asked for {prompt_tokens} in the prompt{asked}",
            param=param,
        )
    return requested if requested is not None else min(default or left, left)


def speculation(options: SpeculativeOptions | None, model: ServedModel, config: GatewayConfig) -> Speculation:
    """Raises InvalidRequest if the block contradicts itself, NotSupported for what these workers can't do."""
    block = options or SpeculativeOptions()
    enabled = block.enabled is not False
    target, drafter = model.target.capabilities, model.drafter
    able = drafter.capabilities.get(block.draft_model)
    if block.draft_tokens is not None and (block.max_speculation_depth or MAX_DRAFT_TOKENS) < block.draft_tokens:
        raise InvalidRequest(
            "'speculative.draft_tokens' must not exceed 'speculative.max_speculation_depth'",
            param="speculative.draft_tokens",
        )
    most = min([target.max_draft_tokens, *([able.max_draft_tokens] if able is not None else [])])
    for name in ("draft_tokens", "max_speculation_depth"):
        if (getattr(block, name) or 0) > most:
            raise not_yet(f"speculative.{name}", f"these workers take at most {most}")
    if block.draft_model is not None and block.draft_model not in drafter.names:
        known = ", ".join(drafter.names) or "none"
        raise InvalidRequest(
            f"there is no drafter of that name; known: {known}", param="speculative.draft_model", code="model_not_found"
        )
    strategy = block.strategy or target.default_strategy
    facts = target.facts(strategy)
    if facts is None:
        raise not_yet("speculative.strategy", f"the target knows {', '.join(target.strategies)}")
    if facts.needs_q and enabled and able is not None and not able.q:
        raise not_yet("speculative.strategy", "the draft worker does not send its distribution")
    candidates = block.num_candidates or 1
    most_candidates = min(target.max_candidates, able.max_candidates if able is not None else MAX_CANDIDATES)
    if candidates > most_candidates:
        raise not_yet("speculative.num_candidates", f"these workers take at most {most_candidates}")
    if candidates > facts.max_candidates:
        raise NotSupported(
            f"'speculative.num_candidates' above {facts.max_candidates} would not be lossless with the strategy "
            f"'{strategy}'",
            param="speculative.num_candidates",
        )
    if block.log_decisions and not config.log_content:
        raise InvalidRequest(
            "'speculative.log_decisions' is switched off by this server's setting log_content",
            param="speculative.log_decisions",
        )
    draft_tokens = block.draft_tokens or min(drafter.draft_tokens, block.max_speculation_depth or most, most)
    # A worker that chooses its drafter chooses how long a draft is, too.
    named = block.draft_model or config.draft_model
    depth = MAX_DRAFT_TOKENS if named in (None, AUTO) and able is not None and able.auto else _DEFAULT_DEPTH
    adaptive = block.adaptive_speculation if block.adaptive_speculation is not None else config.adaptive_speculation
    return Speculation(
        enabled=enabled,
        draft_tokens=draft_tokens,
        draft_model=block.draft_model,
        num_candidates=candidates,
        candidate_temperature=block.candidate_temperature,
        candidate_top_p=block.candidate_top_p,
        strategy=strategy,
        acceptance_threshold=_DEFAULT_THRESHOLD if block.acceptance_threshold is None else block.acceptance_threshold,
        max_speculation_depth=block.max_speculation_depth or max(min(depth, most), draft_tokens),
        adaptive=adaptive,
    )


def logprobs(wanted: int | None, target: ModelInfo, param: str) -> int | None:
    """How many alternatives a token; null: no logprobs at all."""
    most = target.capabilities.max_logprobs
    if wanted is not None and (most == 0 or wanted > most):
        raise not_yet(param, f"the target gives at most {most}" if most else "the target gives none")
    return wanted
