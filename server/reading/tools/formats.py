"""How a family of models writes its tool calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Calls are JSON objects with a name and arguments, inside marks.

    `opener` begins a call, or a list of calls where `array`; `closer` ends it. `bare`: a call may also stand without
    the opener where the text begins. `separators` may stand between calls after one opener. `arguments` is the key the
    model was trained to write (both are read). `special`: the opener is a special token and must stay in the text
    (skip_special_tokens off) to be seen. `id_length`: of a call's id, if templates insist on one.
    """

    name: str
    opener: str
    closer: str
    arguments: str = "arguments"
    array: bool = False
    bare: bool = False
    separators: str = ""
    special: bool = False
    id_length: int = 24


FORMATS: dict[str, CallFormat] = {
    # Hermes 2 Pro, Qwen2.5, Qwen3, SmolLM3: <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>
    "hermes": CallFormat("hermes", "<tool_call>", "</tool_call>"),
    # Llama 3.1 and 3.2: {"name": …, "parameters": {…}}, <|python_tag|> before it at times
    "llama3_json": CallFormat(
        "llama3_json", "<|python_tag|>", "", arguments="parameters", bare=True, separators=";", special=True
    ),
    # Mistral up to its tokenizer v7: [TOOL_CALLS][{"name": …, "arguments": {…}}, …]; its templates want ids of nine
    "mistral": CallFormat(
        "mistral", "[TOOL_CALLS]", "]", array=True, separators=",", special=True, id_length=9
    ),
}  # fmt: skip


def choose(chat_template: str, model_id: str = "", setting: str = "auto") -> CallFormat | None:
    """The format that the chat template writes, else the one that the model's name suggests; None if neither does.

    `setting` names one of FORMATS, or is "auto" or "none". Raises ValueError, naming what there is, for another.
    """
    if setting == "none":
        return None
    if setting != "auto":
        if setting not in FORMATS:
            raise ValueError(f"no tool call format {setting!r}: choose auto, none or one of {', '.join(FORMATS)}")
        return FORMATS[setting]
    for form in FORMATS.values():
        if form.opener in chat_template:
            return form
    if '"parameters":' in chat_template and "tools" in chat_template and "ipython" in chat_template:
        return FORMATS["llama3_json"]
    name = model_id.lower()
    for word, form_name in (
        ("hermes", "hermes"), ("qwen", "hermes"), ("qwq", "hermes"), ("llama-3", "llama3_json"),
        ("mistral", "mistral"), ("mixtral", "mistral"), ("ministral", "mistral"),
    ):  # fmt: skip
        if word in name:
            return FORMATS[form_name]
    return None
