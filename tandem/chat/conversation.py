"""What has been said so far, and how the next answer is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Conversation:
    """`sampling` and `speculative` are fields of the request, and of its block (docs/api.md), as the user set them."""

    model: str
    system: str | None = None
    turns: list[dict[str, str]] = field(default_factory=list)
    sampling: dict[str, Any] = field(default_factory=dict)
    speculative: dict[str, Any] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """The request for the next answer."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {
            "model": self.model,
            "messages": [*system, *self.turns],
            "stream_options": {"include_usage": True},
            "speculative": {**self.speculative, "report_rounds": True},
            **self.sampling,
        }

    def ask(self, text: str) -> None:
        self.turns.append({"role": "user", "content": text})

    def answered(self, text: str) -> None:
        """Also with what there was of an answer that was stopped: the model may be asked to go on."""
        self.turns.append({"role": "assistant", "content": text})

    def take_back(self) -> str | None:
        """The last question and its answer, if there is one, were never said. Returns the question."""
        while self.turns:
            turn = self.turns.pop()
            if turn["role"] == "user":
                return turn["content"]
        return None

    def plainly(self) -> None:
        self.speculative = {"enabled": False}

    def drafted(self, drafter: str | None, draft_tokens: int | None) -> None:
        """From now on by this drafter, or by the server's own choice; a γ that is given stays as it is."""
        self.speculative.pop("enabled", None)
        if drafter is not None:
            self.speculative["draft_model"] = drafter
        if draft_tokens is not None:
            self.speculative |= {"draft_tokens": draft_tokens, "adaptive_speculation": False}
        else:
            for name in ("draft_tokens", "adaptive_speculation", "max_speculation_depth"):
                self.speculative.pop(name, None)

    def how(self) -> str:
        """How the next answer is made, in words."""
        if self.speculative.get("enabled") is False:
            made = "plain decoding"
        else:
            made = f"drafts by {self.speculative.get('draft_model', 'the default drafter')}"
            gamma = self.speculative.get("draft_tokens")
            made += f", γ {gamma}" if gamma is not None else ", γ adapts"
        others = {k: v for k, v in self.speculative.items() if k not in ("enabled", "draft_model", "draft_tokens")}
        settings = ", ".join(f"{name} {value}" for name, value in {**others, **self.sampling}.items())
        return made + (f" ({settings})" if settings else "")
