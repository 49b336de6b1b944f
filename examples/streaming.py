"""Text as it is generated: in a plain loop, and several streams side by side with asyncio.

python examples/streaming.py [TARGET [DRAFT]]
"""

import asyncio
import sys

from tandem import AsyncTandem, Tandem


def one(target: str, draft: str) -> None:
    with Tandem(target, draft=draft) as t:
        stream = t.stream("Once upon a time", max_tokens=60, seed=1)
        for piece in stream:
            print(piece, end="", flush=True)
        assert stream.answer is not None
        print(f"\n[{stream.answer.finish_reason}, first text after {stream.answer.stats.first_token_seconds:.3f} s]")


async def several(target: str, draft: str) -> None:
    async with AsyncTandem(target, draft=draft) as t:

        async def tell(name: str, start: str) -> None:
            async for piece in t.stream(start, max_tokens=20, seed=1):
                print(f"{name}: {piece!r}")

        await asyncio.gather(tell("sea", "Far out at sea"), tell("town", "In a small town"))


def main(target: str = "SmolLM2-135M-Instruct", draft: str = "auto") -> None:
    one(target, draft)
    asyncio.run(several(target, draft))


if __name__ == "__main__":
    main(*sys.argv[1:])
