"""The lines that begin with a slash."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tandem.chat.chat import Chat

MAX_DRAFT_TOKENS = 32
_BLOCK = frozenset(
    {
        "enabled",
        "draft_model",
        "draft_tokens",
        "num_candidates",
        "candidate_temperature",
        "candidate_top_p",
        "strategy",
        "acceptance_threshold",
        "max_speculation_depth",
        "adaptive_speculation",
    }
)
"""What `/set` puts into the request's `speculative` block; everything else is a field of the request itself."""
_OWN = frozenset({"messages", "model", "stream", "stream_options", "speculative", "n"})


@dataclass(frozen=True, slots=True)
class Command:
    usage: str
    meaning: str
    run: Callable[[Chat, str], None]


def obey(chat: Chat, line: str) -> None:
    """Do what a line with a slash says; a wrong one is explained."""
    name, _, rest = line[1:].partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        chat.screen.fail(f"no command /{name}" + (f": did you mean /{near[0]}?" if near else "; /help lists them"))
        return
    command.run(chat, rest.strip())


def _help(chat: Chat, rest: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        chat.screen.say(f"{command.usage:<{width}}  {command.meaning}", style="")
    chat.screen.say("A line that ends with \\ goes on in the next. Ctrl-C stops an answer, Ctrl-D ends the chat.")


def _quit(chat: Chat, rest: str) -> None:
    raise EOFError


def _reset(chat: Chat, rest: str) -> None:
    chat.conversation.turns.clear()
    chat.screen.say("a new conversation")


def _system(chat: Chat, rest: str) -> None:
    if rest:
        chat.conversation.system = None if rest == "-" else rest
    chat.screen.say(f"system prompt: {chat.conversation.system or 'none'}")


def _plain(chat: Chat, rest: str) -> None:
    chat.conversation.plainly()
    chat.screen.say(chat.conversation.how())


def _draft(chat: Chat, rest: str) -> None:
    words = rest.split()
    numbers = [word for word in words if word.isdecimal()]
    names = [word for word in words if not word.isdecimal()]
    if len(numbers) > 1 or len(names) > 1 or any(not 1 <= int(n) <= MAX_DRAFT_TOKENS for n in numbers if len(n) < 9):
        chat.screen.fail(f"/draft takes a drafter's name and a γ from 1 to {MAX_DRAFT_TOKENS}, both if you like")
        return
    chat.conversation.drafted(names[0] if names else None, int(numbers[0]) if numbers else None)
    chat.screen.say(chat.conversation.how())


def _set(chat: Chat, rest: str) -> None:
    name, _, value = rest.replace("=", " ", 1).partition(" ")
    if not name:
        chat.screen.say(chat.conversation.how())
        return
    if name in _OWN or not name.isidentifier():
        chat.screen.fail(f"{name} is not for you to set here")
        return
    known = _fields()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        chat.screen.fail(f"a request has no field {name}" + (f": did you mean {near[0]}?" if near else ""))
        return
    place = chat.conversation.speculative if name in _BLOCK else chat.conversation.sampling
    if value.strip():
        from protocol.errors import shortened

        wanted = _value(value.strip())
        if (fault := _fault(name, wanted)) is not None:
            chat.screen.fail(f"{fault}, not {shortened(value.strip())}; nothing was set")
            return
        place[name] = wanted
    else:
        place.pop(name, None)
    chat.screen.say(chat.conversation.how())


def _fields() -> list[str]:
    from server.openai.chat_schema import ChatCompletionRequest  # when it is wanted: the chat starts without it

    return [*ChatCompletionRequest.model_fields, *_BLOCK]


def _fault(name: str, value: Any) -> str | None:
    """What is wrong with a field's value, in the gateway's words; told now, no later question is refused for it."""
    from pydantic import ValidationError

    from server.openai.body import invalid
    from server.openai.chat_schema import ChatCompletionRequest

    field = {"speculative": {name: value}} if name in _BLOCK else {name: value}
    body = {"model": "any", "messages": [{"role": "user", "content": "?"}], **field}
    try:
        ChatCompletionRequest.model_validate(body)
    except ValidationError as error:
        return invalid(error, body).message.rstrip(".")
    return None


def _value(text: str) -> Any:
    """A number, true, a list …; whatever is no JSON is a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _show(chat: Chat, rest: str) -> None:
    chat.show_drafts = {"on": True, "off": False}.get(rest, not chat.show_drafts)
    if chat.show_drafts:
        chat.screen.legend()
    else:
        chat.screen.say("drafts are not coloured")


def _retry(chat: Chat, rest: str) -> None:
    question = chat.conversation.take_back()
    if question is None:
        chat.screen.fail("nothing has been asked yet")
        return
    chat.answer(question)


def _stats(chat: Chat, rest: str) -> None:
    if not chat.last.tokens:
        chat.screen.say("no answer yet")
        return
    chat.screen.say(chat.last.line(), style="")
    made = ", ".join(f"{count} {origin}" for origin, count in chat.last.origins.most_common())
    by = ", ".join(f"{count} by {source}" for source, count in chat.last.sources.most_common())
    chat.screen.say(f"tokens: {made or 'not told'}" + (f"; drafted: {by}" if by else ""))
    chat.screen.say(f"seed {chat.last.seed}: /set seed {chat.last.seed} and /retry give this answer again")


COMMANDS = {
    "help": Command("/help", "this list", _help),
    "plain": Command("/plain", "from now on without speculation: the same text, at the target's own speed", _plain),
    "draft": Command("/draft [NAME] [γ]", "with speculation: auto, lookup or a drafter's name; a fixed γ", _draft),
    "show": Command("/show [on|off]", "colour accepted drafts, the target's own tokens and bonus tokens", _show),
    "stats": Command("/stats", "figures of the last answer, and its seed", _stats),
    "set": Command("/set [NAME [VALUE]]", "a field of the request: temperature, max_tokens, seed, strategy, …", _set),
    "system": Command("/system [TEXT]", "the system prompt; - for none", _system),
    "retry": Command("/retry", "ask the last question again", _retry),
    "reset": Command("/reset", "forget the conversation", _reset),
    "quit": Command("/quit", "end the chat", _quit),
}
