"""From a chat request to the plan of its answer, and to how that answer will be read."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from server.backend import ServedModel
from server.errors import InvalidRequest, NotSupported
from server.gateway import Gateway
from server.openai import params
from server.openai.chat_schema import ChatCompletionRequest, as_sent
from server.openai.constraints import check, constraint, for_chat
from server.openai.draft_prompt import own_prompt
from server.openai.origin import Origin
from server.openai.plan import Plan, PromptJob, make_plan
from server.openai.prompt import call_form, render_chat
from server.openai.tool_choice import choice_as_json
from server.reading import reasoning
from server.reading.together import AnswerReading
from server.reading.tools.choice import ToolError, ToolUse, resolve
from server.reading.tools.formats import CallFormat
from server.text.model import TextModel

logger = logging.getLogger(__name__)


async def plan_chat(
    gateway: Gateway, body: ChatCompletionRequest, model: ServedModel, *, prefix: str, origin: Origin
) -> tuple[Plan, AnswerReading]:
    """Every step between a checked body and generation (server.openai.serve.answer), for all endpoints that chat.

    `prefix` begins the answer's id. Raises ApiError for what cannot be honoured.
    """
    text = await gateway.texts.get(model.tokenizer)
    job, reading = await gateway.texts.run_chat(lambda: _prepare(gateway, body, model, text))
    job = replace(job, constraint=await check(gateway, job.constraint))
    plan = make_plan(
        gateway,
        body,
        prefix=prefix,
        model=model,
        text=text,
        jobs=[job],
        origin=origin,
        keep_special_tokens=reading.needs_special_tokens(text.tokenizer.special_ids),
    )
    return plan, reading


def _prepare(
    gateway: Gateway, body: ChatCompletionRequest, model: ServedModel, text: TextModel
) -> tuple[PromptJob, AnswerReading]:
    """Slow for long prompts: to be called in a thread. Raises ApiError for what cannot be honoured."""
    use = _tool_use(body)
    calls = _call_format(gateway, use, text)
    rendered = render_chat(
        text,
        body.messages,
        gateway.config,
        tools=body.tools if use.mode != "none" else None,
        variables=_template_variables(body, text),
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )
    prompt = text.tokenizer.encode(rendered, add_special_tokens=False)
    template = text.template(tools=bool(body.tools) and use.mode != "none")
    thought = reasoning.choose(template.source if template else "", gateway.config.reasoning_parser)
    start = reasoning.start_of(thought, rendered) if thought is not None else "outside"
    reading = AnswerReading(use, calls, thought, start)
    if body.top_logprobs and not body.logprobs:
        raise InvalidRequest("'top_logprobs' needs 'logprobs' to be true", param="top_logprobs")
    max_tokens = params.output_tokens(
        params.requested_tokens(body),
        gateway.config.default_max_tokens,
        len(prompt),
        model.target,
        gateway.config,
        "messages",
    )
    demanded = constraint(body.response_format, body.structured_outputs, len(prompt), model.target)
    job = PromptJob(
        prompt=prompt,
        max_tokens=max_tokens,
        logprobs=params.logprobs((body.top_logprobs or 0) if body.logprobs else None, model.target, "logprobs"),
        constraint=for_chat(demanded, reading, len(prompt), text.tokenizer.special_ids, model.target),
        prediction=_prediction(body, model, text),
        own_prompt=own_prompt(body, model, gateway.config) if use.mode == "none" or not body.tools else None,
        # A continued message goes on from its own text: spaces at the seam are those of the whole.
        prefix=prompt if body.continue_final_message else (),
    )
    return job, reading


def _tool_use(body: ChatCompletionRequest) -> ToolUse:
    tools = [as_sent(tool) for tool in body.tools or ()]
    try:
        return resolve(tools, choice_as_json(body.tool_choice), body.parallel_tool_calls)
    except ToolError as error:
        raise InvalidRequest(error.message, param=error.param) from None


def _call_format(gateway: Gateway, use: ToolUse, text: TextModel) -> CallFormat | None:
    """How the model writes calls; None if it may not make any. Raises NotSupported if none are to be read."""
    if use.mode == "none":
        return None
    form = call_form(text.info, gateway.config.tool_call_parser)
    if form is None:
        raise NotSupported(
            "'tools' is not supported: this server is set up not to read tool calls (the setting tool_call_parser)",
            param="tools",
        )
    return form


def _template_variables(body: ChatCompletionRequest, text: TextModel) -> dict[str, Any]:
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        template = text.template(tools=bool(body.tools))
        if template is None or not template.mentions("reasoning_effort"):
            logger.info("reasoning_effort is ignored: this model's chat template does not read it")
        else:
            variables.setdefault("reasoning_effort", body.reasoning_effort)
    return variables


def _prediction(body: ChatCompletionRequest, model: ServedModel, text: TextModel) -> list[int] | None:
    """Ignored while no draft worker is up: it could change the speed alone."""
    if body.prediction is None:
        return None
    able = model.drafter.capabilities.get(body.speculative.draft_model if body.speculative is not None else None)
    if able is not None and not able.prediction:
        raise params.not_yet("prediction", "the draft worker does not draft from predictions")
    content = body.prediction.content
    joined = content if isinstance(content, str) else "".join(part.text for part in content)
    return text.tokenizer.encode(joined, add_special_tokens=False)
