"""docs/models.md says of GGUF files what is so: its tables are made here. Write them anew with UPDATE_DOCS=1."""

from __future__ import annotations

import os
import re
from pathlib import Path

from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

from engines.errors import ModelError
from engines.gguf.tokenizer import DIGITS_APART, GPT2, WHOLE_WORDS_AND_BOS
from engines.torch.support import check_supported
from tests.engines.gguf.test_config import CASES

PAGE = Path(__file__).parents[3] / "docs" / "models.md"


def architectures() -> str:
    lines = ["| `general.architecture` | model of transformers | torch engine |", "|---|---|---|"]
    rows: dict[tuple[str, str], str] = {}
    for parameters in CASES:
        arch, config, _ = parameters.values
        try:
            check_supported(config, 8)
            served = "✓"
        except ModelError as error:
            served = f"refused: {error}"
        rows.setdefault((str(arch), config.model_type), served)
    lines += [f"| `{arch}` | `{kind}` | {served} |" for (arch, kind), served in sorted(rows.items())]
    return "\n".join(lines)


def splits() -> str:
    names = sorted({*GGUF_PRE_TOKENIZER_SPLITS, *GPT2, *DIGITS_APART})
    lines = ["| `tokenizer.ggml.pre` | begins with BOS unless the file denies |", "|---|---|"]
    lines += [f"| `{name}` | {'✓' if name in WHOLE_WORDS_AND_BOS else ''} |" for name in names]
    return "\n".join(lines)


def test_the_page_has_the_tables_that_hold() -> None:
    page = PAGE.read_text()
    made = page
    for name, table in (("architectures", architectures()), ("splits", splits())):
        made = re.sub(rf"(<!-- gguf: {name} -->\n)(\|[^\n]*\n)*", lambda found: f"{found[1]}{table}\n", made)  # noqa: B023
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(made)
    assert page == made
