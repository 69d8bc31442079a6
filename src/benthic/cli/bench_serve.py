"""`benthic bench serve`: load on a running server, or on one started for the purpose."""

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benthic.cli.options import BUNDLED, Model, Temperature
from benthic.errors import BenchError, ConfigError

if TYPE_CHECKING:
    from benthic.bench.client import HttpClient
    from benthic.bench.datasets import DatasetConfig
    from benthic.bench.load import LoadConfig, Run

_WARM_UP_SEED = 1_000_003
"""Warm-up prompts are others than the measured ones, or these would be found in the cache."""


def bench_serve(
    context: typer.Context,
    model: Model = BUNDLED,
    url: Annotated[
        str | None, typer.Option(help="A running server; without it one is started for MODEL.", show_default=False)
    ] = None,
    dataset: Annotated[str, typer.Option(help="random, shared-prefix, multi-turn or agents.")] = "random",
    sessions: Annotated[int, typer.Option(help="Sessions; requests where a session has one turn.")] = 32,
    turns: Annotated[int, typer.Option(help="Turns of a session.")] = 4,
    groups: Annotated[int, typer.Option(help="Different shared system prompts.")] = 4,
    prefix_len: Annotated[int, typer.Option(help="Tokens of a shared system prompt.")] = 512,
    input_len: Annotated[int, typer.Option(help="Tokens that a turn adds.")] = 128,
    output_len: Annotated[int, typer.Option(help="Tokens of a reply.")] = 32,
    spread: Annotated[float, typer.Option(help="Lengths vary by this share, up and down.")] = 0.0,
    rate: Annotated[float, typer.Option(help="Sessions that arrive in a second (Poisson); inf: all at once.")] = float(
        "inf"
    ),
    max_concurrency: Annotated[int | None, typer.Option(help="Requests open at once.", show_default=False)] = None,
    warm_up: Annotated[int, typer.Option(min=0, help="Requests beforehand that are not counted.")] = 2,
    temperature: Temperature = None,
    seed: Annotated[int, typer.Option(help="Of the workload and the arrivals.")] = 0,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="Goodput: first token within.", show_default=False)] = None,
    slo_tpot_ms: Annotated[float | None, typer.Option(help="Goodput: a token within.", show_default=False)] = None,
    slo_e2e_ms: Annotated[float | None, typer.Option(help="Goodput: answer within.", show_default=False)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write JSON lines: one a request, then the summary.", show_default=False)
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw a figure (.svg, .png, .pdf); needs matplotlib.")] = None,
) -> None:
    """Latencies and throughput of a server under load.

    Without --url, further options go to the server: --engine.FIELD VALUE, --server.FIELD VALUE. BENTHIC_API_KEY is
    sent as the key.
    """
    from benthic.bench.client import HttpClient
    from benthic.bench.datasets import DatasetConfig
    from benthic.bench.load import LoadConfig
    from benthic.bench.plot import check_plotting, plot_load
    from benthic.bench.records import write_lines
    from benthic.bench.summary import ServiceLevel, summarize, summary_table

    data = DatasetConfig(
        dataset=dataset, num_sessions=sessions, num_turns=turns, num_groups=groups, prefix_len=prefix_len,
        input_len=input_len, output_len=output_len, spread=spread, seed=seed,
    )  # fmt: skip
    load = LoadConfig(rate=rate, max_concurrency=max_concurrency, seed=seed)
    level = ServiceLevel(ttft_ms=slo_ttft_ms, tpot_ms=slo_tpot_ms, e2e_ms=slo_e2e_ms)
    if plot is not None:
        check_plotting(plot)
    sampling = {"temperature": temperature if temperature is not None else 0.0, "seed": seed}
    with _server(model, url, context.obj) as address:
        client = HttpClient(address, api_key=os.environ.get("BENTHIC_API_KEY"), sampling=sampling)
        run = asyncio.run(_measure(client, data, load, warm_up))
    summary = summarize(run.records, run.duration_s, level)
    typer.echo(summary_table(summary, level))
    if out is not None:
        write_lines(out, run.records, summary.to_json())
    if plot is not None and summary.num_failed < summary.num_requests:
        plot_load(plot, run.records, f"benthic bench serve --dataset {dataset}, {out or 'not kept'}")
    if summary.num_failed:
        reason = next(record.error for record in run.records if not record.is_ok)
        raise BenchError(f"{summary.num_failed} of {summary.num_requests} requests failed; the first one: {reason}")


@contextmanager
def _server(model: str, url: str | None, leaves: list[str]) -> Iterator[str]:
    from benthic.bench.launch import running_server

    if url is not None:
        if leaves:
            raise ConfigError(f"{leaves[0]} configures a server that is started here; leave it out beside --url {url}")
        yield url
        return
    typer.echo(f"starting a server of {model} ...", err=True)
    with running_server([model, *leaves]) as address:
        yield address


async def _measure(client: "HttpClient", data: "DatasetConfig", load: "LoadConfig", warm_up: int) -> "Run":
    from benthic.bench.datasets import make_sessions
    from benthic.bench.load import LoadConfig, run_load
    from benthic.bench.workload import final_histories, num_turns

    served = await client.describe()
    data = replace(data, vocab_size=served.vocab_size)
    sessions = make_sessions(data)
    longest = max(map(len, final_histories(sessions)))
    if longest > served.context_len:
        raise ConfigError(
            f"a session of this workload grows to {longest} tokens; {served.name} has a context of "
            f"{served.context_len}: fewer turns or shorter inputs fit"
        )
    if warm_up:
        before = make_sessions(replace(data, dataset="random", num_sessions=warm_up, seed=data.seed + _WARM_UP_SEED))
        await run_load(before, client, LoadConfig(max_concurrency=2))
    typer.echo(f"{num_turns(sessions)} requests to {served.name}", err=True)
    return await run_load(sessions, client, load)
