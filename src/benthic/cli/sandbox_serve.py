"""`benthic sandbox serve`: this machine as a host of a fleet, or the fleet's gateway."""

import os
from pathlib import Path
from typing import Annotated

import typer

from benthic.cli.sandbox_images import STATE_ROOT
from benthic.errors import ConfigError

TOKEN_VARIABLE = "BENTHIC_SANDBOX_TOKEN"


def serve(
    listen: Annotated[
        str, typer.Option(help="http://address:port, or unix:/path/of/socket.")
    ] = "http://127.0.0.1:8100",
    is_gateway: Annotated[bool, typer.Option("--as-gateway", help="Be the door of a fleet, not a host.")] = False,
    gateway: Annotated[str | None, typer.Option(help="The gateway that this host belongs to.")] = None,
    name: Annotated[str | None, typer.Option(help="Of this host, in the fleet.", show_default="host name")] = None,
    url: Annotated[str | None, typer.Option(help="Where the gateway reaches this host.", show_default="listen")] = None,
    max_sandboxes: Annotated[int, typer.Option(help="Alive at once on this host.", min=1)] = 3200,
    is_open: Annotated[bool, typer.Option("--open", help="Gateway: let clients in without a token.")] = False,
    warm_clones: Annotated[
        int, typer.Option(min=0, help="Virtual machines of each kind kept ready for the next starts.")
    ] = 0,
    clear_every: Annotated[float, typer.Option(min=0, help="Seconds between clearings of garbage; 0: never.")] = 3600,
    root: Annotated[Path, typer.Option(help="Where this machine keeps its sandboxes' state.")] = STATE_ROOT,
) -> None:
    """Serve sandboxes over HTTP until asked to end; sandboxes live on and are taken over by the next one.

    The fleet's secret is $BENTHIC_SANDBOX_TOKEN, or else the file fleet-token below the state folder, which is made.
    """
    import asyncio
    import socket

    from benthic.sandbox.fleet import AgentConfig, GatewayConfig
    from benthic.sandbox.fleet.launch import fleet_token, run_agent, run_gateway
    from benthic.sandbox.probe import all_drivers
    from benthic.telemetry import log_to_stderr

    log_to_stderr("text")
    folder = root.expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    token = os.environ.get(TOKEN_VARIABLE) or fleet_token(folder / "fleet-token")
    if is_gateway:
        if gateway is not None:
            raise ConfigError(f"--gateway ({gateway}) is for hosts; a gateway has none above it")
        config = GatewayConfig(listen=listen, state=folder / "gateway.sqlite", token=token, is_open=is_open)
        asyncio.run(run_gateway(config))
        return
    host = AgentConfig(
        listen=listen,
        name=name or socket.gethostname(),
        url=url,
        gateway=gateway,
        token=token,
        state_root=folder,
        max_sandboxes=max_sandboxes,
        clear_every_s=clear_every,
    )
    asyncio.run(run_agent(host, all_drivers(folder, warm_clones=warm_clones)))
