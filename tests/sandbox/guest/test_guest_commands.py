"""Commands through init: what they get, what they give back, and that nothing of them is left when they must end."""

import os
import signal
import struct
import time
from pathlib import Path

import pytest

from benthic.sandbox.errors import CallRefused
from benthic.sandbox.guest import Guest, JobSetup
from benthic.sandbox.guest.connection import UnknownJob
from benthic.sandbox.records import Command, Reason
from tests.sandbox.guest.plain_init import PlainInit, is_alive, until

needs_root = pytest.mark.skipif(os.getuid() != 0, reason="changing users needs root")


def shell(text: str, **options: object) -> Command:
    return Command(shell=text, **{"timeout_s": 20.0, **options})  # type: ignore[arg-type]


def test_a_command_gives_its_exit_code_and_both_streams(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        result = await guest.run("a", shell("echo out; echo err >&2; exit 3"))
        assert (result.returncode, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
        assert result.reason is Reason.EXITED
        assert result.usage.cpu_s > 0
        assert result.usage.peak_memory_bytes > 0

    init.play(story)


def test_argv_is_run_without_a_shell(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        result = await guest.run("a", Command(argv=("echo", "$HOME; ls *", "")))
        assert result.stdout == b"$HOME; ls * \n"

    init.play(story)


@pytest.mark.parametrize(
    ("command", "returncode", "part"),
    [
        (Command(argv=("no-such-program",)), 127, b"cannot run 'no-such-program': No such file"),
        (Command(argv=("/etc/passwd",)), 126, b"Permission denied"),
        (Command(shell="true", cwd="/no/such/folder"), 126, b"cannot enter the folder '/no/such/folder'"),
    ],
    ids=["unknown program", "not executable", "unknown folder"],
)
def test_what_cannot_be_started_ends_as_in_a_shell(
    init: PlainInit, command: Command, returncode: int, part: bytes
) -> None:
    async def story(guest: Guest) -> None:
        result = await guest.run("a", command)
        assert result.returncode == returncode
        assert part in result.stderr

    init.play(story)


def test_the_environment_is_what_was_set_up_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    init = PlainInit(env={"SECRET": "canary"})
    try:

        async def story(guest: Guest) -> None:
            result = await guest.run("a", Command(argv=("env",), env=(("PATH", "/bin"), ("A", "1\n2"))))
            assert sorted(result.text.splitlines()) == ["2", "A=1", "PATH=/bin"]

        init.play(story)
    finally:
        init.close()


@needs_root
def test_no_environment_or_descriptor_of_init_can_be_read_from_inside() -> None:
    init = PlainInit(env={"SECRET": "canary"})
    try:

        async def story(guest: Guest) -> None:
            pid = init.process.pid
            text = f"cat /proc/{pid}/environ /proc/$PPID/environ; ls /proc/{pid}/fd /proc/$PPID/fd; ls /proc/self/fd"
            result = await guest.run("a", shell(text))
            assert b"canary" not in result.stdout
            assert result.stdout.split() == [b"0", b"1", b"2", b"3"], "the last one is that of ls itself"
            assert result.stderr.count(b"Permission denied") == 4
            environ = Path(f"/proc/{pid}/environ").read_bytes()
            assert b"canary" not in environ, "not even for root: it is overwritten"

        init.play(story)
    finally:
        init.close()


@needs_root
@pytest.mark.parametrize("user", [None, "root"])
def test_commands_have_no_capability_whoever_runs_them(init: PlainInit, user: str | None) -> None:
    async def story(guest: Guest) -> None:
        result = await guest.run("a", shell("id -u; id -G; cat /proc/self/status", user=user))
        uid, groups, *status = result.text.splitlines()
        assert uid == groups == ("0" if user else str(init.uid))
        fields = dict(line.split(":\t", 1) for line in status if ":\t" in line)
        assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
        assert fields["NoNewPrivs"] == "1"
        assert fields["SigIgn"] == fields["SigBlk"] == "0" * 16

    init.play(story)


def test_a_filter_of_system_calls_is_loaded_last(init: PlainInit) -> None:
    # load the call's number; is it mkdir (83) or mkdirat (258)? errno 1, else allow
    steps = [(0x20, 0, 0, 0), (0x15, 1, 0, 83), (0x15, 0, 1, 258), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)]
    seccomp = b"".join(struct.pack("HBBI", *step) for step in steps)

    async def story(guest: Guest) -> None:
        command = Command(argv=("mkdir", f"{init.work}/x"))
        await guest.configure(JobSetup(uid=init.setup.uid, gid=init.setup.gid, env=init.setup.env, seccomp=seccomp))
        refused = await guest.run("a", command)
        assert refused.returncode == 1
        assert b"Operation not permitted" in refused.stderr
        await guest.configure(init.setup)
        assert (await guest.run("b", command)).returncode == 0, "without the filter it works"

    init.play(story)


def test_limits_of_resources_hold_for_commands(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        limits = (("nofile", 50), ("core", 0), ("fsize", 4096))
        await guest.configure(JobSetup(uid=init.setup.uid, gid=init.setup.gid, env=init.setup.env, rlimits=limits))
        result = await guest.run("a", shell(f"ulimit -n; ulimit -Hn; head -c 9999 /dev/zero > {init.work}/big"))
        assert result.stdout == b"50\n50\n"
        assert (init.work / "big").stat().st_size == 4096

    init.play(story)


def test_a_signal_from_inside_is_told_from_one_that_was_sent(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        result = await guest.run("a", shell("kill -SEGV $$"))
        assert (result.returncode, result.reason) == (-signal.SIGSEGV, Reason.SIGNALLED)
        await guest.start("b", Command(argv=("sleep", "60")))
        await guest.signal("b", signal.SIGTERM)
        result = await guest.wait("b")
        assert (result.returncode, result.reason) == (-signal.SIGTERM, Reason.KILLED)
        await guest.signal("b", signal.SIGTERM)

    init.play(story)


def test_a_signal_reaches_everything_that_the_command_has_started(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.start("a", shell("setsid sleep 60 & echo $!; wait"))
        async for chunk in guest.output("a"):
            daemon = int(chunk.data)
            break
        assert is_alive(daemon)
        await guest.signal("a", signal.SIGKILL)
        assert (await guest.wait("a")).reason is Reason.KILLED
        await until(lambda: not is_alive(daemon))

    init.play(story)


DAEMONS = "for i in 1 2 3; do setsid sh -c 'setsid sleep 60 & echo $!; trap \"\" TERM HUP; sleep 60' & done; "


def test_a_time_out_ends_daemons_too_and_the_next_command_works(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        start_s = time.monotonic()
        result = await guest.run("a", shell(DAEMONS + "sleep 60", timeout_s=0.5))
        assert time.monotonic() - start_s < 5
        assert (result.returncode, result.reason) == (None, Reason.TIMEOUT)
        daemons = [int(pid) for pid in result.stdout.split()]
        assert len(daemons) == 3
        assert not any(is_alive(pid) for pid in daemons)
        assert (await guest.run("b", shell("echo on"))).stdout == b"on\n"

    init.play(story)


def test_a_time_out_ends_a_fork_bomb(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        limits = (("nproc", 60),)
        await guest.configure(JobSetup(uid=54399, gid=54399, env=init.setup.env, rlimits=limits))
        result = await guest.run("a", shell("b() { b | b & }; b; sleep 60", timeout_s=0.5))
        assert result.reason in (Reason.TIMEOUT, Reason.EXITED)
        await guest.forget("a")
        await until(lambda: not processes_of(54399))

    if os.getuid() != 0:
        pytest.skip("needs a user of its own")
    init.play(story)


def processes_of(uid: int) -> list[str]:
    return [pid for pid in os.listdir("/proc") if pid.isdigit() and _owner(pid) == uid and is_alive(int(pid))]


def _owner(pid: str) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except FileNotFoundError:
        return -1


def test_what_a_command_leaves_in_the_background_lives_on_and_holds_nothing_up(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        start_s = time.monotonic()
        result = await guest.run("a", shell("sleep 60 & echo $!"))
        assert time.monotonic() - start_s < 5, "the sleeper holds stdout open, and nobody waits for it"
        sleeper = int(result.stdout)
        assert is_alive(sleeper)
        assert [info.has_background for info in await guest.jobs()] == [True]
        await guest.forget("a")
        assert is_alive(sleeper)
        assert await guest.jobs() == []
        os.kill(sleeper, signal.SIGKILL)

    init.play(story)


def test_a_background_process_that_floods_its_output_is_neither_kept_nor_stuck(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        result = await guest.run("a", shell("(sleep 0.2; yes) & echo $!", max_output_bytes=1000))
        await guest.run("b", Command(argv=("sleep", "0.5")))
        info = next(info for info in await guest.jobs() if info.job == "a")
        assert info.stdout_bytes == len(result.stdout), "what comes after the end belongs to nobody"
        os.kill(int(result.stdout), signal.SIGKILL)

    init.play(story)


def test_a_silent_command_is_ended_by_its_quiet_limit_and_a_dripping_one_by_its_time(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        silent = await guest.run("a", shell("echo x; sleep 60", quiet_timeout_s=0.3))
        assert (silent.reason, silent.stdout) == (Reason.QUIET, b"x\n")
        drip = "while true; do echo .; sleep 0.05; done"
        dripping = await guest.run("b", shell(drip, quiet_timeout_s=1.0, timeout_s=1.5))
        assert dripping.reason is Reason.TIMEOUT
        assert dripping.stdout.count(b".") > 5

    init.play(story)


@pytest.mark.parametrize("flood", ["yes", "cat /dev/zero", "yes >&2", "cat /dev/urandom", "exec <&-; yes"])
def test_an_endless_output_ends_with_its_time_and_its_ends_are_kept(init: PlainInit, flood: str) -> None:
    async def story(guest: Guest) -> None:
        result = await guest.run(
            "a", shell(f"echo first; echo first >&2; {flood}", timeout_s=0.5, max_output_bytes=5000)
        )
        flooded = result.stderr if ">&2" in flood else result.stdout
        assert result.reason is Reason.TIMEOUT
        assert flooded.startswith(b"first\n")
        assert len(flooded) == 5000
        assert result.is_truncated

    init.play(story)


def test_output_is_cut_in_the_middle_and_the_cut_is_counted(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        for size in (0, 1, 7, 999, 1000, 1001, 70_000):
            result = await guest.run(f"a{size}", shell(f"seq 1 100000 | head -c {size}", max_output_bytes=1000))
            whole = b"".join(b"%d\n" % i for i in range(1, 100_001))[:size]
            kept = whole if size <= 1000 else whole[:500] + whole[-500:]
            assert result.stdout == kept
            assert result.dropped_stdout_bytes == size - len(kept)

    init.play(story)


def test_a_large_kept_output_comes_in_pieces(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        result = await guest.run("a", shell("seq 1 300000; seq 1 100000 >&2", max_output_bytes=4 << 20))
        assert result.stdout == b"".join(b"%d\n" % i for i in range(1, 300_001))
        assert result.stderr == b"".join(b"%d\n" % i for i in range(1, 100_001))

    init.play(story)


@pytest.mark.parametrize("size", [0, 10, 300_000, 3_000_000])
def test_input_of_any_size_arrives(init: PlainInit, size: int) -> None:
    async def story(guest: Guest) -> None:
        result = await guest.run("a", Command(argv=("wc", "-c"), stdin=b"x" * size))
        assert int(result.stdout) == size

    init.play(story)


def test_input_that_nobody_reads_does_no_harm(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        assert (await guest.run("a", shell("echo on", stdin=b"x" * 3_000_000))).stdout == b"on\n"
        result = await guest.run("b", shell("sleep 60", stdin=b"x" * 3_000_000, timeout_s=0.3))
        assert result.reason is Reason.TIMEOUT
        assert (await guest.run("c", shell("exec <&-; sleep 0.1; echo on", stdin=b"x" * 3_000_000))).returncode == 0

    init.play(story)


def test_a_known_id_is_joined_and_runs_once(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        command = shell(f"echo . >> {init.work}/count; sleep 0.2; echo done")
        assert await guest.start("s1", command)
        assert not await guest.start("s1", command)
        assert (await guest.run("s1", command)).stdout == b"done\n"
        other = await init.guest()
        assert (await other.run("s1", command)).stdout == b"done\n", "another client finds the same job"
        await other.close()
        assert (init.work / "count").read_bytes() == b".\n"

    init.play(story)


def test_a_forgotten_job_is_unknown_and_its_process_is_gone(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.start("a", shell(f"echo $$ > {init.work}/pid; exec sleep 60"))
        await until(lambda: (init.work / "pid").exists() and (init.work / "pid").read_text() != "")
        await guest.forget("a")
        await guest.forget("never known")
        with pytest.raises(UnknownJob):
            await guest.wait("a")
        await until(lambda: not is_alive(int((init.work / "pid").read_text())))

    init.play(story)


def test_the_table_of_jobs_is_bounded_and_says_so(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        for number in range(256):
            await guest.start(f"j{number}", Command(argv=("true",)))
        with pytest.raises(CallRefused, match="forget some"):
            await guest.run("j256", shell("true"))
        for number in range(256):
            await guest.forget(f"j{number}")
        assert (await guest.run("j257", Command(argv=("true",)))).returncode == 0

    init.play(story)


@pytest.mark.parametrize("job", ["", "a b", "x" * 65, "a/b", "ä"])
def test_a_wrong_id_is_refused_before_it_is_sent(init: PlainInit, job: str) -> None:
    async def story(guest: Guest) -> None:
        with pytest.raises(ValueError, match="job id"):
            await guest.run(job, Command(argv=("true",)))

    init.play(story)


@needs_root
def test_a_killed_monitor_takes_its_command_along(init: PlainInit) -> None:
    """A root inside shares its user with monitors; the sandbox must not fill with what it sets free."""

    async def story(guest: Guest) -> None:
        await guest.start("a", shell("setsid sleep 60 & echo $! $PPID; sleep 60", user="root"))
        async for chunk in guest.output("a"):
            sleeper, monitor = map(int, chunk.data.split())
            break
        os.kill(monitor, signal.SIGKILL)
        result = await guest.wait("a")
        assert result.reason in (Reason.SIGNALLED, Reason.KILLED)
        await until(lambda: not is_alive(sleeper))
        assert (await guest.run("b", shell("echo on"))).stdout == b"on\n"

    init.play(story)


@needs_root
def test_a_stopped_monitor_does_not_keep_its_command_alive(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        stop = "setsid sleep 60 & echo $!; kill -STOP $PPID; sleep 60"
        result = await guest.run("a", shell(stop, user="root", timeout_s=0.5))
        assert result.reason is Reason.TIMEOUT
        await until(lambda: not is_alive(int(result.stdout)))
        assert (await guest.run("b", shell("echo on"))).stdout == b"on\n"

    init.play(story)


def test_when_init_is_killed_its_commands_go_too(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        await guest.start("a", shell("setsid sleep 60 & echo $!; sleep 60"))
        async for chunk in guest.output("a"):
            sleeper = int(chunk.data)
            break
        init.process.kill()
        await until(lambda: not is_alive(sleeper))

    init.play(story)


def test_shutdown_ends_everything(init: PlainInit) -> None:
    async def story(guest: Guest) -> None:
        result = await guest.run("a", shell("setsid sleep 60 & echo $!"))
        await guest.shutdown()
        assert init.process.wait(5) == 0
        await until(lambda: not is_alive(int(result.stdout)))

    init.play(story)
