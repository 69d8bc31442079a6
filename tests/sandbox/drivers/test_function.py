"""The function driver: starts, adopts and sweeps jails, and leaves nothing behind."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import benthic
from benthic.sandbox import Command, Limits, Network, Reason, Result, SandboxSpec
from benthic.sandbox.drivers.function import FunctionDriver
from benthic.sandbox.drivers.function_machine import FunctionMachine
from benthic.sandbox.errors import NotSupported, StartFailed
from benthic.sandbox.guest import Guest, build_init
from benthic.sandbox.images import Store
from benthic.sandbox.images.build import build_image
from benthic.sandbox.images.recipe import FolderLayer, Recipe
from benthic.sandbox.linux import HomeState, UidPool, root_tag
from benthic.sandbox.records import MIB, FunctionCall
from tests.sandbox.drivers.jails import needs_jail

pytestmark = needs_jail
SPEC = SandboxSpec(kind="function", limits=Limits(memory_bytes=64 * MIB, disk_bytes=8 * MIB, num_files=50))


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[FunctionDriver]:
    driver = FunctionDriver(tmp_path, Store(tmp_path / "store"), uids=UidPool(folder=tmp_path / "uids"))
    yield driver
    asyncio.run(driver.reconcile([]))
    assert not list((tmp_path / "uids").glob("*")), "a claim on uids was left"
    assert not groups(tmp_path), "a control group was left"


def groups(root: Path) -> list[Path]:
    return [
        group for tree in Path("/sys/fs/cgroup").glob("*") for group in (tree / "benthic" / root_tag(root)).glob("*/")
    ]


def new_home(root: Path) -> Path:
    home = root / "homes" / uuid4().hex[:12]
    home.mkdir(parents=True)
    return home


async def run(machine: FunctionMachine, shell: str) -> Result:
    guest = await Guest.attach(machine.connect)
    try:
        await guest.configure(machine.setup)
        return await guest.run(uuid4().hex, Command(shell=shell))
    finally:
        await guest.close()


def test_a_jail_shows_programs_of_the_host_and_nothing_of_its_settings_or_data(
    driver: FunctionDriver, tmp_path: Path
) -> None:
    async def look() -> Result:
        machine = await driver.start(SPEC, new_home(tmp_path))
        return await run(
            machine,
            "id -u; hostname; wc -l </etc/passwd; ls -d /root/* /home /etc/shadow /sys 2>&1 | grep -vc 'No such'",
        )

    assert asyncio.run(look()).text.split("\n")[:4] == ["1000", "sandbox", "2", "0"]


def test_everything_writable_is_full_at_the_limit_of_bytes_or_of_files(driver: FunctionDriver, tmp_path: Path) -> None:
    async def fill() -> tuple[Result, Result]:
        machine = await driver.start(SPEC, new_home(tmp_path))
        shell = """
for folder in /work /tmp /dev/shm; do head -c 9m /dev/zero >$folder/big; done
du -sk /work /tmp /dev/shm | awk '{total += $1} END {print total}'
rm -f /work/big /tmp/big /dev/shm/big
"""
        big = await run(machine, shell)
        many = await run(machine, "i=0; while touch /work/$i 2>/tmp/err; do i=$((i+1)); done; echo $i; cat /tmp/err")
        return big, many

    big, many = asyncio.run(fill())
    assert b"No space left" in big.stderr
    assert int(big.text) <= 8 * 1024
    assert int(many.text.split()[0]) == 50 - 1  # and /tmp/err


def test_a_jail_outlives_its_maker_and_is_adopted(driver: FunctionDriver, tmp_path: Path) -> None:
    home = new_home(tmp_path)
    program = f"""
import asyncio, os, pathlib, tests.sandbox.drivers.test_function as test
root = pathlib.Path({str(tmp_path)!r})
driver = test.FunctionDriver(root, test.Store(root / "store"), uids=test.UidPool(folder=root / "uids"))
async def main():
    machine = await driver.start(test.SPEC, root / "homes" / {home.name!r})
    await test.run(machine, "echo mark >/work/mark")
    await machine.call(test.FunctionCall(source="def f(): return 1", name="f"))
    os.kill(os.getpid(), 9)
