"""What an answer turns out to hold, piece by piece, as it is read."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """Text that is not part of a call."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """OpenAI's first delta of a call: index, id, type and function.name."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of function.arguments of call `index`."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class ThoughtText:
    """Text of the model's thought."""

    text: str


Event = ThoughtText | Content | CallStart | CallArguments
