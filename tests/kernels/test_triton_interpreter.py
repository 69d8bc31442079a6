"""Triton kernels without a GPU: in Triton's interpreter, in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("triton")
pytestmark = pytest.mark.nightly  # a minute and a half of interpreting
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) >= "2.4.0", reason="the interpreter of Triton 3.6 needs an older numpy"
)
def test_attention_and_index_scores_are_near_float64_in_the_interpreter() -> None:
    path = f"{ROOT / 'src'}{os.pathsep}{ROOT}"
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": path}
    script = [sys.executable, "-m", "tests.kernels.interpreted_attention"]
    done = subprocess.run(script, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
