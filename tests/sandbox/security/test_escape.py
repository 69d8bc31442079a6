"""Ways out of a sandbox, each known from somewhere; a command must come through none, whether as user or as root."""

import os
import platform
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from benthic.sandbox.linux import denied_calls
from tests.sandbox.security.kinds import SHARED_KERNEL, Inside

USERS = (None, "root")


@pytest.mark.parametrize("user", USERS)
def test_every_denied_system_call_is_denied(inside: Inside, user: str | None) -> None:
    for entry in denied_calls():
        number = entry.number(platform.machine())
        if number is None:
            continue
        arguments: list[int] = [0] * 6
        if entry.argument is not None:
            arguments[entry.argument] = entry.mask or (entry.values or (40,))[0]
        assert inside.errors("call", number, *arguments, user=user) == [entry.errno], entry.name


@pytest.mark.parametrize("user", USERS)
def test_the_first_process_is_closed_to_commands(inside: Inside, user: str | None) -> None:
    if inside.kind == "gvisor":  # its kernel opens them: init keeps nothing there
        assert set(inside.run("cat /proc/1/environ", user=user).text) <= {"\0"}
        assert inside.errors("overwrite", "/proc/1/mem", user=user) != ["done"]
        return
    for name in ("environ", "mem", "maps", "root/etc/passwd", "cwd", "fd/0", "exe"):
        assert inside.errors("overwrite", f"/proc/1/{name}", user=user)[0] != "done", name
    for name in ("environ", "maps", "root/etc/hostname", "stack", "syscall", "auxv"):
        result = inside.attack("read", f"/proc/1/{name}", user=user)
        assert result.text.strip().isdecimal(), (name, result)
        assert result.text.strip() != "0", name


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize(
    "path",
    [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/vm/panic_on_oom",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/sysrq-trigger",
        "/proc/kcore",
        "/proc/kmem",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/memory/release_agent",
        "/sys/fs/cgroup/cgroup.procs",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/vda",
        "/dev/loop-control",
        "/dev/fuse",
        "/dev/kvm",
        "/usr/bin/env",
        "/bin/sh",
        "/etc/passwd",
    ],
)
def test_what_belongs_to_the_machine_cannot_be_written(inside: Inside, path: str, user: str | None) -> None:
    if inside.kind not in SHARED_KERNEL and (user == "root" or not path.startswith(("/usr", "/bin", "/etc"))):
        pytest.skip("the machine is the sandbox's own")
    if inside.kind != "function" and user == "root" and path.startswith(("/usr", "/bin", "/etc")):
        pytest.skip("root inside owns the image's files, of which this sandbox has its own copy")
    assert inside.errors("overwrite", path, user=user)[0] in ("EACCES", "EPERM", "EROFS", "ENOENT", "EINVAL", "ETXTBSY")


def test_the_kernels_log_and_secrets_are_not_read(inside: Inside) -> None:
    if inside.kind not in SHARED_KERNEL:
        pytest.skip("the kernel is the sandbox's own")
    for path in ("/proc/kmsg", "/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/sched_debug", "/etc/shadow"):
        text = inside.attack("read", path).text.strip()
        assert text == "" or (text.isdecimal() and text != "0"), (path, text[:100])


def test_no_signal_reaches_what_is_not_the_users(inside: Inside) -> None:
    inside.attack("kill", 1, 9)
    assert inside.is_alive()
    inside.attack("kill", -1, 9)
    assert inside.is_alive()


@pytest.mark.parametrize("user", USERS)
def test_no_device_is_made(inside: Inside, user: str | None) -> None:
    made = inside.errors("device", "/tmp/device", user=user)
    assert made == ["EPERM"] or inside.errors("read", "/tmp/device", user=user)[0] in ("EACCES", "EPERM", "ENXIO")


def test_a_setuid_program_of_roots_gives_nothing(inside: Inside) -> None:
    inside.run("cp /work/hostile /tmp/setuid && chmod 6755 /tmp/setuid && chmod 6755 /tmp/setuid", user="root")
    own = inside.run("id -u").text.strip()
    result = inside.run("/tmp/setuid identity")
    assert set(result.text.split()) <= {own}, result


def test_nothing_of_the_hosts_environment_or_files_is_seen(inside: Inside) -> None:
    # Planted by the fixture below, before the sandbox was started.
    result = inside.run("cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n'; env; set")
    assert "canary" not in result.text.lower()
    for path in (f"/tmp/benthic-canary-{os.getpid()}", "/root/.ssh", "/var/lib/dpkg/status"):
        assert inside.attack("read", path, user="root").text.strip().isdecimal()


@pytest.fixture(autouse=True, scope="module")
def canary() -> Iterator[None]:
    file = Path(f"/tmp/benthic-canary-{os.getpid()}")
    file.write_text("canary")
    os.environ["BENTHIC_CANARY"] = "canary"
    yield
    del os.environ["BENTHIC_CANARY"]
    file.unlink()


def test_no_descriptor_is_inherited(inside: Inside) -> None:
    assert inside.run("ls /proc/self/fd | sort -n | tr '\\n' ' '").text in ("0 1 2 3 ", "0 1 2 ")


def test_capabilities_and_new_privileges_are_gone(inside: Inside) -> None:
    for user in USERS:
        status = dict(line.split(":\t", 1) for line in inside.run("cat /proc/self/status", user=user).text.splitlines())
        if inside.kind == "gvisor":  # which tells of no others
            assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd")} == {"0" * 16}, user
            continue
        assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}, user
        assert status["NoNewPrivs"] == "1"
        assert status["Seccomp"] == "2"


def test_a_terminal_takes_no_input_from_what_runs_on_it(inside: Inside) -> None:
    entry = next(entry for entry in denied_calls() if entry.name == "ioctl")
    assert inside.errors("call", entry.number(platform.machine()), 0, 0x5412, 0) == ["EPERM"]


def test_preloaded_libraries_reach_only_the_users_own_programs(inside: Inside) -> None:
    inside.run("echo 'LD_PRELOAD=/work/x.so' >/work/.profile; echo /work/x.so >/etc/ld.so.preload; true")
    assert inside.is_alive()
    assert inside.run("echo $LD_PRELOAD").text == "\n"


def test_abstract_sockets_of_the_host_are_out_of_reach(inside: Inside) -> None:
    name = f"benthic-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()
        assert inside.errors("connect-abstract", name) == ["ECONNREFUSED"]


def test_the_host_sees_none_of_a_sandboxs_processes_as_root(inside: Inside) -> None:
    if inside.kind == "docker":
        pytest.skip("under a daemon that remaps no users root inside is the host's: sandbox-security.md says so")
    group = getattr(inside.machine, "group", None)
    if group is None:
        pytest.skip("this kind has no control group")
    lines = [line for pid in group.pids() for line in Path(f"/proc/{pid}/status").read_text().splitlines()]
    uids = {word for line in lines if line.startswith(("Uid:", "Gid:")) for word in line.split()[1:]}
    assert uids
    assert "0" not in uids
