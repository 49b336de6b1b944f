"""How a family of models writes its tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Style = Literal["json", "header", "parameters", "pairs", "braces", "channels"]


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Calls stand between marks: `opener` begins one, or a list of them where `array`, and `closer` ends it.

    `style` says what stands between the marks:

    - json: an object with a name and arguments, under the keys `name_key` and `arguments` (the usual ones are read too)
    - header: `before`, the name, `after`, and the arguments as a JSON object
    - parameters: <function=name>, and <parameter=key> with its value, closed, for each argument
    - pairs: the name, and <arg_key> and <arg_value> for each argument
    - channels: a message to functions.name, which server.reading.harmony reads together with the model's thoughts
    - braces: call:name{key:value}, with strings between `quote` marks

    `also`: openers that some models of the family write instead. `section`: marks around all calls together. `bare`: a
    call may also stand without the opener where the text begins. `separators` may stand between calls after one opener.
    `hidden`: marks that are layout wherever they stand. `special`: the opener is a special token and must stay in the
    text (skip_special_tokens off) to be seen. `id_length`: of a call's id, where templates insist on one. `id_in_name`:
    the model writes functions.name:0 for the name, and its template wants that back as the call's id.
    """

    name: str
    opener: str
    closer: str
    style: Style = "json"
    arguments: str = "arguments"
    name_key: str = "name"
    before: str = ""
    after: str = ""
    quote: str = '"'
    also: tuple[str, ...] = ()
    section: tuple[str, str] | None = None
    array: bool = False
    bare: bool = False
    separators: str = ""
    hidden: tuple[str, ...] = ()
    special: bool = False
    id_length: int = 24
    id_in_name: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """Every mark that must stay in the text to be seen."""
        inner = (self.after, self.quote) if self.style in ("header", "braces") else ()
        return tuple(filter(None, (self.opener, self.closer, *self.also, *(self.section or ()), *self.hidden, *inner)))


_DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
_DEEPSEEK_CALL = ("<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")

