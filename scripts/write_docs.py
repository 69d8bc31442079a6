"""Writes the generated parts of the documentation: the file tree of docs/architecture.md, docs/configuration.md.

`python scripts/write_docs.py` (or `make docs`) rewrites them; `tests/test_docs.py` compares them with the repository.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "benthic"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
CONFIGURATION = ROOT / "docs" / "configuration.md"
BEGIN, END = "<!-- tree: written by scripts/write_docs.py -->", "<!-- end of tree -->"
WIDTH = 118


def summary(path: Path) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    first = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=[\w`)])\.(?: |$)", first, maxsplit=1)[0]


def tree_line(indent: int, name: str, text: str) -> str:
    line = f"{'  ' * indent}{name}".ljust(30) + " " + text
    if len(line) > WIDTH:
        clauses = [match.start() for match in re.finditer(r"[,:;(] ?", line) if 50 < match.start() <= WIDTH]
        line = line[: clauses[-1]] if clauses else line[: WIDTH - 4].rsplit(" ", 1)[0] + " ..."
    return line.rstrip()


def tree_lines(folder: Path, indent: int = 0) -> Iterator[str]:
    """The files of a folder, then its folders; a kernel's folder is one line, since all hold the same pieces."""
    for path in sorted(folder.glob("*.py")):
        if path.name != "__init__.py":
            yield tree_line(indent, path.name, summary(path))
    for inner in sorted(path for path in folder.iterdir() if (path / "__init__.py").exists()):
        yield tree_line(indent, inner.name + "/", summary(inner / "__init__.py"))
        if folder.name != "kernels":
            yield from tree_lines(inner, indent + 1)
        else:
            yield tree_line(
                indent + 1, ", ".join(sorted(p.stem for p in inner.glob("*.py") if p.stem != "__init__")), ""
            )


def render_tree() -> str:
    return "```\nsrc/benthic/\n" + "\n".join(tree_lines(PACKAGE, 1)) + "\n```\n"


def with_tree(text: str) -> str:
    """`text` with the part between the marks replaced."""
    head, rest = text.split(BEGIN)
    return f"{head}{BEGIN}\n{render_tree()}{END}{rest.split(END)[1]}"


def config_files() -> list[Path]:
    return sorted(path for path in PACKAGE.glob("*/config.py") if path.parent.name != "models")


def config_rows(node: ast.ClassDef) -> Iterator[str]:
    """One table row a field: name, type, default, and the sentence that stands under it."""
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
            continue
        is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        sentence = " ".join(str(ast.literal_eval(after.value)).split()) if is_text else ""
        default = f"`{ast.unparse(field.value)}`" if field.value else "required"
        if "default_factory" in default:
            default, sentence = "its defaults", sentence or "A table of its own, below or beside."
        cells = [f"`{field.target.id}`", f"`{ast.unparse(field.annotation)}`", default, sentence]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def render_configuration() -> str:
    lines = ["# Configuration", "", CONFIGURATION_INTRODUCTION.strip()]
    for path in config_files():
        for node in ast.parse(path.read_text()).body:
            is_config = isinstance(node, ast.ClassDef) and any(
                "dataclass" in ast.unparse(d) for d in node.decorator_list
            )
            if not is_config or not (rows := list(config_rows(node))):
                continue
            lines += ["", f"## {node.name} (`{path.relative_to(ROOT / 'src')}`)", ""]
            lines += [" ".join((ast.get_docstring(node) or "").split("\n\n")[0].split()), ""]
            lines += ["| field | type | default | meaning |", "| --- | --- | --- | --- |", *rows]
    return "\n".join(lines) + "\n"


CONFIGURATION_INTRODUCTION = """
Written by `scripts/write_docs.py` from the dataclasses themselves.

A configuration is a TOML file whose tables mirror the nesting of the dataclasses; on the command line, single leaves
are overridden by their full name (`--optimizer.lr 1e-3`). Unknown keys are errors.
"""


if __name__ == "__main__":
    ARCHITECTURE.write_text(with_tree(ARCHITECTURE.read_text()))
    CONFIGURATION.write_text(render_configuration())
