"""`benthic doctor`: what works on this machine, what limits it, and how to mend it."""

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benthic.cli.options import BUNDLED, Device

if TYPE_CHECKING:
    from benthic.doctor import Finding

_QUESTION = "What is 347 + 285?"
_COLOURS = {"ok": typer.colors.GREEN, "limit": typer.colors.YELLOW, "broken": typer.colors.RED}
_CONCLUSIONS = {
    "ok": "everything works",
    "limit": "everything that is needed works; the lines marked limit say what would make it better",
    "broken": "something that is needed does not work; the lines marked broken say how to mend it",
}


def doctor(
    model: Annotated[
        str, typer.Argument(help="Whether this model fits here: a checkpoint folder or a name.", metavar="MODEL")
    ] = BUNDLED,
    answer: Annotated[bool, typer.Option("--answer", help="Also load the model and have it answer once.")] = False,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Look at the machine, the libraries, the kernels, the GPUs and a model.

    The exit code is 1 if something that Benthic needs is broken, and 0 if there are limits alone.
    """
    from benthic.doctor import examine, worst

    findings: list[Finding] = []
    for finding in examine(model):
        findings.append(finding)
        if not as_json:
            _print(finding)
    if answer:
        findings.append(_answered(model, device))
        if not as_json:
            _print(findings[-1])
    verdict = worst(findings)
    if as_json:
        typer.echo(json.dumps({"verdict": verdict, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        typer.echo(f"\n{_CONCLUSIONS[verdict]}")
    if verdict == "broken":
        raise typer.Exit(1)


def _print(finding: "Finding") -> None:
    verdict = typer.style(f"{finding.verdict:<7}", fg=_COLOURS[finding.verdict])
    typer.echo(f"{verdict} {finding.name:<16} {finding.found}")
    if finding.remedy:
        typer.echo(f"{'':<24} -> {finding.remedy}")


def _answered(model: str, device: str | None) -> "Finding":
    """The whole way of a request, in this process."""
    from benthic.cli.assemble import ModelChoice, open_local
    from benthic.doctor import Finding

    began_s = time.monotonic()
    body: dict[str, Any] = {"messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64, "temperature": 0}
    try:
        with open_local(ModelChoice(model=model, device=device)) as local:
            loaded_s = time.monotonic()
            [reply] = local.ask([body], at_once=1)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what was asked for
        remedy = "the lines above may say why; else report it"
        return Finding("answer", "broken", f"{type(error).__name__}: {' '.join(str(error).split())}", remedy)
    seconds = f"{time.monotonic() - loaded_s:.2f} s, after {loaded_s - began_s:.1f} s of loading"
    return Finding("answer", "ok", f"{reply['usage']['completion_tokens']} tokens in {seconds}")
