"""``trunkline login``: sign in to a provider that takes no key of its own making."""

from __future__ import annotations

from typing import Annotated

import typer

from gateway.cli.options import REFUSED, File, fail, settings_from


def login(
    provider: Annotated[str, typer.Argument(help="The provider's id, such as copilot.")],
    config: File = None,
) -> None:
    """Sign in to a provider, and keep what it gives in the data directory.

    \b
    Examples:
      trunkline login copilot
    """
    import asyncio
    import os

    from gateway.app import Gateway
    from gateway.errors import ProviderError, SettingsError
    from gateway.loader import load_plugin
    from gateway.provider import SignsIn
    from gateway.routing.keys import KeptKeys

    settings = settings_from(config)

    async def key() -> str:
        gateway = Gateway(settings, environ=os.environ)
        await gateway.registry.register(load_plugin("providers"))
        try:
            made = await gateway.providers.ready(provider)
            if isinstance(made, SignsIn):
                return await made.sign_in(typer.echo)
        finally:
            await gateway.providers.close()
            await gateway.registry.shutdown()
        variable = f"{provider.upper().replace('-', '_')}_API_KEY"
        raise SettingsError(f"{provider} has no login: set {variable}, or see [providers.{provider}]")

    try:
        path = KeptKeys(settings.data_dir).keep(provider, asyncio.run(key()))
    except SettingsError as error:
        fail(str(error), REFUSED)
    except ProviderError as error:
        fail(f"{error.name}: {error}")
    typer.echo(f"Signed in; the key is kept in {path}")
