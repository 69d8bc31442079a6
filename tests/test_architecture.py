"""The house keeps its shape: who may import whom, how long a file may be, where state may live.

Imports inside functions and under TYPE_CHECKING count like any other: they are how knots begin.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

BASE = frozenset({"errors", "shapes", "config", "formats", "telemetry"})
# Room -> what it may import. `models.context` admits that module (and what is below it) and not the rest of the room.
MAY_IMPORT: dict[str, frozenset[str]] = {
    "base": frozenset({"base"}),
    "kernels": frozenset({"base"}),
    "models": frozenset({"kernels", "base"}),
    "text": frozenset({"base"}),
    "parallel": frozenset({"models", "kernels", "base"}),
    "cache": frozenset({"models.beside", "models.config", "models.context", "models.rows", "kernels", "base"}),
    "engine": frozenset({"cache", "parallel", "models", "kernels", "base"}),
    "train": frozenset({"parallel", "models", "kernels", "base"}),
    "sandbox": frozenset({"base"}),
    "tasks": frozenset({"text", "base"}),
    "llm": frozenset({"engine", "text", "models", "base"}),
    "server": frozenset({"engine", "text", "base"}),
    "rl": frozenset({"engine", "train", "sandbox", "text", "base"}),
    "bench": frozenset({"engine", "cache", "models.config", "base"}),
    "doctor": frozenset({"cache", "models", "kernels", "base"}),
    "plan": frozenset({"cache", "models", "base"}),
    "cli": frozenset(
        {
            "bench",
            "plan",
            "doctor",
            "server",
            "llm",
            "tasks",
            "rl",
            "engine",
            "train",
            "sandbox",
            "text",
            "cache",
            "parallel",
        }
        | {"models", "kernels", "base"}
    ),
    "__main__": frozenset({"cli"}),
}
WITHOUT_TORCH = ("text", "tasks", "sandbox")
FILE_LIMIT = 500
FUNCTION_LIMIT = 60
# Files and functions that are longer, each with its reason.
LONG_FILES: dict[str, str] = {}
LONG_FUNCTIONS: dict[str, str] = {}

# Their vectorised and scalar tails give other bits, so a row would depend on its neighbours (docs/adr/0007).
INEXACT = frozenset(
    {"sigmoid", "silu", "softplus", "exp2", "Sigmoid", "SiLU", "Softplus", "sigmoid_", "exp2_", "silu_"}
)
EXACT_ROOMS = ("kernels", "models", "cache", "engine", "train")


@dataclass(frozen=True)
class Import:
    """One import of a module of ours or of a library: where it stands and whether it runs when the file is imported."""

    target: str
    line: int
    is_eager: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def modules() -> dict[str, Path]:
    return {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def room_of(module: str) -> str:
    part = module.split(".")[1] if "." in module else "package"
    return "base" if part in BASE else part


def lazy_nodes(tree: ast.Module) -> set[ast.AST]:
    """Everything that does not run at import: function bodies and TYPE_CHECKING blocks."""
    lazy: set[ast.AST] = set()
    for node in ast.walk(tree):
        is_type_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        if is_type_only or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lazy.update(ast.walk(node))
    return lazy


def targets_of(node: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        anchor = module.split(".") if is_package else module.split(".")[:-1]
        prefix = ".".join(anchor[: len(anchor) - node.level + 1]) + "." if node.level else ""
        source = (prefix + (node.module or "")).rstrip(".")
        for alias in node.names:
            inner = f"{source}.{alias.name}"
            yield inner if inner in modules() or source == "benthic" else source


@cache
def imports_of(module: str) -> tuple[Import, ...]:
    path = modules()[module]
    tree = tree_of(path)
    lazy = lazy_nodes(tree)
    return tuple(
        Import(target, node.lineno, node not in lazy)
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for target in targets_of(node, module, path.name == "__init__.py")
    )


def is_allowed(importer: str, target: str) -> bool:
    room, target_room = room_of(importer), room_of(target)
    if room == target_room or target == "benthic.__version__" or room == "package":
        return True
    allowed = MAY_IMPORT[room]
    inner = target.removeprefix("benthic.")
    return target_room in allowed or any(
        inner == name or inner.startswith(name + ".") for name in allowed if "." in name
    )


def place(module: str, line: int) -> str:
    return f"{modules()[module].relative_to(ROOT)}:{line}"


def test_every_room_has_a_line_in_the_import_table() -> None:
    rooms = {room_of(module) for module in modules()} - {"package"}
    assert rooms <= MAY_IMPORT.keys()


def test_imports_point_down_the_table() -> None:
    wrong = [
        f"{place(module, item.line)} imports {item.target}; {room_of(module)} may not"
        for module in modules()
        for item in imports_of(module)
        if item.target.split(".")[0] == "benthic" and not is_allowed(module, item.target)
    ]
    assert not wrong, "\n".join(wrong)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(graph.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            start = stack.index(node)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def module_graph() -> dict[str, set[str]]:
    return {
        module: {item.target for item in imports_of(module) if item.target in modules()} - {module}
        for module in modules()
        if module != "benthic"  # the front door names everybody, lazily
    }


def test_modules_form_no_cycle() -> None:
    assert cycles(module_graph()) == []


def test_rooms_form_no_cycle() -> None:
    graph: dict[str, set[str]] = {}
    for module, targets in module_graph().items():
        graph.setdefault(room_of(module), set()).update(room_of(target) for target in targets if target != "benthic")
    assert cycles({room: targets - {room} for room, targets in graph.items()}) == []


def test_the_cycle_finder_finds_a_cycle() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def eager_closure(start: str) -> dict[str, str]:
    """All that importing `start` imports, each with the module that asked for it."""
    reached: dict[str, str] = {}
    todo = [start]
    while todo:
        module = todo.pop()
        parents = [".".join(module.split(".")[:depth]) for depth in range(1, module.count(".") + 1)]
        for target in [*parents, *(item.target for item in imports_of(module) if item.is_eager)]:
            if target not in reached:
                reached[target] = module
                if target in modules():
                    todo.append(target)
    return reached


def test_text_tasks_and_sandbox_never_name_torch() -> None:
    wrong = [
        f"{place(module, item.line)} imports {item.target}"
        for module in modules()
        if room_of(module) in WITHOUT_TORCH
        for item in imports_of(module)
        if item.target.split(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_the_package_text_tasks_sandbox_or_the_command_line_never_loads_torch() -> None:
    wrong = [
        f"{module}: torch comes in through {reached}"
        for module in modules()
        if room_of(module) in (*WITHOUT_TORCH, "package", "cli", "__main__")
        for target, reached in eager_closure(module).items()
        if target.split(".")[0] == "torch"
    ]
    assert not wrong, "\n".join(wrong)


def test_weights_are_never_unpickled() -> None:
    wrong = [
        place(module, item.line)
        for module in modules()
        for item in imports_of(module)
        if item.target.split(".")[0] in {"pickle", "cloudpickle", "dill", "joblib", "transformers"}
    ]
    assert not wrong, "\n".join(wrong)


def python_files() -> list[Path]:
    return [
        path
        for folder in ("src", "tests", "benchmarks", "scripts", "examples")
        for path in (ROOT / folder).rglob("*.py")
    ]


def test_files_stay_under_the_limit() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files()}
    assert {name: n for name, n in lengths.items() if n > FILE_LIMIT and name not in LONG_FILES} == {}


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from `def` to the end, the docstring not counted."""
    total = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return total - ((first.end_lineno or first.lineno) - first.lineno + 1) * has_docstring


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree_of(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_functions_stay_under_the_limit() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{function.name}": code_lines(function)
        for path in python_files()
        for function in functions_of(path)
        if code_lines(function) > FUNCTION_LIMIT
    }
    assert {name: n for name, n in long.items() if name not in LONG_FUNCTIONS} == {}


