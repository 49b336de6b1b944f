"""What is asked: a prompt of one or more turns, and the three kinds of prompt that come with Tandem."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """`turns` are the user's, asked one after another with the answers between them; `history` stands before them.

    `answer` is the right one, if the data set has it. `raw`: the (single) turn is text to go on from, no chat.
    """

    id: str
    kind: str
    turns: tuple[str, ...]
    history: tuple[Mapping[str, str], ...] = ()
    answer: str | None = None
    raw: bool = False


_RECIPE = """Peel two onions, cut them fine, and fry them in butter until they are golden. Add a spoon of flour, stir
for a minute, and pour in a litre of stock. Let the soup boil for twenty minutes. Season it with salt, pepper and
nutmeg, and serve it with toasted bread and grated cheese."""

_LETTER = """Dear Ms Alvarez,

thank you for your order of 12 March. The twelve chairs will leave our workshop in Tallinn on Monday and should
reach you within eight days. If a chair is damaged, please send us a photograph within two weeks and we replace it at
our cost.

Kind regards,
Tiit Saar"""

_CODE = '''def read_temperatures(path):
    """Read one temperature a line, in degrees Celsius."""
    temperatures = []
    with open(path) as lines:
        for line in lines:
            line = line.strip()
            if line and not line.startswith("#"):
                temperatures.append(float(line))
    return temperatures


def warmest(path, count):
    temperatures = read_temperatures(path)
    temperatures.sort(reverse=True)
    return temperatures[:count]
'''

KINDS: dict[str, tuple[str, ...]] = {
    "chat": (
        "How do I keep houseplants alive while I am away for three weeks?",
        "Explain to a ten-year-old why ships made of steel float.",
        "Write a short story about a postman who finds a letter addressed to himself.",
        "What are the advantages and disadvantages of working at night?",
        "Give me a plan for a weekend in a town by the sea in winter.",
        "Why did people start to drink coffee in the morning?",
    ),
    "code": (
        "Write a Python function that checks whether a string is a palindrome, ignoring case and punctuation. Test it.",
        "Write a Python class for a bank account with deposit, withdraw and a history of transactions.",
        "Write a SQL schema for a library: books, members and loans. Then a query for all overdue loans.",
        "Write a JavaScript function that groups a list of objects by the value of one key.",
        "Write a Python script that renames all .jpeg files of a folder to .jpg and prints what it did.",
        "Implement binary search in C, with comments.",
    ),
    "editing": (
        f"Replace 'onions' by 'leeks' in this recipe and repeat all the rest word for word:\n\n{_RECIPE}",
        f"Repeat this code with type hints and change nothing else:\n\n```python\n{_CODE}```",
        f"Correct the name 'Alvarez' to 'Alvares' in this letter and copy the rest exactly:\n\n{_LETTER}",
        f"Rename the variable temperatures to values and print the whole file:\n\n```python\n{_CODE}```",
        f"Copy this text exactly:\n\n{_RECIPE}",
        f"Copy this letter, and write it to Mr Alvarez instead of Ms Alvarez:\n\n{_LETTER}",
    ),
}
"""Own texts, six a kind: `editing` says mostly what stands in the prompt, `chat` hardly anything of it."""


def built_in(kind: str) -> list[Prompt]:
    return [Prompt(f"{kind}/{number}", kind, (text,)) for number, text in enumerate(KINDS[kind])]
