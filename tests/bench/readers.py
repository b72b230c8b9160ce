"""One library that reads streamed answers, and what a token costs it: the processor of this process.

``readers.py KIND URL`` says that it is ready; every line it is sent makes it read so many streams side by
side, and it answers with the microseconds that each token took. KIND is one of our providers, ``sdk:openai``
(the vendor's own library) or ``litellm``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

TOKENS = 100
STREAMS = 50
PACE_MS = 10
"""Between two tokens of a stream: each comes alone, none is so slow that it gets several at once."""
MODEL = f"bench-{TOKENS}-{PACE_MS}"
PATHS: Mapping[str, str] = {
    "openai": "/v1",
    "anthropic": "/anthropic",
    "google": "/google",
    "cohere": "/cohere",
    "bedrock": "/bedrock",
    "mistral": "/mistral/v1",
}
Read = Callable[[], Awaitable[int]]


async def provider(name: str, url: str) -> Read:
    """One of ours."""
    from gateway.contract.deltas import TextDelta
    from gateway.contract.provider import ChatOptions, ProviderConfig
    from gateway.testing.contracts.provider_calls import user
    from plugins.providers import PROVIDERS, lazy_factory

    config = ProviderConfig(id=name, base_url=url + PATHS[name], api_key="k", region="r", max_retries=0)
    made = lazy_factory(PROVIDERS[name].module)(config)
    await made.initialize(config)
    options = ChatOptions(model=MODEL, message_id="m")
    said = (user("Hi"),)

    async def read() -> int:
        letters = 0
        async for delta in made.stream(said, options):
            if isinstance(delta, TextDelta):
                letters += len(delta.content)
        return letters

    return read


async def sdk(url: str) -> Read:
    """The vendor's own."""
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)

    async def read() -> int:
        letters = 0
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.choices:
                letters += len(chunk.choices[0].delta.content or "")
        return letters

    return read


async def litellm(url: str) -> Read:
    """The library that speaks to many vendors."""
    import litellm as library

    library.suppress_debug_info = True

    async def read() -> int:
        letters = 0
        stream: Any = await library.acompletion(
            model=f"openai/{MODEL}",
            api_base=f"{url}/v1",
            api_key="k",
            messages=[{"role": "user", "content": "Hi"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.choices:
                letters += len(chunk.choices[0].delta.content or "")
        return letters

    return read


async def measure(read: Read) -> float:
    """Microseconds of processor for each token, over some streams side by side."""
    begun = time.process_time()
    letters = await asyncio.gather(*(read() for _ in range(STREAMS)))
    spent = time.process_time() - begun
    assert min(letters) >= TOKENS * 10, letters
    return spent / (STREAMS * TOKENS) * 1e6


async def main(kind: str, url: str) -> None:
    """Read whenever a line comes."""
    match kind:
        case "sdk:openai":
            read = await sdk(url)
        case "litellm":
            read = await litellm(url)
        case _:
            read = await provider(kind, url)
    await measure(read)
    print(f"ready: {url}", flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(await measure(read)), flush=True)
    os._exit(0)  # connections need not be closed


if __name__ == "__main__":
    try:
        import uvloop
    except ImportError:
        asyncio.run(main(*sys.argv[1:]))
    else:
        uvloop.run(main(*sys.argv[1:]))