asyncio.run(main())
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    assert subprocess.run([sys.executable, "-c", program], env=env, timeout=60).returncode == -signal.SIGKILL

    async def adopted() -> tuple[Result, object]:
        machine = await driver.adopt(SPEC, home)
        assert machine is not None
        called = await machine.call(FunctionCall(source="def f(): return 2", name="f"))
        return await run(machine, "cat /work/mark"), called.value

    result, value = asyncio.run(adopted())
    assert (result.text, value) == ("mark\n", 2)
    assert asyncio.run(driver.reconcile([home])) == []
    gone = asyncio.run(driver.reconcile([]))
    assert gone == [f"function sandbox {home.name}"]
    assert asyncio.run(driver.adopt(SPEC, home)) is None


def test_a_dead_jail_says_why(driver: FunctionDriver, tmp_path: Path) -> None:
    async def die() -> tuple[object, object]:
        machine = await driver.start(SPEC, new_home(tmp_path))
        before = await machine.death()
        machine.process.kill()
        await machine.process.wait(10)
        return before, await machine.death()

    before, after = asyncio.run(die())
    assert before is None
    assert after == (Reason.CRASHED, "its first process has ended")


def test_freezing_stops_a_command_until_the_thaw(driver: FunctionDriver, tmp_path: Path) -> None:
    async def freeze() -> float:
        machine = await driver.start(SPEC, new_home(tmp_path))
        running = asyncio.create_task(run(machine, "for i in 1 2 3 4 5; do sleep 0.05; done"))
        await asyncio.sleep(0.1)
        await machine.freeze()
        await asyncio.sleep(1)
        assert not running.done()
        await machine.thaw()
        return (await running).returncode or 0

    assert asyncio.run(freeze()) == 0


