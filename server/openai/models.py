"""GET /v1/models and what vLLM adds for tokens: POST /tokenize, POST /detokenize."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.responses import Response

from server.backend import ServedModel
from server.errors import InvalidRequest
from server.gateway import Gateway, gateway_of
from server.openai.answers import Detokenized, ModelCard, ModelList, Tokenized
from server.openai.body import body_of
from server.openai.completion_schema import DetokenizeRequest, TokenizeRequest
from server.openai.docs import documented
from server.openai.plan import served
from server.openai.prompt import call_form, render_chat
from server.text.model import TextModel

router = APIRouter()

Served = Annotated[Gateway, Depends(gateway_of)]


def _card(gateway: Gateway, model: ServedModel, name: str) -> ModelCard:
    form = call_form(model.tokenizer, gateway.config.tool_call_parser)
    return ModelCard(
        id=name,
        created=model.created,
        root=model.target.id,
        max_model_len=model.target.context_length,
        tool_call_format=form.name if form is not None else None,
        drafters=[drafter for drafter in model.drafter.names if drafter in model.drafter.capabilities],
    )


def _json(model: ModelCard | ModelList | Tokenized | Detokenized) -> Response:
    return Response(model.model_dump_json(), media_type="application/json")


@router.head("/v1/models", include_in_schema=False)
@router.get("/v1/models", **documented(None, ModelList))
async def list_models(gateway: Served) -> Response:
    """The served model, under each of its names."""
    model = served(gateway, None)
    return _json(ModelList(data=[_card(gateway, model, name) for name in model.names]))


@router.head("/v1/models/{model_id:path}", include_in_schema=False)
@router.get("/v1/models/{model_id:path}", **documented(None, ModelCard))
async def retrieve_model(gateway: Served, model_id: str) -> Response:
    """One model; ids may hold slashes."""
    return _json(_card(gateway, served(gateway, model_id), model_id))


@router.post("/tokenize", **documented(TokenizeRequest, Tokenized))
async def tokenize(gateway: Served, body: Annotated[TokenizeRequest, Depends(body_of(TokenizeRequest))]) -> Response:
    """Token ids of a prompt, or of messages under the chat template."""
    model = served(gateway, body.model)
    text = await gateway.texts.get(model.tokenizer)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequest("exactly one of 'prompt' and 'messages' is needed", param="prompt")
    run = gateway.texts.run if body.messages is None else gateway.texts.run_chat
    tokens = await run(lambda: _tokens(gateway, body, text))
    strings = [text.tokenizer.token(token_id) or "" for token_id in tokens] if body.return_token_strs else None
    return _json(
        Tokenized(count=len(tokens), max_model_len=model.target.context_length, tokens=tokens, token_strs=strings)
    )


def _tokens(gateway: Gateway, body: TokenizeRequest, text: TextModel) -> list[int]:
    if body.messages is None:
        return text.tokenizer.encode(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)
    rendered = render_chat(
        text,
        body.messages,
        gateway.config,
        tools=body.tools,
        variables=body.chat_template_kwargs,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=bool(body.continue_final_message),
    )
    return text.tokenizer.encode(rendered, add_special_tokens=bool(body.add_special_tokens))


@router.post("/detokenize", **documented(DetokenizeRequest, Detokenized))
async def detokenize(
    gateway: Served, body: Annotated[DetokenizeRequest, Depends(body_of(DetokenizeRequest))]
) -> Response:
    """The text of token ids, special tokens included."""
    model = served(gateway, body.model)
    text = await gateway.texts.get(model.tokenizer)
    if any(token_id >= model.tokenizer.vocabulary.logits_size for token_id in body.tokens):
        raise InvalidRequest("'tokens' holds an id that the model does not have", param="tokens")
    prompt = await gateway.texts.run(lambda: text.decode(body.tokens, skip_special_tokens=False))
    return _json(Detokenized(prompt=prompt))
