"""Attention whose lists are cut by the size of the batch: the product's own kernels, with the chunk as a parameter.

Only for measuring what the canonical order costs. A chunk's length settles the order of a row's sums, so in the product
it is a constant; here a copy of the sources is compiled in which `depth`, unused where whole chunks are a program's,
names it. The host code is the product's, with its constant and its library replaced while a call runs.
"""

import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from unittest.mock import patch

from benthic.kernels.cuda_library import CudaLibrary
from benthic.kernels.sparse_attention import cuda

_FIELD = "  int most_chunks;  // of `most_blocks`\n"
_NAMED = "  call.most_chunks = "
_MADE = "  const Call call = call_of(tensors, sizes, scale);\n"
_CUT = """\
  call.chunk = each == 0 ? depth : CHUNK_LIMIT;
  call.most_chunks = (call.most_blocks + CHUNK - 1) / CHUNK;
"""
_KEPT = ("constexpr int BLOCK", "static constexpr int STAGES", "//")
"""Starts of lines whose CHUNK is the greatest length and stays a constant."""


def free_library() -> CudaLibrary:
    """The sources of attention with `call.chunk` in the place of CHUNK; programs of scores keep the constant."""
    folder = Path(tempfile.mkdtemp(prefix="free_attention_"))
    home = Path(cuda.__file__).parent
    for source in (*home.glob("*.cuh"), home / "attend.cu"):
        (folder / source.name).write_text(_with_parameter(source.read_text()))
    whole = "".join(path.read_text() for path in sorted(folder.iterdir()))
    assert whole.count("int chunk;") == whole.count("each == 0 ? depth : ") == 1, "the sources have another form now"
    assert whole.count("call.chunk") >= 8, "a place that cuts lists was not found"
    return CudaLibrary(folder / "attend.cu")


def _with_parameter(text: str) -> str:
    text = text.replace(_FIELD, _FIELD + "  int chunk;\n")
    text = text.replace(_NAMED, "  call.chunk = CHUNK_LIMIT;\n" + _NAMED)
    text = text.replace(_MADE, _MADE.replace("const ", "") + _CUT)
    lines = [
        line if line.strip().startswith(_KEPT) else re.sub(r"\bCHUNK\b", "call.chunk", line)
        for line in text.split("\n")
    ]
    return "\n".join(lines).replace("CHUNK_LIMIT", "CHUNK")


def attend_in_chunks(call: Callable[..., object], blocks: int) -> Callable[[], object]:
    """A call of the door with lists cut into chunks of so many blocks of 64 keys, each a program's."""

    def attend() -> object:
        with (
            patch.object(cuda, "CHUNK", blocks),
            patch.object(cuda, "_kernels", _kernels),
            patch.object(cuda._Call, "schedule", lambda *_: (0, 0, blocks)),
        ):
            return call()

    return attend


@cache
def _kernels() -> Callable[..., None]:
    types = [cuda.ctypes.c_void_p] * 2 + [cuda.ctypes.c_float] + [cuda.ctypes.c_int] * 3 + [cuda.ctypes.c_void_p]
    return free_library().function("sparse_attention", types)
