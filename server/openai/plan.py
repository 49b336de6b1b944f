"""What a checked request amounts to: choices ready to run, and what their answer will say about them."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from config.gateway import GatewayConfig
from server.backend import GenerationRequest, OwnPrompt, ServedModel, Speculation
from server.errors import InvalidRequest, ModelNotFound
from server.gateway import Gateway
from server.openai import params
from server.openai.answers import (
    CompletionTokensDetails,
    Metrics,
    PromptTokensDetails,
    SpeculativeDecoding,
    Tandem,
    Usage,
)
from server.openai.constraints import Constraint
from server.openai.options import GenerationOptions
from server.openai.origin import Origin
from server.text.choice import Choice
from server.text.model import TextModel


@dataclass(frozen=True, slots=True)
class PromptJob:
    """One prompt, and what of its request depends on the endpoint. `prefix` is the text the output goes on from."""

    prompt: list[int]
    max_tokens: int
    logprobs: int | None
    constraint: Constraint | None = None
    prediction: list[int] | None = None
    own_prompt: OwnPrompt | None = None
    prefix: Sequence[int] = ()


class Described(Protocol):
    """An answer, or the chunk that ends one."""

    metrics: Metrics | None
    tandem: Tandem | None


@dataclass(frozen=True, slots=True)
class Plan:
    """`include_usage`: a last chunk holds it; `continuous_usage`: every chunk does."""

    id: str
    created: int
    model: ServedModel
    text: TextModel
    seed: int
    speculation: Speculation
    prompt_tokens: int
    choices: list[Choice]
    stream: bool
    include_usage: bool
    continuous_usage: bool
    metrics: str

    @property
    def name(self) -> str:
        return self.model.names[0]

    @property
    def fingerprint(self) -> str:
        return self.model.target.fingerprint

    def usage(self) -> Usage:
        completion = sum(choice.counts.completion_tokens for choice in self.choices)
        accepted = sum(choice.counts.accepted for choice in self.choices)
        drafted = sum(choice.counts.drafted for choice in self.choices)
        # A prompt counts once, however many choices it has: its first choice reports what was held of it.
        firsts = [choice.counts.cached_prompt_tokens for choice in self.choices if choice.request.choice_index == 0]
        cached = [tokens for tokens in firsts if tokens is not None]
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=completion,
            total_tokens=self.prompt_tokens + completion,
            completion_tokens_details=CompletionTokensDetails(
                accepted_prediction_tokens=accepted, rejected_prediction_tokens=drafted - accepted
            ),
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(cached)) if cached else None,
        )

    def describe(self, answer: Described) -> None:
        """Say in an answer how its text was made. Without speculation it has no `metrics`, rather than null."""
        metrics = self.speculative_metrics()
        if metrics is not None:
            answer.metrics = metrics
        answer.tandem = self.tandem()

    def tandem(self) -> Tandem:
        lossless = all(choice.counts.lossless for choice in self.choices)
        return Tandem(strategy=self.speculation.strategy, lossless=lossless, seed=self.seed)

    def speculative_metrics(self) -> Metrics | None:
        """Of all choices together, in the order of the choices where it goes step by step. Null without speculation."""
        if self.metrics == "none" or not self.speculation.enabled:
            return None
        drafted = [count for choice in self.choices for count in choice.counts.step_drafted]
        accepted = [count for choice in self.choices for count in choice.counts.step_accepted]
        most = max([self.speculation.draft_tokens, *drafted])
        steps = len(drafted)
        numbers = SpeculativeDecoding(
            mean_acceptance_length=1 + sum(accepted) / steps if steps else 1.0,
            draft_acceptance_rate=sum(accepted) / sum(drafted) if steps else 0.0,
            acceptance_histogram=[accepted.count(length) for length in range(most + 1)],
            num_spec_steps=steps,
            num_accepted_draft_tokens=sum(accepted),
            num_draft_tokens=sum(drafted),
            num_spec_tokens=most,
            accepted_by_drafter=dict(
                sum((Counter(choice.counts.accepted_by_drafter) for choice in self.choices), Counter())
            ),
        )
        if self.metrics == "detailed":
            numbers = numbers.model_copy(update={"per_step_accepted": accepted, "per_step_drafted": drafted})
        return Metrics(speculative_decoding=numbers)


def served(gateway: Gateway, name: str | None) -> ServedModel:
    """The model behind `name` (null: the one there is). Raises NoModelYet, or ModelNotFound."""
    model = gateway.backend.model()
    if name is not None and name not in model.names:
        raise ModelNotFound(f"The model '{name[:200]}' does not exist.", param="model")
    return model


def choices_wanted(options: GenerationOptions, prompts: int, config: GatewayConfig) -> int:
    """n. Raises InvalidRequest beyond this server's limit."""
    wanted = options.n or 1
    if wanted * prompts > config.max_choices:
        param = "prompt" if prompts > config.max_choices else "n"
        raise InvalidRequest(f"this server gives at most {config.max_choices} choices a request", param=param)
    return wanted


def make_plan(
    gateway: Gateway,
    options: GenerationOptions,
    *,
    prefix: str,
    model: ServedModel,
    text: TextModel,
    jobs: Sequence[PromptJob],
    origin: Origin,
    keep_special_tokens: bool = False,
) -> Plan:
    """`prefix` begins the answer's id; `keep_special_tokens`: whatever the request says, since something reads them.

    Raises ApiError for what the workers cannot honour.
    """
    config = gateway.config
    wanted = choices_wanted(options, len(jobs), config)
    for job in jobs:
        if (options.min_tokens or 0) > job.max_tokens:
            raise InvalidRequest(f"'min_tokens' must not exceed max_tokens ({job.max_tokens})", param="min_tokens")
    seed = options.seed if options.seed is not None else params.draw_seed()
    sampling = params.sampling(options, seed, model.target)
    speculation = params.speculation(options.speculative, model, config)
    stop = params.stop_strings(options.stop, config)
    skip_special = options.skip_special_tokens is not False and not keep_special_tokens
    log_decisions = options.speculative is not None and bool(options.speculative.log_decisions)
    answer_id = f"{prefix}{uuid.uuid4().hex}"
    choices: list[Choice] = []
    for job in jobs:
        for choice_index in range(wanted):
            request = GenerationRequest(
                request_id=f"{answer_id}.{len(choices)}",
                prompt=job.prompt,
                max_tokens=job.max_tokens,
                sampling=sampling,
                choice_index=choice_index,
                speculation=speculation,
                logprobs=job.logprobs,
                grammar=job.constraint.grammar if job.constraint is not None else None,
                prediction=job.prediction,
                own_prompt=job.own_prompt,
                log_decisions=log_decisions,
                cache_salt=options.cache_salt,
                caller=origin.caller,
                drawn_seed=options.seed is None,
                traceparent=origin.traceparent,
            )
            detokenizer = text.detokenizer(skip_special)
            detokenizer.prime(job.prefix)
            choices.append(
                Choice(
                    len(choices),
                    request,
                    detokenizer,
                    stop=stop,
                    include_stop=bool(options.include_stop_str_in_output),
                )
            )
    stream_options = options.stream_options
    return Plan(
        id=answer_id,
        created=int(time.time()),
        model=model,
        text=text,
        seed=seed,
        speculation=speculation,
        prompt_tokens=sum(len(job.prompt) for job in jobs),
        choices=choices,
        stream=bool(options.stream),
        include_usage=bool(stream_options and stream_options.include_usage),
        continuous_usage=bool(stream_options and stream_options.continuous_usage_stats),
        metrics=config.speculation_metrics,
    )
