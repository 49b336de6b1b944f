"""The doctor's prompts: one of each kind of work, since acceptance depends on it."""

from __future__ import annotations

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
