"""How much memory this machine has."""


def free_memory_bytes() -> int:
    """Memory that the kernel could give out now without swapping."""
    return memory_info("MemAvailable")


def memory_info(name: str) -> int:
    """One line of /proc/meminfo, in bytes."""
    with open("/proc/meminfo") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))