# Each as its models' own chat templates write it.
FORMATS: dict[str, CallFormat] = {
    form.name: form
    for form in (
        # If a model's own form is unknown, it is instructed to write this one (server.reading.tools.instructions):
        # {"name": …, "arguments": {…}} and nothing else, each on a line of its own.
        CallFormat("json", "", "", bare=True),
        # Hermes 2 Pro, Qwen2.5, Qwen3, SmolLM3, Granite 4: <tool_call>\n{"name": …, "arguments": {…}}\n</tool_call>
        CallFormat("hermes", "<tool_call>", "</tool_call>"),
        # Llama 3.1 and 3.2: {"name": …, "parameters": {…}}, <|python_tag|> before it at times
        CallFormat(
            "llama3_json", "<|python_tag|>", "", arguments="parameters", bare=True, separators=";", special=True
        ),
        # Mistral up to its tokenizer v7: [TOOL_CALLS][{"name": …, "arguments": {…}}, …]; its templates want ids of nine
        CallFormat("mistral", "[TOOL_CALLS]", "", array=True, special=True, id_length=9),
        # Mistral from its tokenizer v11 on: [TOOL_CALLS]name[ARGS]{…}
        CallFormat("mistral_v11", "[TOOL_CALLS]", "", style="header", after="[ARGS]", special=True, id_length=9),
        # DeepSeek V3, R1: …<｜tool▁call▁begin｜>function<｜tool▁sep｜>name\n```json\n{…}\n```<｜tool▁call▁end｜>…
        CallFormat(
            "deepseek_v3", _DEEPSEEK_CALL[0], f"```{_DEEPSEEK_CALL[1]}", style="header",
            before="function<｜tool▁sep｜>", after="```json", section=_DEEPSEEK,
        ),
        # DeepSeek V3.1: …<｜tool▁call▁begin｜>name<｜tool▁sep｜>{…}<｜tool▁call▁end｜>…
        CallFormat("deepseek_v31", *_DEEPSEEK_CALL, style="header", after="<｜tool▁sep｜>", section=_DEEPSEEK),
        # Kimi K2: …<|tool_call_begin|>functions.name:0<|tool_call_argument_begin|>{…}<|tool_call_end|>…
        CallFormat(
            "kimi", "<|tool_call_begin|>", "<|tool_call_end|>", style="header", after="<|tool_call_argument_begin|>",
            section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"), id_in_name=True,
        ),
        # GLM-4.5 and later: <tool_call>name\n<arg_key>…</arg_key>\n<arg_value>…</arg_value>\n</tool_call>
        CallFormat("glm", "<tool_call>", "</tool_call>", style="pairs"),
        # Qwen3-Coder, Qwen3.5: <tool_call>\n<function=name>\n<parameter=key>\n…\n</parameter>\n</function>…
        CallFormat("qwen3_coder", "<tool_call>", "</tool_call>", style="parameters"),
        # Gemma 4: <|tool_call>call:name{key:<|"|>text<|"|>,key:1}<tool_call|>
        CallFormat("gemma4", "<|tool_call>", "<tool_call|>", style="braces", quote='<|"|>'),
        # FunctionGemma, of Gemma 3: <start_function_call>call:name{key:<escape>text<escape>}<end_function_call>
        CallFormat(
            "functiongemma", "<start_function_call>", "<end_function_call>", style="braces", quote="<escape>"
        ),
        # Granite 3: <|tool_call|>[{"name": …, "arguments": {…}}, …]
        CallFormat("granite", "<|tool_call|>", "", array=True, also=("<tool_call>",)),
        # Phi-4-mini: <|tool_call|>[{"name": …, "arguments": {…}}]<|/tool_call|>, and functools[…]
        CallFormat("phi4_mini", "<|tool_call|>", "<|/tool_call|>", array=True, also=("functools",)),
        # Command R7B, A: <|START_ACTION|>[{"tool_call_id": "0", "tool_name": …, "parameters": {…}}]<|END_ACTION|>
        CallFormat(
            "command_a", "<|START_ACTION|>", "<|END_ACTION|>", arguments="parameters", name_key="tool_name",
            array=True, hidden=("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
        ),
        # Command R and R+: Action: ```json\n[{"tool_name": …, "parameters": {…}}]\n```
        # gpt-oss: server.reading.harmony
        CallFormat("harmony", "<|channel|>", "", style="channels"),
        CallFormat(
            "command_r", "Action: ```json", "```", arguments="parameters", name_key="tool_name", array=True,
        ),
    )
}  # fmt: skip

GENERIC = "json"

# What a template has in it, all of these, where its models write so. The first that fits counts.
_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("qwen3_coder", ("<tool_call>", "<function=", "<parameter=")),
    ("glm", ("<tool_call>", "<arg_key>")),
    ("deepseek_v3", ("<｜tool▁sep｜>", "```json")),
    ("deepseek_v31", ("<｜tool▁sep｜>",)),
    ("kimi", ("<|tool_call_argument_begin|>",)),
    ("harmony", ("<|channel|>", "<|message|>", "functions")),
    ("gemma4", ("<|tool_call>",)),
    ("functiongemma", ("<start_function_call>",)),
    ("command_a", ("<|START_ACTION|>",)),
    ("command_r", ("Action:", "tool_name", "<|CHATBOT_TOKEN|>")),
    ("mistral_v11", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("phi4_mini", ("<|tool|>", "<|/tool|>")),
    ("granite", ("<|tool_call|>",)),
    ("hermes", ("<tool_call>",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ('"parameters":', "tools", "ipython")),
)
_NAMES = (
    ("hermes", "hermes"), ("qwen3-coder", "qwen3_coder"), ("qwen", "hermes"), ("qwq", "hermes"),
    ("llama-3", "llama3_json"), ("mistral", "mistral"), ("mixtral", "mistral"), ("ministral", "mistral"),
)  # fmt: skip


def choose(chat_template: str, model_id: str = "", setting: str = "auto") -> CallFormat | None:
    """The format that the chat template writes, else the one that the model's name suggests, else the generic one.

    `setting` names one of FORMATS, or is "auto" or "none" (the answer is None). Raises ValueError, naming what there
    is, for another.
    """
    if setting == "none":
        return None
    if setting != "auto":
        if setting not in FORMATS:
            raise ValueError(f"no tool call format {setting!r}: choose auto, none or one of {', '.join(FORMATS)}")
        return FORMATS[setting]
    for name, signs in _SIGNS:
        if all(sign in chat_template for sign in signs):
            return FORMATS[name]
    for word, name in _NAMES:
        if word in model_id.lower():
            return FORMATS[name]
    return FORMATS[GENERIC]
