"""What fits the OpenAPI pages, and what nearly does, sent to all three services: answers fit too, and none is a 5xx."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.result import Ok

from protocol.hashing import PrefixHashes
from testing.patience import PATIENCE
from testing.stacks import Services
from tests.real.conftest import TINY_VOCABULARY

# By operation and mode. Thousands were sent by hand: see `send`.
EXAMPLES = 12
MOST_TOKENS = 3
MESSAGES = [{"role": "user", "content": "Tell me about the sea."}]
load_all_checks()
# The schema can't say which ids a vocabulary has or what fits a context, so what fits the schema may be refused.
NOT_CHECKED: list[Any] = [CHECKS.get_one("positive_data_acceptance")]
# What is wrong with one item of a batch is said in its place in the answer, which is a 200.
NOT_CHECKED_IN_BATCHES: list[Any] = [*NOT_CHECKED, CHECKS.get_one("negative_data_rejection")]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize("service", ["gateway", "target", "lookup", "model"])
def test_what_comes_back_fits_the_schema(tiny: Services, service: str, mode: GenerationMode) -> None:
    url = {"gateway": tiny.gateway, "target": tiny.target, **tiny.drafters}[service].url
    assert send(url, mode, EXAMPLES) > EXAMPLES


def send(url: str, mode: GenerationMode, examples: int) -> int:
    """Send `examples` cases to each operation of the service; how many there were. Raises on the first wrong answer."""
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    models = httpx.get(f"{url}/v1/models", trust_env=False, timeout=PATIENCE)
    model = models.json()["data"][0]["id"] if models.status_code == 200 else None  # workers have no such page
    sent = 0
    for result in schema.get_all_operations():
        assert isinstance(result, Ok)
        operation = result.ok()

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(mode))
        def one(case: Any) -> None:
            nonlocal sent
            sent += 1
            _cap(case.body)
            if mode == GenerationMode.POSITIVE and sent % 2:
                case.body = _with_integers(case.body)
                for item in _items(case.body):
                    _make_meaningful(item)
                if model is not None and isinstance(case.body, dict):
                    case.body["model"] = model
                    case.body.update({"messages": MESSAGES} if case.body.get("messages") else {})
            excluded = NOT_CHECKED_IN_BATCHES if case.path.endswith("/batch") else NOT_CHECKED
            case.call_and_validate(excluded_checks=excluded, timeout=PATIENCE)

        if (
            mode == GenerationMode.POSITIVE or operation.method.upper() == "POST"
        ):  # the others take nothing to get wrong
            one()
    return sent


def _cap(body: Any) -> None:
    """Few tokens each, so that many can be sent. What is no number stays what it is."""
    if not isinstance(body, dict):
        return
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of"):
        if isinstance(body.get(name), int) and body[name] > MOST_TOKENS:
            body[name] = MOST_TOKENS
    if {"messages", "prompt"} & body.keys() and body.get("max_completion_tokens") is None:
        body.setdefault("max_tokens", MOST_TOKENS)
    if "input" in body and body.get("max_output_tokens") is None:
        body["max_output_tokens"] = MOST_TOKENS


def _items(body: Any) -> list[dict[str, Any]]:
    """The requests for tokens in a message to a worker."""
    items = body.get("items", [body]) if isinstance(body, dict) else []
    return [item for item in items if isinstance(item, dict) and "context" in item]


def _make_meaningful(request: dict[str, Any]) -> None:
    """What the schema can't say and drawn values never meet: a true hash, ids that exist, lengths that agree."""
    context = request["context"]
    ids = _known(context["token_ids"])[:200] or [TINY_VOCABULARY - 1]
    salt = request.get("cache_salt")
    request["context"] = {"start": 0, "token_ids": ids, "prefix_hash": PrefixHashes(salt).at(0)}
    request["num_prompt_tokens"] = min(request["num_prompt_tokens"], len(ids))
    request["deadline_ms"] = 240_000
    sampling = request["sampling"]
    sampling["logit_bias"] = {str(index): bias for index, bias in enumerate(sampling.get("logit_bias", {}).values())}
    sampling["stop_token_ids"] = _known(sampling.get("stop_token_ids", []))
    for candidate in request.get("candidates", []):
        candidate.update(token_ids=_known(candidate["token_ids"]), logprobs=None, q=None)
    if request.get("prediction"):
        request["prediction"]["token_ids"] = _known(request["prediction"]["token_ids"])
    request.pop("grammar", None)
    request.pop("draft_model", None)


def _with_integers(value: Any) -> Any:
    """1.0 is an integer to JSON Schema; workers are stricter."""
    if isinstance(value, dict):
        return {key: _with_integers(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_with_integers(entry) for entry in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _known(token_ids: list[int]) -> list[int]:
    return [token_id % TINY_VOCABULARY for token_id in token_ids]