def test_exceptions_to_the_limits_are_still_needed() -> None:
    assert all((ROOT / name).exists() for name in LONG_FILES)
    assert all((ROOT / name.split(":")[0]).exists() for name in LONG_FUNCTIONS)


def is_reexport(node: ast.stmt) -> bool:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]


INITS = [path for path in sorted(SOURCE.rglob("__init__.py")) if path.parent.name != "benthic"]


@pytest.mark.parametrize("path", INITS, ids=lambda path: str(path.parent.relative_to(SOURCE)))
def test_init_files_only_reexport_with_a_sorted_list_of_names(path: Path) -> None:
    body = tree_of(path).body
    assert all(is_reexport(node) for node in body), "code belongs into a module with a name"
    exported = [ast.literal_eval(node.value) for node in body if isinstance(node, ast.Assign)]
    imported = [alias.asname or alias.name for node in body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(imported) == sorted(name for names in exported for name in names)
    assert all(list(names) == sorted(names) for names in exported)


MUTABLE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
MUTABLE_CALLS = {"list", "dict", "set", "defaultdict", "deque", "OrderedDict", "Counter", "bytearray"}
MUTATING_CALL = re.compile(
    r"(?P<name>\w+)\.(append|extend|insert|update|setdefault|pop|popitem|clear|add|remove|discard)"
)


def module_variables(tree: ast.Module) -> Iterator[tuple[str, ast.expr, int]]:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None:
            yield from ((target.id, value, node.lineno) for target in targets if isinstance(target, ast.Name))


def is_mutable(value: ast.expr) -> bool:
    is_call = isinstance(value, ast.Call) and ast.unparse(value.func).split(".")[-1] in MUTABLE_CALLS
    return isinstance(value, MUTABLE) or is_call


def mutated_names(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names whose value is changed in place, and names declared global."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from ((name, node.lineno) for name in node.names)
        elif (
            isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name)
        ):
            yield node.value.id, node.lineno
        elif isinstance(node, ast.Call) and (match := MUTATING_CALL.fullmatch(ast.unparse(node.func))):
            yield match["name"], node.lineno


@pytest.mark.parametrize("module", modules())
def test_modules_hold_no_mutable_state(module: str) -> None:
    tree = tree_of(modules()[module])
    variables = {name: (value, line) for name, value, line in module_variables(tree)}
    loose = [
        f"{place(module, line)} {name}: a table is written in capitals, everything else belongs to an object"
        for name, (value, line) in variables.items()
        if is_mutable(value) and not name.strip("_").isupper() and name != "__all__"
    ]
    tables = {name for name in variables if name.strip("_").isupper()}
    changed = [f"{place(module, line)} changes {name}" for name, line in mutated_names(tree) if name in tables]
    declared = [
        f"{place(module, node.lineno)} declares a global" for node in ast.walk(tree) if isinstance(node, ast.Global)
    ]
    assert not loose + changed + declared, "\n".join(loose + changed + declared)


SAFE_OWNERS = {"math", "np", "numpy", "tl"}


def inexact_calls(tree: ast.Module) -> Iterator[tuple[str, int]]:
    ours = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benthic")
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in INEXACT:
            owner = node.value.id if isinstance(node.value, ast.Name) else ""
            if owner not in SAFE_OWNERS | ours:
                yield ast.unparse(node), node.lineno
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            yield from ((alias.name, node.lineno) for alias in node.names if alias.name in INEXACT)


def test_functions_whose_bits_depend_on_neighbours_are_not_called() -> None:
    wrong = [
        f"{place(module, line)} {name}: use the exact form of kernels/precision.py"
        for module in modules()
        if room_of(module) in EXACT_ROOMS and module != "benthic.kernels.precision"  # the one place, for CUDA
        for name, line in inexact_calls(tree_of(modules()[module]))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_inexact_call_finder_finds_each_form() -> None:
    text = "from torch import exp2\ny = torch.sigmoid(x)\nz = F.silu(x)\nw = x.sigmoid()\nok = math.exp2(3)\n"
    assert [line for _, line in inexact_calls(ast.parse(text))] == [1, 2, 3, 4]


FORBIDDEN_NAMES = {"utils", "helpers", "common", "misc", "util", "helper"}


def test_no_file_is_named_after_nothing() -> None:
    assert [str(path) for path in modules().values() if FORBIDDEN_NAMES & {path.stem, path.parent.name}] == []


@pytest.mark.parametrize("module", modules())
def test_every_module_says_what_it_is_for(module: str) -> None:
    path = modules()[module]
    assert ast.get_docstring(tree_of(path)) or (path.name == "__init__.py" and not path.read_text().strip())
