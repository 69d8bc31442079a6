"""Init's program: compiled once, without a warning, small, and named by what it was made from."""

import shutil
import subprocess
from pathlib import Path

import pytest

from benthic.sandbox.errors import StartFailed
from benthic.sandbox.guest.build import FLAGS, SOURCES, _key, build_init

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


def test_init_is_compiled_once_and_found_again(tmp_path: Path) -> None:
    try:
        program = build_init(folder=tmp_path)
    except StartFailed as error:
        pytest.skip(str(error))
    before = program.stat()
    assert build_init(folder=tmp_path) == program
    assert program.stat().st_mtime_ns == before.st_mtime_ns
    assert before.st_size < 1 << 20
    assert [path.name for path in tmp_path.iterdir()] == [program.name]
    assert subprocess.run([program], capture_output=True, check=False).returncode == 2


def test_other_flags_or_another_compiler_make_another_program() -> None:
    assert len({_key("/bin/sh", FLAGS), _key("/bin/sh", (*FLAGS, "-DX")), _key("/bin/ls", FLAGS)}) == 3


@pytest.mark.parametrize("compiler", ["gcc", "musl-gcc", "clang"])
def test_every_compiler_is_content(compiler: str) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler} here")
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    done = subprocess.run(
        [compiler, *flags, *map(str, sorted(SOURCES.glob("*.c")))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_missing_compiler_is_named_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="install Debian's musl-tools") as caught:
        build_init(compiler="no-such-compiler", folder=tmp_path)
    assert caught.value.stage == "compile init"


@needs_gcc
def test_a_refused_source_shows_what_the_compiler_says(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="no-such-flag"):
        build_init(compiler="gcc", flags=(*FLAGS, "--no-such-flag"), folder=tmp_path)


def test_sources_keep_to_the_length_of_files() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in SOURCES.glob("*.[ch]")}
    assert {name: lines for name, lines in lengths.items() if lines > 500} == {}
