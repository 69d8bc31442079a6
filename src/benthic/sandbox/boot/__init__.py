"""What a virtual machine starts from: a kernel, and the archive with init in it."""

from benthic.sandbox.boot.initramfs import initramfs
from benthic.sandbox.boot.kernel import HOW_TO_GET, Kernel, fetch_kernel, find_kernel

__all__ = ["HOW_TO_GET", "Kernel", "fetch_kernel", "find_kernel", "initramfs"]
