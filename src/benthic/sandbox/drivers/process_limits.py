"""What each process of a sandbox may use by itself, beside the limits of the whole that its control group holds."""

from benthic.sandbox.records import Limits

SMALL_BYTES = 64 << 10


def process_limits(limits: Limits) -> tuple[tuple[str, int], ...]:
    """Limits as setrlimit(2) names them, for `JobSetup.rlimits`."""
    return (
        ("core", 0),
        ("fsize", limits.file_bytes),
        ("memlock", SMALL_BYTES),
        ("msgqueue", SMALL_BYTES),
        ("nofile", limits.num_open_files),
        ("nproc", limits.num_processes),
    )
