"""The large model on another machine, the draft here: the rounds run between the two.

tandem target --target Qwen/Qwen2.5-3B-Instruct --host 0.0.0.0     # there; set TANDEM_WORKER_TOKEN on both
python examples/remote_target.py http://gpu-box:8002 [DRAFT]
"""

import os
import sys

from tandem import Tandem


def main(target_url: str, draft: str = "auto") -> None:
    with Tandem(target_url, draft=draft, worker_token=os.environ.get("TANDEM_WORKER_TOKEN")) as t:
        answer = t.chat("Name three rivers.", max_tokens=48, seed=1)
        print(f"{t.model}: {answer.text}")
        print(f"{answer.stats.tokens_per_round:.2f} tokens for each round trip to the target")


if __name__ == "__main__":
    main(*sys.argv[1:])
