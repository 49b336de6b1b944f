"""A little of most kinds of text, by which it is judged how much of a target's language a drafter can say."""

SAMPLE = """\
The committee met on Tuesday to discuss the budget for 2024; however, nobody could agree whether the $1,250.75 that had
been spent on "urgent repairs" was reasonable. "I don't think we'll ever know," she said, and closed the folder.

# Results

1. First, heat 200 ml of water to 80 °C.
2. Then add the tea, wait three minutes, and serve.

def mean(values: list[float]) -> float:
    \"\"\"The arithmetic mean; raises ValueError if there is none.\"\"\"
    if not values:
        raise ValueError("no values")
    return sum(values) / len(values)

for (let i = 0; i < items.length; i++) {
    console.log(`${i}: ${items[i].name}`);
}

{"name": "Ada", "age": 36, "tags": ["mathematics", "engines"], "active": true}

SELECT id, title FROM books WHERE author_id = 7 ORDER BY published DESC LIMIT 10;

Der Zug nach München fährt um 9:15 Uhr. Les élèves ont déjà étudié la leçon. El niño comió una manzana.
"""
