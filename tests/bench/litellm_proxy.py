"""A rival of ``POST /v1/chat/completions``: the proxy of litellm, one process that does nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile


async def main(config: str) -> None:
    """Serve until the process is ended; a line of the output is the address."""
    os.environ |= {"CONFIG_FILE_PATH": config, "LITELLM_LOG": "ERROR", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    # It can be imported only in its own environment, and once its settings are named.
    import uvicorn
    from litellm.proxy.proxy_server import app

    class Server(uvicorn.Server):
        async def startup(self, sockets: object = None) -> None:
            await super().startup()
            port = self.servers[0].sockets[0].getsockname()[1]
            print(f"ready: http://127.0.0.1:{port}", flush=True)

    await Server(uvicorn.Config(app, port=0, log_level="error", access_log=False)).serve()


if __name__ == "__main__":
    where = {"model": "openai/*", "api_base": f"{sys.argv[1]}/v1", "api_key": "k"}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump({"model_list": [{"model_name": "vendor/*", "litellm_params": where}]}, file)
        file.flush()
        asyncio.run(main(file.name))
