"""What each kernel may take, as stored in budget.json; `python -m tests.kernels.gate.budget` writes it anew.

A kernel may spill and hold in shared memory no more than it did when its budget was written by intent, and may not
hold fewer instructions of Hopper's tensor cores: one of two products that leaves them is seen. Shared memory of CUDA
C++ that a launch asks for is not known to the compiler and is not compared; the launch itself refuses too much.

Every kernel of the package is in the budget, and every budget is that of a kernel which is still built.
"""

import ast
import importlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benthic.kernels.cuda_library import CudaLibrary
from tests.kernels.gate.compiling import Built, cuda_builds, triton_builds

FOLDER = Path(__file__).parent
STORED = FOLDER / "budget.json"
KERNELS = FOLDER.parents[2] / "src" / "benthic" / "kernels"
MOST_SHARED_BYTES = 227 * 1024
"""Of one program on Hopper."""
NOT_OPERATIONS = {"compiling", "budget", "test_gate"}


def launchers() -> Iterator[tuple[str, Callable[[], object]]]:
    """(name, launch) of every production configuration; one file of this folder an operation."""
    for file in sorted(FOLDER.glob("*.py")):
        if file.stem not in NOT_OPERATIONS:
            for case, launch in importlib.import_module(f"tests.kernels.gate.{file.stem}").production():
                yield f"{file.stem} {case}", launch


def sources() -> list[CudaLibrary]:
    """Every CUDA C++ source."""
    return [CudaLibrary(path) for path in sorted(KERNELS.rglob("*.cu"))]


def violations(built: Built, stored: dict[str, dict[str, int]]) -> list[str]:
    """What a build does that its budget does not allow, in words."""
    budget = stored.get(built.name)
    if budget is None:
        return [f"{built.name} has no budget: run python -m tests.kernels.gate.budget and look at what it writes"]
    found = []
    if built.spill_bytes > budget["spill_bytes"]:
        found.append(f"{built.name} spills {built.spill_bytes} bytes a thread; {budget['spill_bytes']} are allowed")
    limit = min(budget["shared_bytes"], MOST_SHARED_BYTES)
    if built.shared_bytes > limit:
        found.append(f"{built.name} takes {built.shared_bytes} bytes of shared memory; {limit} are allowed")
    if built.num_wgmma < budget["num_wgmma"]:
        found.append(
            f"{built.name} has {built.num_wgmma} wgmma where its budget has {budget['num_wgmma']}: a product left "
            "Hopper's tensor cores, or is unrolled less"
        )
    return found


def unbuilt(name: str, builds: Sequence[Built], stored: dict[str, dict[str, int]]) -> list[str]:
    """Kernels that a configuration or source had in the budget and has no more."""
    return sorted({key for key in stored if key.startswith(f"{name}: ")} - {built.name for built in builds})


def abandoned(stored: dict[str, dict[str, int]]) -> list[str]:
    """Budgets of configurations and sources that are not there: nothing is compared with them."""
    there = {name for name, _ in launchers()} | {library.source.name for library in sources()}
    return sorted(key for key in stored if key.rpartition(": ")[0] not in there)


def kernels_of_the_package() -> set[str]:
    """Names of Triton functions that are launched: those which no other Triton function calls."""
    defined, called = set(), set()
    for path in KERNELS.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and any("triton.jit" in ast.unparse(d) for d in node.decorator_list):
                defined.add(node.name)
                inner = [one.func for one in ast.walk(node) if isinstance(one, ast.Call)]
                called |= {one.id for one in inner if isinstance(one, ast.Name)}
    return defined - called


def stored_budget() -> dict[str, dict[str, int]]:
    """Name of a kernel -> its limits."""
    budget: dict[str, dict[str, int]] = json.loads(STORED.read_text()) if STORED.exists() else {}
    return budget


def write(only: str = "") -> None:
    """Compiles what starts with `only` and stores what it takes."""
    budget = {name: limits for name, limits in stored_budget().items() if only and not name.startswith(only)}
    builds = [built for name, launch in launchers() if name.startswith(only) for built in triton_builds(name, launch)]
    builds += [built for library in sources() if library.source.name.startswith(only) for built in cuda_builds(library)]
    for built in builds:
        print(built)
        budget[built.name] = {
            "spill_bytes": built.spill_bytes,
            "shared_bytes": built.shared_bytes,
            "num_wgmma": built.num_wgmma,
        }
    STORED.write_text(json.dumps(dict(sorted(budget.items())), indent=1) + "\n")


if __name__ == "__main__":
    write(*sys.argv[1:])
