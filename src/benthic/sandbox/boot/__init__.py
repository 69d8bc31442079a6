"""What a virtual machine starts from: a kernel and its modules."""

from benthic.sandbox.boot.kernel import HOW_TO_GET, Kernel, fetch_kernel, find_kernel

__all__ = ["HOW_TO_GET", "Kernel", "fetch_kernel", "find_kernel"]
