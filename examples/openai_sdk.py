"""Any OpenAI client against a gateway that runs (`tandem up`): change base_url, nothing else.

pip install openai
python examples/openai_sdk.py [http://127.0.0.1:8000]
"""

import os
import sys

from openai import OpenAI


def main(url: str = "http://127.0.0.1:8000") -> None:
    client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("TANDEM_API_KEY", "unused"))
    model = client.models.list().data[0].id
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Name three rivers."}],
        max_tokens=48,
        seed=7,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"speculative": {"draft_tokens": 4}},
    )
    for chunk in stream:
        for choice in chunk.choices:
            print(choice.delta.content or "", end="", flush=True)
        if chunk.usage is not None and chunk.usage.completion_tokens_details is not None:
            details = chunk.usage.completion_tokens_details
            print(f"\n{details.accepted_prediction_tokens} draft tokens accepted", end="")
            print(f", {details.rejected_prediction_tokens} rejected")


if __name__ == "__main__":
    main(*sys.argv[1:])
