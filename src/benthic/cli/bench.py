"""`benthic bench`: how fast an engine is in this process, how a server holds under load, what a cache remembers."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from benthic.cli.bench_serve import bench_serve
from benthic.cli.compiling import compilation_notice
from benthic.cli.options import BUNDLED, Device, Dtype, Model, Numerics
from benthic.cli.serve_options import read_engine_options
from benthic.errors import ConfigError

Out = Annotated[Path | None, typer.Option(help="Write JSON lines: one a result.", show_default=False)]
Plot = Annotated[Path | None, typer.Option(help="Draw a figure (.svg, .png, .pdf); needs matplotlib.")]

bench = typer.Typer(
    name="bench",
    help="Measure throughput, a server under load, and prefix reuse.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
bench.command("serve")(bench_serve)


@bench.command("offline")
def bench_offline(
    context: typer.Context,
    model: Model = BUNDLED,
    batch: Annotated[str, typer.Option(help="Requests at once: numbers with commas between.")] = "1,8,32",
    prompt_len: Annotated[int, typer.Option(help="Tokens of each prompt.")] = 128,
    output_len: Annotated[int, typer.Option(help="Tokens of each answer.")] = 64,
    repeats: Annotated[int, typer.Option(help="Runs of each batch; the median counts.")] = 3,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    out: Out = None,
    plot: Plot = None,
    device: Device = None,
    dtype: Dtype = None,
    numerics: Numerics = None,
) -> None:
    """Throughput of the engine in this process, without HTTP.

    Further options: --engine.FIELD VALUE (max_num_seqs, drafter, prefix_cache, ...).
    """
    from benthic.bench.hardware import hardware_line
    from benthic.bench.offline import HEADER, OfflineConfig, measure, report_line
    from benthic.bench.plot import check_plotting, plot_throughput

    config = OfflineConfig(
        batches=_numbers("--batch", batch), prompt_len=prompt_len, output_len=output_len, repeats=repeats, seed=seed
    )
    engine = read_engine_options(context.obj)
    if plot is not None:
        check_plotting(plot)
    from benthic.llm import LLM

    where: dict[str, Any] = {"device": device, "dtype": dtype, "numerics": numerics}
    with compilation_notice(), LLM(model, **where, **asdict(engine)) as llm:
        typer.echo(hardware_line(llm.model.device))
        typer.echo(HEADER)
        results = []
        for result in measure(llm, config, llm.model.config.vocab_size):
            results.append(result)
            typer.echo(report_line(result, results[0]))
    _write(out, [asdict(result) for result in results])
    if plot is not None:
        plot_throughput(plot, results, f"benthic bench offline {model}, {out or 'not kept'}")


@bench.command("cache")
def bench_cache(
    model: Annotated[
        str, typer.Argument(help="Whose cache: a folder, a bundled name, deepseek-v4-flash.", metavar="MODEL")
    ] = BUNDLED,
    workload: Annotated[str, typer.Option(help="agents, multi-turn, shared-prefix or random.")] = "agents",
    policies: Annotated[
        str, typer.Option(help="Retention policies to compare.")
    ] = "boundaries,every_page,interval,none",
    sessions: Annotated[int, typer.Option(help="Sessions of the workload.")] = 40,
    turns: Annotated[int, typer.Option(help="Turns of each.")] = 30,
    prefix_len: Annotated[int, typer.Option(help="Tokens of a shared system prompt.")] = 6000,
    groups: Annotated[int, typer.Option(help="Different system prompts.")] = 2,
    input_len: Annotated[int, typer.Option(help="Tokens that a turn adds, about.")] = 400,
    output_len: Annotated[int, typer.Option(help="Tokens of a reply, about.")] = 150,
    pool: Annotated[float, typer.Option(help="Size of the pool, in live sets.")] = 1.5,
    running: Annotated[int, typer.Option(help="Requests at once.")] = 8,
    page_size: Annotated[int, typer.Option(help="Tokens of a page.")] = 128,
    interval: Annotated[int, typer.Option(help="Tokens between windows of the policies with an interval.")] = 8192,
    seed: Annotated[int, typer.Option(help="Of the workload.")] = 0,
    out: Out = None,
    plot: Plot = None,
) -> None:
    """What prompts find in the cache, by retention policy: compressed entries, and how far they are usable.

    The cache's own bookkeeping runs, without a model: token ids in, matches out.
    """
    from benthic.bench.datasets import DatasetConfig, make_sessions
    from benthic.bench.plot import check_plotting, plot_replays
    from benthic.bench.replay import ReplayConfig, replay, replay_header, replay_line
    from benthic.cache.geometry import geometry
    from benthic.models.checkpoint import inspect as inspect_checkpoint

    config = DatasetConfig(
        dataset=workload, num_sessions=sessions, num_turns=turns, num_groups=groups, prefix_len=prefix_len,
        input_len=input_len, output_len=output_len, spread=0.5, seed=seed,
    )  # fmt: skip
    how = ReplayConfig(max_running=running, pool=pool, retention_interval=interval, seed=seed)
    if plot is not None:
        check_plotting(plot)
    shape = geometry(inspect_checkpoint(model).config, page_size=page_size)
    load = make_sessions(config)
    replays = []
    for name in policies.split(","):
        replays.append(replay(load, shape, name.strip(), how))
        if len(replays) == 1:
            typer.echo(replay_header(replays[0]))
        typer.echo(replay_line(replays[-1]))
    _write(out, [{"retention": one.retention, **asdict(hit)} for one in replays for hit in one.hits])
    if plot is not None:
        plot_replays(plot, replays, f"benthic bench cache {model} --workload {workload}, {out or 'not kept'}")


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{option} is {text!r}; it must be numbers with commas between, such as 1,8,32") from None


def _write(path: Path | None, lines: list[dict[str, Any]]) -> None:
    if path is not None:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
