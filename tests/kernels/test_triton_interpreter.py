"""Triton kernels without a GPU: the tests of tests/kernels/test_*_interpreted.py in a process of their own.

Triton reads TRITON_INTERPRET when it is imported, so these tests skip themselves in any other process.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
ROOT = Path(__file__).resolve().parents[2]
needs_older_numpy = pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) >= "2.4.0", reason="the interpreter of Triton 3.6 needs an older numpy"
)


@needs_older_numpy
@pytest.mark.timeout(600)
def test_kernels_keep_to_their_references_in_the_interpreter() -> None:
    files = sorted(str(path) for path in Path(__file__).parent.glob("test_*_interpreted.py"))
    done = _interpreted([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files])
    assert files == [] or done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]


@needs_older_numpy
@pytest.mark.nightly  # a minute and a half of interpreting
def test_attention_and_index_scores_are_near_float64_in_the_interpreter() -> None:
    done = _interpreted([sys.executable, "-m", "tests.kernels.interpreted_attention"])
    assert done.returncode == 0, done.stderr[-3000:]


def _interpreted(command: list[str]) -> subprocess.CompletedProcess[str]:
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