def test_a_failed_start_names_its_stage_and_leaves_nothing(
    driver: FunctionDriver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benthic.sandbox.drivers.jail._ISOLATION", ("--no-such-option",))
    with pytest.raises(StartFailed, match="Unknown option --no-such-option") as error:
        asyncio.run(driver.start(SPEC, new_home(tmp_path)))
    assert error.value.stage == "jail"


def test_a_cancelled_start_leaves_nothing(driver: FunctionDriver, tmp_path: Path) -> None:
    async def cancel(delay_s: float) -> bool:
        starting = asyncio.create_task(driver.start(SPEC, new_home(tmp_path)))
        await asyncio.sleep(delay_s)
        if not starting.cancel():  # it was faster
            await (await starting).destroy()
            return False
        with pytest.raises(asyncio.CancelledError):
            await starting
        return True

    assert sum(asyncio.run(cancel(delay_s)) for delay_s in (0.0005, 0.002, 0.005, 0.02)) >= 2
    assert not groups(tmp_path)


def test_what_functions_cannot_do_is_refused_by_name(driver: FunctionDriver, tmp_path: Path) -> None:
    with pytest.raises(NotSupported, match="no network"):
        asyncio.run(driver.start(SandboxSpec(network=Network.allow("pypi.org:443")), new_home(tmp_path)))
    with pytest.raises(NotSupported, match="an image below"):
        asyncio.run(driver.start(SandboxSpec(layers=("sha256:" + "0" * 64,)), new_home(tmp_path)))


def test_a_snapshot_is_the_work_folder_with_owners_modes_and_links(driver: FunctionDriver, tmp_path: Path) -> None:
    store = Store(tmp_path / "store")

    async def use() -> tuple[Result, Result, int]:
        machine = await driver.start(SPEC, new_home(tmp_path))
        await run(
            machine, "cd /work; mkdir -m 700 sub; echo one >sub/f; ln sub/f hard; ln -s /etc/passwd link; rm -f /tmp/x"
        )
        ref = await machine.snapshot("kept")
        child = await driver.start(SPEC, new_home(tmp_path), snapshot=ref)
        seen = await run(
            child, "cd /work; cat hard; stat -c '%u %a %h' sub sub/f; readlink link; echo two >sub/f; cat hard"
        )
        return seen, await run(machine, "cat /work/hard"), len(store.entries(ref.layers[0]))

    seen, first, num_entries = asyncio.run(use())
    store.release("snapshot-kept")
    assert seen.text.split() == ["one", "1000", "700", "2", "1000", "644", "2", "/etc/passwd", "two"]
    assert (first.text, num_entries) == ("one\n", 5)


def test_a_snapshot_larger_than_the_disk_is_a_failed_start(driver: FunctionDriver, tmp_path: Path) -> None:
    async def use() -> None:
        machine = await driver.start(SPEC, new_home(tmp_path))
        await run(machine, "head -c 5m /dev/urandom >/work/big")
        ref = await machine.snapshot("big")
        small = SandboxSpec(kind="function", limits=Limits(memory_bytes=64 * MIB, disk_bytes=4 * MIB))
        with pytest.raises(StartFailed, match="work folder: .*No space left"):
            await driver.start(small, new_home(tmp_path), snapshot=ref)

    asyncio.run(use())
    Store(tmp_path / "store").release("snapshot-big")


def test_the_layers_of_an_image_above_its_base_fill_the_work_folder(driver: FunctionDriver, tmp_path: Path) -> None:
    folder = tmp_path / "task"
    folder.mkdir()
    (folder / "main.py").write_text("print('hello')\n")
    layer = FolderLayer(folder="task", at="/work", owner=1000)
    build_image(Store(tmp_path / "store"), Recipe(name="task:1", layers=(layer,)), tmp_path)

    async def use() -> Result:
        machine = await driver.start(SandboxSpec(kind="function", image="task:1"), new_home(tmp_path))
        return await run(machine, "cd /work && echo more >>main.py && cat main.py && ls -A /work")

    assert asyncio.run(use()).text == "print('hello')\nmore\nmain.py\n"


def test_the_probe_starts_one_and_leaves_nothing(driver: FunctionDriver, tmp_path: Path) -> None:
    probe = asyncio.run(driver.probe())
    assert probe.is_working, probe.detail
    assert probe.start_s is not None
    assert "bubblewrap" in probe.detail
    assert not list((tmp_path / "homes").glob("*"))


def test_destroying_twice_and_after_death_is_fine(driver: FunctionDriver, tmp_path: Path) -> None:
    async def end() -> None:
        home = new_home(tmp_path)
        machine = await driver.start(SPEC, home)
        await machine.destroy()
        await machine.destroy()
        assert HomeState(home).load() == {}
        shutil.rmtree(home)
        await machine.destroy()

    began = time.monotonic()
    asyncio.run(end())
    assert time.monotonic() - began < 20


def test_an_ordinary_user_gets_jails_and_calls_too() -> None:
    python = Path("/usr/bin/python3")
    if (
        not python.exists()
        or subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 11))"]).returncode
    ):
        pytest.skip("another user may not enter this Python's folder, and /usr/bin/python3 is older than 3.11")
    source = Path(benthic.__file__).parent
    program = """
import asyncio, pathlib, sys
from benthic.sandbox import Command, SandboxSpec
from benthic.sandbox.drivers.function import FunctionDriver
from benthic.sandbox.guest import Guest
from benthic.sandbox.images import Store
from benthic.sandbox.records import FunctionCall
root = pathlib.Path(sys.argv[1])
async def main():
    driver = FunctionDriver(root, Store(root / "store"))
    home = root / "homes" / "0123456789ab"
    home.mkdir(parents=True)
    machine = await driver.start(SandboxSpec(), home)
    try:
        guest = await Guest.attach(machine.connect)
        await guest.configure(machine.setup)
        shell = "id -u; touch /work/mine /usr/x; unshare -U true; grep Seccomp: /proc/self/status"
        result = await guest.run("a", Command(shell=shell))
        await guest.close()
        called = await machine.call(FunctionCall(source="import os\\ndef f(): return os.listdir('/work')", name="f"))
        print(result.text.split(), called.value, called.error)
    finally:
        await machine.destroy()
    print(await machine.death() is not None)
asyncio.run(main())
"""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        root = Path(folder)
        root.chmod(0o755)
        shutil.copytree(source / "sandbox", root / "src" / "benthic" / "sandbox")
        for name in ("__init__.py", "errors.py"):
            shutil.copy(source / name, root / "src" / "benthic" / name)
        programs = root / "home" / ".cache" / "benthic" / "sandbox"
        programs.mkdir(parents=True)
        shutil.copy(build_init(), programs)
        os.chown(root / "home", 61234, 61234)
        done = subprocess.run(
            [python, "-c", program, str(root / "home" / "state")],
            env={"PYTHONPATH": str(root / "src"), "HOME": str(root / "home"), "PATH": "/usr/bin:/bin"},
            user=61234,
            group=61234,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert done.stdout.splitlines() == ["['0', 'Seccomp:', '2'] [] None", "True"], done.stderr
