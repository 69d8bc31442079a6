import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

from benthic.sandbox.linux import ProcessId


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "60"])


def test_a_process_is_found_killed_and_waited_for_without_being_our_child() -> None:
    shell = subprocess.Popen(["sh", "-c", "sleep 60 & echo $!; wait"], stdout=subprocess.PIPE)
    assert shell.stdout is not None
    process = ProcessId.of(int(shell.stdout.readline()))
    assert process is not None
    assert process.is_alive()
    assert not asyncio.run(process.wait(0.01))
    assert process.kill()
    assert asyncio.run(process.wait(10))
    assert not process.is_alive()
    shell.wait(10)


def test_another_process_with_the_same_pid_is_left_alone() -> None:
    with sleeper() as child:
        real = ProcessId.of(child.pid)
        assert real is not None
        earlier = ProcessId(child.pid, real.start_ticks - 1)
        assert not earlier.is_alive()
        assert not earlier.kill()
        assert asyncio.run(earlier.wait(1))
        time.sleep(0.02)
        assert child.poll() is None
        assert real.kill()


def test_an_ended_process_that_nobody_waited_for_is_not_alive() -> None:
    child = sleeper()
    process = ProcessId.of(child.pid)
    assert process is not None
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert Path(f"/proc/{child.pid}").exists(), "a zombie"
    assert not process.is_alive()
    assert ProcessId.of(child.pid) is None
    assert asyncio.run(ProcessId(child.pid, process.start_ticks - 1).wait(10))
    assert Path(f"/proc/{child.pid}").exists(), "another one's zombie is left alone"
    assert asyncio.run(process.wait(10))
    assert not Path(f"/proc/{child.pid}").exists(), "waiting for a child leaves no zombie"
    child.wait()


def test_a_process_whose_first_thread_ends_first_leaves_no_zombie_either() -> None:
    exits = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(0.5,)).start()"
    child = subprocess.Popen([sys.executable, "-c", f"{exits}; ctypes.CDLL(None).syscall(60, 0)"])
    process = ProcessId.of(child.pid)
    assert process is not None
    while process.is_alive():
        time.sleep(0.01)
    assert Path(f"/proc/{child.pid}").exists(), "a thread lives on"
    assert asyncio.run(process.wait(10))
    assert not Path(f"/proc/{child.pid}").exists()
    child.wait()
