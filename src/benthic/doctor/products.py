"""Whether the CPU computes as it must: kernels compile and agree with their meaning, and products are exact."""

import os
from pathlib import Path

from benthic.doctor.finding import Finding
from benthic.errors import ExactnessError

_PACKAGE = Path(__file__).resolve().parents[1]
_SHAPES = ((256, 256), (64, 256), (1024, 256), (256, 1024))
"""[outputs, inputs] of weights like the bundled model's."""


def product_findings() -> list[Finding]:
    """Compiled kernels, their cache, and exactness."""
    return [kernel_finding(), kernel_cache_finding(), exactness_finding()]


def kernel_finding() -> Finding:
    """One CPU kernel, compiled and compared with plain PyTorch."""
    import torch

    from benthic.kernels.rms_norm import rms_norm

    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    difference = float((rms_norm(x, None, 1e-6) - rms_norm(x, None, 1e-6, impl="reference")).abs().max())
    if difference > 1e-5:
        return Finding(
            "cpu kernels",
            "broken",
            f"rms_norm differs from its meaning by {difference:.2g}",
            "remove the compiled kernels (see kernel cache) and the environment's numba and llvmlite, and install anew",
        )
    return Finding("cpu kernels", "ok", "compiled by numba; agree with their meaning")


def kernel_cache_finding() -> Finding:
    """Where compiled CPU kernels are kept, so that only a first start waits for the compiler."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    folder = Path(named) if named else _PACKAGE
    if os.access(folder if folder.exists() else folder.parent, os.W_OK):
        return Finding("kernel cache", "ok", str(folder))
    home = Path.home()
    if not named and os.access(home, os.W_OK):
        return Finding("kernel cache", "ok", f"{home / '.cache'}, for {folder} cannot be written to")
    return Finding(
        "kernel cache",
        "limit",
        f"{folder} cannot be written to: every start compiles for half a minute",
        "set NUMBA_CACHE_DIR to a folder that can",
    )


def exactness_finding() -> Finding:
    """Whether a row of a product has the same bits beside any others, with one thread as the engine has it."""
    import torch

    from benthic.kernels.exactness import establish_min_rows

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = establish_min_rows(_SHAPES, 1)
    except ExactnessError as error:
        return Finding("exact products", "broken", str(error), "set MKL_CBWR=AUTO,STRICT in the environment (Intel)")
    finally:
        torch.set_num_threads(threads)
    padding = "" if rows == 1 else f", with at least {rows} rows a product"
    return Finding("exact products", "ok", f"a row's bits ignore its neighbours{padding}")
