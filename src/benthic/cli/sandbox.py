"""`benthic sandbox`: sandboxes for agents on this machine."""

import typer

from benthic.cli.sandbox_images import image

sandbox = typer.Typer(
    name="sandbox",
    help="Sandboxes for agents: what this machine can do, images, running commands.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
sandbox.add_typer(image)
