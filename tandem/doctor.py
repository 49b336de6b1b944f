"""`tandem doctor`: checks a set-up, measures its parts, and reports whether speculation pays there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from secrets import token_hex
from typing import Any

from tokenizers import Tokenizer

from basics.names import LOOKUP
from config.pairs import DEFAULT_DRAFT_TOKENS
from config.roles import ServeSettings
from protocol.worker_info import ModelInfo, Translation
from tandem.addresses import service_url
from tandem.doctor_report import print_report
from tandem.findings import PromptResult, Report
from tandem.payoff import Costs, Yield, acceptance_of, flight_verdict, judge, lookahead_verdict
from tandem.probes import MeasuredAnswer, ProbedService, Told, Unreachable

_STEP_GAMMAS = (0, 1, 3, 7)
PROMPTS: dict[str, str] = {
    "copying": (
        "Repeat the following text exactly, and change only the name Anna to Maria:\n\n"
        "Anna packed her bag before sunrise. Anna walked to the station, bought a ticket to the coast, and sat by the "
        "window. When the train left, Anna opened the letter that had come the day before and read it twice."
    ),
    "code": (
        "Rewrite this Python function with type hints and change nothing else:\n\n"
        "def moving_average(values, window):\n"
        "    result = []\n"
        "    for index in range(len(values) - window + 1):\n"
        "        result.append(sum(values[index:index + window]) / window)\n"
        "    return result\n"
    ),
    "chat": "Give three reasons why people enjoy walking in the mountains.",
}
"""One of each kind of work, since acceptance depends on it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The three services, as far as there are addresses for them."""

    gateway: ProbedService
    target: ProbedService
    draft: ProbedService | None


def run_doctor(
    settings: ServeSettings,
    *,
    url: str | None,
    target_url: str | None,
    draft_url: str | None,
    api_key: str | None,
    draft_tokens: int | None,
    max_tokens: int,
    timeout: float,
    as_json: bool,
) -> int:
    """Print the report. `draft_tokens` None: the gateway's own γ.

    Returns 0 if everything answers and fits together, else 1; a bad payoff is not a fault.
    """
    worker_token = settings.worker_token.get_secret_value() if settings.worker_token else None
    key = api_key or next((key.get_secret_value() for key in settings.api_keys), None)
    verify = str(settings.worker_ca_file) if settings.worker_ca_file else True
    with ExitStack() as stack:

        def service(name: str, address: str, token: str | None, verify: str | bool = True) -> ProbedService:
            opened = ProbedService(name, address, token, timeout, verify)
            stack.callback(opened.close)
            return opened

        gateway = service("gateway", url or service_url(settings.host, settings.port), key)
        target_address = target_url or gateway.first_worker("target") or settings.target_urls[0]
        draft_address = draft_url or gateway.first_worker("draft") or next(iter(settings.draft_urls), None)
        setup = Setup(
            gateway=gateway,
            target=service("target", target_address, worker_token, verify),
            draft=service("draft", draft_address, worker_token, verify) if draft_address else None,
        )
        fallback = settings.draft_tokens or DEFAULT_DRAFT_TOKENS
        report = examine(setup, draft_tokens, max_tokens, fallback, say=_say)
    if as_json:
        print(report.as_json())
    else:
        print_report(report)
    return 0 if report.healthy else 1


def _say(doing: str) -> None:
    """To standard error: standard output is for the report, which may be JSON."""
    print(f"{doing} …", file=sys.stderr, flush=True)


def examine(
    setup: Setup, draft_tokens: int | None, max_tokens: int, fallback: int, say: Callable[[str], None]
) -> Report:
    """Every check that can be made; one that fails leaves those that need it out.

    γ is what is given, else what the gateway uses by itself, else (no answer from the gateway) `fallback`. `say` is
    told what is done next: on a busy machine it takes minutes.
    """
    say("looking at the services")
    report = Report(draft_tokens=draft_tokens or fallback)
    target = _look_at_worker(report, setup.target)
    draft = _look_at_worker(report, setup.draft) if setup.draft else None
    if setup.draft is None:
        report.add("draft", None, "no draft worker is configured: plain decoding")
    before = after = setup.gateway.told()
    is_served = _look_at_gateway(report, setup.gateway, before)
    if target and draft and setup.draft:
        _compare_vocabularies(report, setup.target, setup.draft, target, draft)
    if is_served and draft:
        try:
            for result, gamma in _try_prompts(setup.gateway, draft_tokens, max_tokens, say):
                report.prompts.append(result)
                report.draft_tokens = gamma
        except Unreachable as problem:
            report.add("prompts", False, str(problem))
    if target and draft and setup.draft:
        try:
            say("timing drafts and the target's passes")
            name = target.vocabulary.fingerprint if target.vocabulary is not None else ""
            other = name if _translation(name, draft) is not None else None
            costs = _measure(report, setup.target, setup.draft, report.draft_tokens, other)
            after = setup.gateway.told()
            report.costs = replace(costs, hidden=_hidden_ms(before, after))
        except Unreachable as problem:
            report.add("timing", False, str(problem))
    if report.costs and draft:
        if draft.capabilities.lookahead:
            tried = after.looked_ahead > 0.0
            report.lookahead = lookahead_verdict(report.costs, report.draft_tokens, before.lookahead, tried)
        else:
            report.lookahead = f"lookahead is not to be had: {draft.id} on {draft.engine} prepares no drafts"
    copies = draft is not None and draft.engine == LOOKUP and draft.capabilities.chooses_ahead
    if report.costs and draft and target and (draft.capabilities.lookahead or copies):
        if target.capabilities.follows and (draft.capabilities.prepared or copies):
            report.flights = flight_verdict(
                report.costs, report.draft_tokens, before.lookahead, before.verifications_in_flight
            )
        else:
            unable = draft if target.capabilities.follows else target
            report.flights = f"verifications in flight are not to be had: {unable.id} on {unable.engine} can't"
    if report.costs:
        for result in report.prompts:
            gains = Yield(result.acceptance_rate, result.coverage)
            report.verdicts[result.kind] = judge(report.costs, gains, report.draft_tokens)
    return report


def _look_at_worker(report: Report, service: ProbedService) -> ModelInfo | None:
    try:
        is_ready, detail = service.ready()
        if not is_ready:
            report.add(service.name, False, f"{service.url} is not ready: {detail}")
            return None
        info = service.model()
        report.round_trips_ms[service.name] = service.round_trip_ms()
    except Unreachable as problem:
        report.add(service.name, False, str(problem))
        return None
    if info.role != service.name:
        report.add(service.name, False, f"{service.url} is a {info.role} worker")
        return None
    mode = ", bitwise mode" if info.capabilities.batch_invariant else ""
    runs = f"{info.id} on {info.engine}, {info.device}, {info.dtype or 'no model'}{mode}"
    report.add(service.name, True, f"{service.url}: {runs}")
    return info


def _look_at_gateway(report: Report, gateway: ProbedService, told: Told) -> bool:
    if told.worker is not None:
        report.add(gateway.name, False, f"{gateway.url} is a {told.worker} worker: --url is for the gateway's address")
        return False
    try:
        is_ready, detail = gateway.ready()
        report.round_trips_ms[gateway.name] = gateway.round_trip_ms()
    except Unreachable as problem:
        report.add(gateway.name, False, str(problem))
        return False
    report.add(gateway.name, is_ready, f"{gateway.url}: {detail}")
    return is_ready


def _hidden_ms(before: Told, after: Told) -> float:
    """What lookahead hid of the drafting of a round, on average, between two looks at the gateway."""
    rounds = after.looked_ahead - before.looked_ahead
    return 1e3 * (after.hidden_seconds - before.hidden_seconds) / rounds if rounds > 0 else 0.0


def _compare_vocabularies(
    report: Report, target_service: ProbedService, draft_service: ProbedService, target: ModelInfo, draft: ModelInfo
) -> None:
    from server.fleet.compatibility import differences, in_words, same_vocabulary, sizes

    if target.vocabulary is None:
        report.add("vocabulary", False, "the target reports no vocabulary")
    elif draft.vocabulary is None:
        report.add("vocabulary", True, f"{draft.id} drafts in the target's own ids")
    elif same_vocabulary(target.vocabulary, draft.vocabulary):
        report.add("vocabulary", True, f"one vocabulary of {target.vocabulary.size} tokens")
    elif (how := _translation(target.vocabulary.fingerprint, draft)) is not None:
        report.add("vocabulary", True, f"{draft.id} has another one and drafts {in_words(how)}")
    else:
        try:
            what = differences(target_service.tokenizer(), draft_service.tokenizer())
        except Unreachable:
            what = sizes(target.vocabulary, draft.vocabulary)
        report.add("vocabulary", False, f"{draft.id} cannot draft for {target.id}: {what}")


def _translation(vocabulary: str, draft: ModelInfo) -> Translation | None:
    return next((one for one in draft.translations if one.vocabulary == vocabulary), None)


def _measure(
    report: Report, target: ProbedService, draft: ProbedService, draft_tokens: int, vocabulary: str | None
) -> Costs:
    """Step and draft times over a context that repeats itself, so that lookup too has a draft.

    `vocabulary` is the target's, if the drafter has another one.
    """
    tokenizer = Tokenizer.from_str(target.tokenizer().tokenizer_json)
    token_ids = tokenizer.encode(PROMPTS["copying"] * 2, add_special_tokens=False).ids
    gammas = sorted({*_STEP_GAMMAS, draft_tokens})
    steps = tuple((gamma + 1, target.verify_ms(token_ids, gamma)) for gamma in gammas)
    one, _ = draft.draft_ms(token_ids, 1, vocabulary)
    many, length = draft.draft_ms(token_ids, draft_tokens, vocabulary)
    a_token = max(0.0, (many - one) / (length - 1)) if length > 1 else one
    return Costs(
        steps=steps,
        draft_call=max(0.0, one - a_token),
        draft_token=a_token,
        draft_round_trip=report.round_trips_ms[draft.name],
        target_round_trip=report.round_trips_ms[target.name],
    )


def _try_prompts(
    gateway: ProbedService, draft_tokens: int | None, max_tokens: int, say: Callable[[str], None]
) -> Iterator[tuple[PromptResult, int]]:
    """Each prompt's result, and the γ it was speculated with."""
    model = gateway.models()
    # γ is held, so that what is measured is what the arithmetic is about; adaptation would turn bad drafts off.
    held: dict[str, Any] = {"adaptive_speculation": False}
    if draft_tokens is not None:
        held["draft_tokens"] = draft_tokens
    for kind, prompt in PROMPTS.items():
        body: dict[str, Any] = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": max_tokens,
            "temperature": 0,
        }
        say(f"prompt {kind}: an answer without drafts, then with them")
        # With salts of their own: what was answered before, in an earlier run too, is copied for neither.
        plain = gateway.generate({**body, "cache_salt": token_hex(8), "speculative": {"enabled": False}})
        speculative = gateway.generate({**body, "cache_salt": token_hex(8), "speculative": held})
        gamma = int(speculative.speculative.get("num_spec_tokens") or draft_tokens or 1)
        yield _compare(kind, plain, speculative, gamma), gamma


def _compare(kind: str, plain: MeasuredAnswer, speculative: MeasuredAnswer, draft_tokens: int) -> PromptResult:
    numbers = speculative.speculative
    accepted, steps = numbers.get("num_accepted_draft_tokens", 0), numbers.get("num_spec_steps", 0)
    # Every round emits one token of the target's own, except the last one if a stop token was accepted.
    rounds = max(speculative.completion_tokens - accepted, steps, 1)
    return PromptResult(
        kind=kind,
        plain=_rate(plain),
        speculative=_rate(speculative),
        acceptance_rate=acceptance_of(accepted, numbers.get("acceptance_histogram", []), draft_tokens),
        acceptance_length=speculative.completion_tokens / rounds,
        coverage=steps / rounds,
        same_text=plain.text == speculative.text,
        drafters=dict(numbers.get("accepted_by_drafter") or {}),
    )


def _rate(generation: MeasuredAnswer) -> float:
    """Tokens a second after the first; 0 if everything came at once."""
    seconds = generation.decode_seconds
    return (generation.completion_tokens - 1) / seconds if seconds > 0 and generation.completion_tokens > 1 else 0.0
