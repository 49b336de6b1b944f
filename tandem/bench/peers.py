"""What people use instead, in this process: transformers' generate, plain, with an assistant model or by lookup."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from tandem.bench.errors import BenchError, RequestFailure
from tandem.bench.samples import Reply

PLAIN, ASSISTED, LOOKUP = "transformers", "transformers assistant", "transformers lookup"
LOOKUP_TOKENS = 10
"""`prompt_lookup_num_tokens`, as transformers' own documentation has it."""


class Peer:
    """One way of generating with a loaded model. One request at a time: generate() knows no others."""

    def __init__(self, model: Any, tokenizer: Any, one_at_a_time: asyncio.Lock, **extra: Any) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._turn = one_at_a_time
        self._extra = extra

    async def generate(
        self, messages: Sequence[Mapping[str, str]], *, raw: bool, max_tokens: int, temperature: float, seed: int
    ) -> Reply:
        """Raises RequestFailure."""
        stop = threading.Event()
        async with self._turn:
            work = asyncio.create_task(asyncio.to_thread(self._run, messages, raw, max_tokens, temperature, seed, stop))
            try:
                return await asyncio.shield(work)
            except asyncio.CancelledError:
                stop.set()  # a thread can't be cancelled: it ends after the token at hand
                await asyncio.wait([work])
                raise
            except (ValueError, RuntimeError, IndexError, TypeError) as error:
                raise RequestFailure(f"transformers: {type(error).__name__}: {error}"[:300], 400) from None

    def _run(
        self,
        messages: Sequence[Mapping[str, str]],
        raw: bool,
        max_tokens: int,
        temperature: float,
        seed: int,
        stop: threading.Event,
    ) -> Reply:
        import torch
        from transformers import StoppingCriteriaList

        began = time.perf_counter()
        prompt = self._prompt(messages, raw)
        ids = prompt["input_ids"]
        watch = _Watch(began)
        drawing: dict[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
        if temperature > 0:
            torch.manual_seed(seed)
            drawing = {"do_sample": True, "temperature": temperature, "top_p": 1.0, "top_k": 0}
        with torch.inference_mode():
            out = self._model.generate(
                **prompt,
                max_new_tokens=max_tokens,
                streamer=watch,
                stopping_criteria=StoppingCriteriaList([lambda input_ids, scores, **kwargs: stop.is_set()]),
                **drawing,
                **self._extra,
            )
        seconds = time.perf_counter() - began
        new = out[0, ids.shape[1] :].tolist()
        return Reply(
            text=self._tokenizer.decode(new, skip_special_tokens=True),
            tokens=len(new),
            prompt_tokens=ids.shape[1],
            finish_reason="length" if len(new) >= max_tokens else "stop",
            seconds=seconds,
            arrivals=tuple(watch.arrivals) or (seconds,),
            first_tokens=watch.first_tokens,
        )

    def _prompt(self, messages: Sequence[Mapping[str, str]], raw: bool) -> dict[str, Any]:
        if raw:
            found = self._tokenizer(messages[-1]["content"], return_tensors="pt")
        else:
            found = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        return {key: value.to(self._model.device) for key, value in found.items() if key != "token_type_ids"}


class _Watch:
    """A streamer of transformers': `put` gets the prompt first, then the new tokens of each step."""

    def __init__(self, began: float) -> None:
        self.arrivals: list[float] = []
        self.first_tokens = 1
        self._began = began
        self._prompt_seen = False

    def put(self, tokens: Any) -> None:
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        if not self.arrivals:
            self.first_tokens = int(tokens.numel())
        self.arrivals.append(time.perf_counter() - self._began)

    def end(self) -> None:
        pass


def load_peers(
    ways: Sequence[str], target: str, assistant: str | None, dtype: str, device: str, ignore_eos: bool = False
) -> dict[str, Peer]:
    """The ways by name, over one copy of the target's weights. Takes as long as loading does. Raises BenchError."""
    try:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from transformers.utils import logging
    except ImportError:
        raise BenchError("transformers is not installed: pip install -e '.[worker]'") from None
    from engines.errors import ModelError
    from engines.model_building import build_model
    from engines.models import resolve_model

    logging.disable_progress_bar()  # there is one already
    logging.set_verbosity_error()  # its assistants warn of arguments that they pass themselves
    where = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    # What Tandem's own workers load (config/workers.py): float32 on a CPU.
    numbers = ("float32" if where == "cpu" else "auto") if dtype == "auto" else dtype

    def loaded(name: str) -> tuple[Any, Any]:
        try:
            folder = resolve_model(name).folder
            model = build_model(AutoModelForCausalLM.from_pretrained, folder, dtype=numbers).to(where).eval()
            return model, AutoTokenizer.from_pretrained(folder)
        except (ModelError, OSError, ValueError, KeyError, RuntimeError) as error:
            raise BenchError(f"transformers can't load {name}: {str(error).strip()[:300]}") from None

    model, tokenizer = loaded(target)
    turn = asyncio.Lock()
    found: dict[str, Peer] = {}
    for way in ways:
        extra: dict[str, Any] = {"eos_token_id": None} if ignore_eos else {}
        if way == LOOKUP:
            extra["prompt_lookup_num_tokens"] = LOOKUP_TOKENS
        elif way == ASSISTED:
            if assistant is None:
                raise BenchError("assistant: name a model with --assistant-model")
            extra["assistant_model"] = loaded(assistant)[0]
        found[way] = Peer(model, tokenizer, turn, **extra)
    return found
