"""All checks in order; a check that fails in a way nobody thought of is a finding too."""

from collections.abc import Callable, Iterator
from functools import partial

from benthic.doctor.accelerators import accelerator_findings
from benthic.doctor.checkpoint import model_findings
from benthic.doctor.finding import Finding
from benthic.doctor.libraries import library_findings
from benthic.doctor.machine import machine_findings, memory_findings
from benthic.doctor.products import product_findings

Check = Callable[[], list[Finding]]


def examine(model: str) -> Iterator[Finding]:
    """Findings as they are made, the quick ones first.

    Args:
        model: a checkpoint folder, or a name that `benthic inspect` knows.
    """
    checks: tuple[tuple[str, Check], ...] = (
        ("machine", machine_findings),
        ("libraries", library_findings),
        ("memory", memory_findings),
        ("kernels", product_findings),
        ("gpu", accelerator_findings),
        ("model", partial(model_findings, model)),
    )
    for name, check in checks:
        yield from checked(name, check)


def checked(name: str, check: Check) -> list[Finding]:
    """What a check finds, or that it could not be made."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - a machine may be broken in ways that no check foresees
        remedy = "mend what it names; if that is Benthic itself, report it"
        return [Finding(name, "broken", f"{type(error).__name__}: {' '.join(str(error).split())}", remedy)]
