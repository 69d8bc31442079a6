"""`benthic train`: run a recipe to its end, or go on where an interrupted run stopped."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from benthic.errors import ConfigError

if TYPE_CHECKING:
    from benthic.models.transformer import Transformer
    from benthic.train import GeneratedSource, HeldOutAccuracy, TrainConfig


def train(
    context: typer.Context,
    recipe: Annotated[Path, typer.Argument(help="A TOML file such as recipes/tiny.toml.")],
    changes: Annotated[
        list[str] | None, typer.Option("--set", help="Change one field: NAME=VALUE; repeatable.", metavar="NAME=VALUE")
    ] = None,
    data: Annotated[Path, typer.Option(help="Folder of the text that scripts/prepare_text.py collects.")] = Path(
        ".data"
    ),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the run's settings and parameters, and stop.")
    ] = False,
) -> None:
    """Train a model from a recipe. --FIELD.LEAF VALUE changes a nested field, as --schedule.peak 1e-3."""
    from benthic.cli.compiling import compilation_notice
    from benthic.cli.documents import check_documents
    from benthic.config import parse_overrides, read_config, to_toml
    from benthic.train import TrainConfig, Trainer, format_split, split_parameters

    config = read_config(TrainConfig, recipe, [*(changes or []), *parse_overrides(context.obj)])
    folder = _config_folder(config.model)
    check_documents(config.stages, data)
    with compilation_notice():
        model = _initial_model(config, folder)
    typer.echo(to_toml(config))
    typer.echo(format_split(split_parameters(model.named_parameters(), model.config)))
    if dry_run:
        return
    sources = _sources(config, folder, data, num_mtp=len(model.mtp))
    questions = _held_out(folder, per_cell=64 if model.device.type == "cuda" else 4)
    trainer = Trainer(model, sources, config, questions, report=typer.echo)
    trainer.run()
    _add_companions(folder, Path(config.output) / "final")


def _config_folder(name: str) -> Path:
    """The folder of config.json and tokenizer; a bundled name may have no weights yet."""
    from importlib import resources

    from benthic.models.checkpoint.load import BUNDLED, nearest_name

    bundled = Path(str(resources.files("benthic"))) / "assets" / name
    folder = Path(name) if Path(name).is_dir() else bundled
    if not name or not (folder / "config.json").is_file():
        raise ConfigError(
            f"model is {name!r}; {nearest_name(name, BUNDLED)}it must be a folder with config.json, or a bundled model "
            f"({', '.join(BUNDLED)})"
        )
    return folder


def _initial_model(config: "TrainConfig", folder: Path) -> "Transformer":
    import torch

    from benthic.models.checkpoint import dummy_model, load_model
    from benthic.models.checkpoint.placement import chosen_device
    from benthic.models.config import ModelConfig

    device = None if config.device == "auto" else chosen_device(config.device)
    dtype = {"auto": None, "float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    if config.init_from:
        return load_model(
            config.init_from, device=device, dtype=dtype, numerics=config.numerics, weight_dtype=torch.float32
        )
    return dummy_model(
        ModelConfig.from_json(folder),
        config.seed,
        device=device,
        dtype=dtype,
        numerics=config.numerics,
        weight_dtype=torch.float32,
    )


def _sources(config: "TrainConfig", folder: Path, data: Path, *, num_mtp: int) -> "dict[str, GeneratedSource]":
    from benthic.cli.documents import TaskDocuments
    from benthic.train import GeneratedSource

    return {
        name: GeneratedSource(
            TaskDocuments(stage.mixture, tokenizer=folder / "tokenizer.json", data=data, max_len=stage.max_len),
            stage.layout(num_mtp),
            seed=config.seed + stage.seed,
        )
        for name, stage in config.stages.items()
    }


def _held_out(folder: Path, per_cell: int) -> "HeldOutAccuracy":
    """Questions for the curves of a run; `benthic eval` is the examination proper."""
    from benthic.cli.documents import held_out_documents
    from benthic.train import HeldOutAccuracy, Layout

    layout = Layout(budget=16384, max_blocks=512, max_len=2048)
    return HeldOutAccuracy(held_out_documents(folder / "tokenizer.json", per_cell), layout)


def _add_companions(folder: Path, final: Path) -> None:
    """What a served model needs beside its weights."""
    import shutil

    from benthic.models.checkpoint.write import companion_files

    for path in companion_files(folder):
        shutil.copyfile(path, final / path.name)
