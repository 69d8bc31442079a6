"""What tests of jails need of the machine."""

import os
import shutil

import pytest

from benthic.sandbox.linux import find_hierarchy

needs_jail = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("bwrap") is None or bool(find_hierarchy().missing),
    reason="needs root, control groups and Debian's bubblewrap",
)
