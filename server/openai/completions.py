"""POST /v1/completions."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel
from starlette.responses import Response

from server.backend import ServedModel
from server.errors import InvalidRequest
from server.gateway import Gateway, gateway_of
from server.openai import params
from server.openai.answers import Completion, CompletionChoice, CompletionLogprobs
from server.openai.body import body_of
from server.openai.completion_schema import CompletionRequest, Prompt
from server.openai.constraints import check, constraint
from server.openai.docs import documented
from server.openai.logprobs import CompletionLogprobWriter
from server.openai.origin import origin_of
from server.openai.plan import Plan, PromptJob, choices_wanted, make_plan, served
from server.openai.round_reports import RoundReports, RoundsAlone
from server.openai.serve import CompletionStream, answer
from server.text.choice import Delta
from server.text.model import TextModel

router = APIRouter()

_DEFAULT_MAX_TOKENS = 16  # OpenAI's


@router.post("/v1/completions", **documented(CompletionRequest, Completion, chunk=Completion, streams=True))
async def completions(
    request: Request,
    gateway: Annotated[Gateway, Depends(gateway_of)],
    body: Annotated[CompletionRequest, Depends(body_of(CompletionRequest))],
) -> Response:
    """Continues a prompt, or each of several, whole or as server-sent events."""
    model = served(gateway, body.model)
    text = await gateway.texts.get(model.tokenizer)
    prompts = _prompts(body.prompt)
    wanted = choices_wanted(body, len(prompts), gateway.config)
    if body.echo and body.logprobs is not None:
        raise params.not_yet("echo", "with 'logprobs' it would need those of the prompt")
    jobs = await gateway.texts.run(lambda: [_job(gateway, body, prompt, model, text) for prompt in prompts])
    # One request has one grammar: where it begins is no matter of its form.
    await check(gateway, jobs[0].constraint)
    echoes = [""] * len(prompts)
    if body.echo:
        echoes = await gateway.texts.run(lambda: [_echo(text, prompt) for prompt in prompts])
    origin = origin_of(request)
    plan = make_plan(gateway, body, prefix="cmpl-", model=model, text=text, jobs=jobs, origin=origin)
    by_choice = [echo for echo in echoes for _ in range(wanted)]
    return await answer(
        gateway,
        request,
        plan,
        lambda: CompletionChunks(plan, by_choice),
        lambda deltas: whole(plan, by_choice, deltas),
    )


def _prompts(prompt: Prompt) -> list[str | list[int]]:
    """Each of the prompts: a string, or token ids."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise InvalidRequest("'prompt' must not be empty", param="prompt")
    if isinstance(prompt[0], int):
        return [[token_id for token_id in prompt if isinstance(token_id, int)]]
    return [item for item in prompt if not isinstance(item, int)]


def _job(
    gateway: Gateway, body: CompletionRequest, prompt: str | list[int], model: ServedModel, text: TextModel
) -> PromptJob:
    if isinstance(prompt, str):
        token_ids = text.tokenizer.encode(prompt, add_special_tokens=body.add_special_tokens is not False)
    else:
        token_ids = prompt
        vocabulary = model.target.vocabulary
        if vocabulary is not None and any(token_id >= vocabulary.logits_size for token_id in prompt):
            raise InvalidRequest("'prompt' holds a token id that the model does not have", param="prompt")
    requested = params.requested_tokens(body)
    if requested is None:
        requested = max(1, min(_DEFAULT_MAX_TOKENS, model.target.context_length - len(token_ids)))
    return PromptJob(
        prompt=token_ids,
        max_tokens=params.output_tokens(requested, None, len(token_ids), model.target, gateway.config, "prompt"),
        logprobs=params.logprobs(body.logprobs, model.target, "logprobs"),
        constraint=constraint(None, body.structured_outputs, len(token_ids), model.target),
        prefix=token_ids,
    )


def _echo(text: TextModel, prompt: str | list[int]) -> str:
    return prompt if isinstance(prompt, str) else text.decode(prompt, skip_special_tokens=True)


def _answer(plan: Plan, choices: list[CompletionChoice]) -> Completion:
    return Completion(
        id=plan.id,
        object="text_completion",
        created=plan.created,
        model=plan.name,
        choices=choices,
        system_fingerprint=plan.fingerprint,
    )


def _logprobs(plan: Plan, writer: CompletionLogprobWriter, deltas: list[Delta]) -> CompletionLogprobs | None:
    if plan.choices[0].request.logprobs is None:
        return None
    token_ids = [token_id for delta in deltas for token_id in delta.token_ids]
    return writer.write(token_ids, [entry for delta in deltas for entry in delta.logprobs or ()])


def whole(plan: Plan, echoes: list[str], deltas: list[list[Delta]]) -> BaseModel:
    choices = []
    for index, (echo, own) in enumerate(zip(echoes, deltas, strict=True)):
        writer = CompletionLogprobWriter(plan.text.tokenizer, len(echo))
        choices.append(
            CompletionChoice(
                index=index,
                text=echo + "".join(delta.text for delta in own),
                logprobs=_logprobs(plan, writer, own),
                finish_reason=own[-1].finish_reason,
                stop_reason=own[-1].stop_reason,
            )
        )
    completion = _answer(plan, choices)
    completion.usage = plan.usage()
    plan.describe(completion)
    return completion


class CompletionChunks(CompletionStream):
    """The stream: text as it comes, the finish reason with the last of it, the usage."""

    def __init__(self, plan: Plan, echoes: list[str]) -> None:
        self._plan = plan
        self._echoes = echoes
        self._writers = [CompletionLogprobWriter(plan.text.tokenizer, len(echo)) for echo in echoes]
        self._reports = [RoundReports() for _ in echoes]

    def opening(self) -> list[BaseModel]:
        return [self._chunk(index, echo) for index, echo in enumerate(self._echoes) if echo]

    def delta(self, delta: Delta, last: bool) -> list[BaseModel]:
        reports = self._reports[delta.index]
        if delta.attributed is not None:
            reports.made(delta.attributed)
        if not delta.text and not delta.logprobs and delta.finish_reason is None:
            return []
        chunk = self._chunk(delta.index, delta.text, delta)
        if delta.attributed is not None:
            chunk.tandem = RoundsAlone(rounds=reports.take(delta.attributed.spans))
        if last and not self._plan.include_usage:
            self._plan.describe(chunk)
        return [chunk]

    def closing(self) -> list[BaseModel]:
        if not self._plan.include_usage:
            return []
        chunk = _answer(self._plan, [])
        chunk.usage = self._plan.usage()
        self._plan.describe(chunk)
        return [chunk]

    def _chunk(self, index: int, text: str, delta: Delta | None = None) -> Completion:
        plan = self._plan
        choice = CompletionChoice(index=index, text=text, logprobs=None, finish_reason=None)
        if delta is not None:
            choice.logprobs = _logprobs(plan, self._writers[index], [delta])
            choice.finish_reason, choice.stop_reason = delta.finish_reason, delta.stop_reason
        chunk = _answer(plan, [choice])
        if plan.continuous_usage:
            chunk.usage = plan.usage()
        elif plan.include_usage:
            chunk.usage = None
        return chunk
