"""The workers' half of a gateway, played from a script, and clients for the whole."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAI
from prometheus_client.registry import Collector
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from protocol.messages import Grammar, Sampling, TokenLogprob
from protocol.worker_info import Capabilities, ModelInfo, TokenizerInfo, Vocabulary
from server.backend import DrafterState, GenerationRequest, GrammarFault, Round, RoundTimings, ServedModel
from server.errors import NoModelYet
from testing.patience import PATIENCE

TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
MODEL = "tiny/model"


def build_tokenizer() -> Tokenizer:
    """Byte-level, as GPT-2's and Qwen's are; every byte is in it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|end|>", "<|user|>", "<|assistant|>", "<|system|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the quick brown fox jumps over the lazy dog, the end of the story"] * 4, trainer)
    return tokenizer


TOKENIZER = build_tokenizer()
END = TOKENIZER.token_to_id("<|end|>")
SAMPLING_FIELDS = sorted(set(Sampling.model_fields) - {"seed"})


def served_model(**changes: Any) -> ServedModel:
    """`changes` to the target's capabilities, or to the ServedModel where it has such a field.

    `lookup` drafts where no drafter is named; `of_small` changes what the drafter `small` can do.
    """
    of_small = changes.pop("of_small", {})
    size = TOKENIZER.get_vocab_size()
    vocabulary = Vocabulary(fingerprint="v", size=size, logits_size=size)
    own = {name: changes.pop(name) for name in list(changes) if name in ServedModel.__dataclass_fields__}
    context_length = changes.pop("context_length", 512)
    capabilities = Capabilities(
        **{
            "rounds": ["gateway"],
            "strategies": ["deterministic", "threshold", "probabilistic"],
            "max_candidates": 4,
            "max_draft_tokens": 16,
            "max_logprobs": 5,
            "sampling": SAMPLING_FIELDS,
            "grammar_types": [],
            **changes,
        }
    )
    info = TokenizerInfo(
        model_id=MODEL,
        tokenizer_json=TOKENIZER.to_str(),
        chat_template=TEMPLATE,
        bos_token=None,
        eos_token="<|end|>",
        special_tokens={"eos_token": "<|end|>"},
        stop_token_ids=[END],
        vocabulary=vocabulary,
        context_length=context_length,
    )
    target = ModelInfo(
        role="target",
        id=MODEL,
        engine="fake",
        dtype=None,
        device="cpu",
        vocabulary=vocabulary,
        special_token_ids=[END],
        stop_token_ids=[END],
        context_length=context_length,
        max_sessions=8,
        fingerprint="fp-1",
        capabilities=capabilities,
        step_seconds=[],
    )
    drafter = DrafterState(
        default="lookup",
        names=("lookup", "small"),
        draft_tokens=5,
        capabilities={
            **dict.fromkeys((None, "lookup"), capabilities.model_copy(update={"q": True})),
            "small": capabilities.model_copy(update={"q": True, **of_small}),
        },
    )
    model = ServedModel(names=(MODEL, "alias"), tokenizer=info, target=target, drafter=drafter, created=1_700_000_000)
    return replace(model, **own)


@dataclass
class ScriptedBackend:
    """Plays token ids. `script` makes a request's rounds, or raises; the default says `text` and ends."""

    text: str = "the quick brown fox"
    tokens_a_round: int = 3
    served: ServedModel | None = field(default_factory=served_model)
    script: Callable[[GenerationRequest], AsyncGenerator[Round, None]] | None = None
    requests: list[GenerationRequest] = field(default_factory=list)
    checked: list[Grammar] = field(default_factory=list)
    fault: str | None = None
    fault_place: str = ""
    closed: list[str] = field(default_factory=list)
    gone: threading.Event = field(default_factory=threading.Event)
    watched: Sequence[Collector] = ()

    async def rounds(self, request: GenerationRequest) -> AsyncGenerator[Round, None]:
        self.requests.append(request)
        finished = False
        try:
            async for round in (self.script or self.say)(request):
                yield round
            finished = True
        finally:
            self.closed.append(request.request_id)
            if not finished:
                self.gone.set()

    async def say(self, request: GenerationRequest) -> AsyncGenerator[Round, None]:
        token_ids = [*TOKENIZER.encode(self.text).ids, END]
        for round in split(token_ids[: request.max_tokens], self.tokens_a_round, request.logprobs):
            yield round

    async def grammar_fault(self, grammar: Grammar) -> GrammarFault | None:
        self.checked.append(grammar)
        return GrammarFault(self.fault, self.fault_place) if self.fault is not None else None

    def model(self) -> ServedModel:
        if self.served is None:
            raise NoModelYet("no target yet")
        return self.served

    def ready(self) -> tuple[bool, str]:
        return self.served is not None, "as scripted"

    def pairs(self) -> Iterable[str]:
        return [f"{MODEL}+lookup"]

    def collectors(self) -> Iterable[Collector]:
        return self.watched

    async def start(self) -> None:
        await asyncio.sleep(0)

    async def close(self) -> None:
        await asyncio.sleep(0)


def make_round(token_ids: list[int], **changes: Any) -> Round:
    defaults = Round(
        token_ids=token_ids,
        num_drafted=4,
        num_accepted=len(token_ids) - 1,
        logprobs=None,
        stop_reason=None,
        stop_token_id=None,
        lossless=True,
        source="lookup",
        num_candidates=1,
        timings=RoundTimings(draft=1.0, verify_forward=2.0, total=4.0),
        target=MODEL,
        draft="lookup",
        speculative=True,
    )
    return replace(defaults, **changes)


def split(token_ids: list[int], size: int, logprobs: int | None = None) -> list[Round]:
    """Rounds of `size` tokens: `size` - 1 accepted drafts and one of the target's own."""
    rounds = []
    for start in range(0, len(token_ids), size):
        part = token_ids[start : start + size]
        last = start + size >= len(token_ids)
        ended = last and part[-1] == END
        entries = None
        if logprobs is not None:
            top = [(token_id, -0.5 - token_id / 100) for token_id in range(40, 40 + logprobs)]
            entries = [TokenLogprob(logprob=-0.25, rank=1, top=top) for _ in part]
        rounds.append(
            make_round(
                part,
                logprobs=entries,
                stop_reason="stop_token" if ended else "length" if last else None,
                stop_token_id=END if ended else None,
            )
        )
    return rounds


@dataclass
class Running:
    """A gateway that listens, and clients for it."""

    url: str
    backend: ScriptedBackend

    http: httpx.Client
    connections: Collection[Any] = ()

    @cached_property
    def sdk(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, http_client=self.http)

    @property
    def async_sdk(self) -> AsyncOpenAI:
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=PATIENCE)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return self.http.post(self.url + path, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.http.get(self.url + path, **options)

    def chat(self, **changes: Any) -> httpx.Response:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **changes}
        return self.post("/v1/chat/completions", body)


Start = Callable[..., Running]


def prompt_of(running: Running) -> str:
    """The prompt of the request that came last, as text."""
    return TOKENIZER.decode(running.backend.requests[-1].prompt, skip_special_tokens=False)


def error(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    """The error of an answer that must be one, of OpenAI's shape."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    found: dict[str, Any] = body["error"]
    return found
