"""`benthic eval`: accuracy on held-out prompts, through the path that serves requests."""

from typing import Annotated

import typer

from benthic.cli.assemble import ModelChoice, open_local
from benthic.cli.options import BUNDLED, Device, Dtype, Model, Numerics
from benthic.cli.serve_options import read_engine_options
from benthic.errors import ConfigError

MISSED = 1
"""Exit code when a goal is missed."""
GATE_FROM = 32
"""Questions of each task and mode from which on a missed goal is no accident."""


def evaluate(
    context: typer.Context,
    model: Model = BUNDLED,
    per_cell: Annotated[int, typer.Option(min=1, help="Questions of each task and mode.")] = 32,
    task: Annotated[list[str] | None, typer.Option(help="Only tasks whose name contains this; repeatable.")] = None,
    seed: Annotated[int, typer.Option(help="Another seed, other held-out questions.")] = 0,
    details: Annotated[bool, typer.Option("--details", help="Sub-tables and the first wrong answers.")] = False,
    gate: Annotated[
        bool | None,
        typer.Option(
            "--gate/--no-gate", help=f"Fail if any task misses its goal; from {GATE_FROM} questions on unless said."
        ),
    ] = None,
    at_once: Annotated[int, typer.Option(min=1, help="Requests that run together.")] = 32,
    device: Device = None,
    dtype: Dtype = None,
    numerics: Numerics = None,
) -> None:
    """Measure accuracy on held-out questions, task by task.

    One line for each task without thinking, and one with.
    """
    from benthic.tasks import CELLS, Reply, detail_lines, report_line
    from benthic.tasks import evaluate as examine

    cells = [cell for cell in CELLS if not task or any(part in cell.name for part in task)]
    if not cells:
        raise ConfigError(f"no task is named like {task}; the names are: {'; '.join(cell.name for cell in CELLS)}")
    if gate is None:
        gate = per_cell >= GATE_FROM
        if not gate:
            typer.echo(
                f"too few questions to fail on ({per_cell} of each task and mode, from {GATE_FROM} on); --gate does it",
                err=True,
            )
    missed = []
    engine = read_engine_options(context.obj)
    choice = ModelChoice(model=model, device=device, dtype=dtype, numerics=numerics)
    with open_local(choice, engine=engine) as local:

        def generate(bodies: list[dict[str, object]]) -> list[Reply]:
            return [Reply.from_chat_completion(reply) for reply in local.ask(bodies, at_once=at_once)]

        for result in examine(generate, per_cell=per_cell, seed=seed, cells=cells):
            typer.echo(report_line(result))
            for line in detail_lines(result) if details else ():
                typer.echo(line)
            if not result.is_met:
                missed.append(result.cell.name)
    if gate and missed:
        typer.echo(f"goals missed: {', '.join(sorted(set(missed)))}", err=True)
        raise typer.Exit(MISSED)
