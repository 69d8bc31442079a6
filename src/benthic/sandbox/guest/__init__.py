"""Init, the first process of every sandbox, and the host's client of it.

A driver starts `build_init()` as process 1 in one of these ways, with an empty environment and /proc mounted:

    init --listen-fd N      an inherited listening unix socket; its path should not be visible inside
    init --device PATH      a virtio-serial port or a serial line
    init --boot             the first program of a virtual machine: see boot.c

It needs the capabilities KILL, SETUID, SETGID, SETPCAP (for a root of its own; with one single user inside, none), and
makes use of SYS_RESOURCE. Commands keep none of them.
"""

from benthic.sandbox.guest.build import build_init
from benthic.sandbox.guest.files import Files
from benthic.sandbox.guest.guest import Guest
from benthic.sandbox.guest.records import Hello, JobInfo, JobSetup, Terminal

__all__ = ["Files", "Guest", "Hello", "JobInfo", "JobSetup", "Terminal", "build_init"]
