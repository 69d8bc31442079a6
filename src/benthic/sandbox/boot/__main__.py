"""Gets a kernel for virtual machines and prints where it is; does nothing if there is one already."""

import sys

from benthic.errors import SandboxError
from benthic.sandbox.boot.kernel import fetch_kernel, find_kernel

if __name__ == "__main__":
    try:
        try:
            kernel = find_kernel()
        except SandboxError:
            kernel = fetch_kernel()
    except SandboxError as error:
        sys.exit(str(error))
    print(kernel.image)
