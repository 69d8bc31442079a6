"""The cases of bench_container.py by docker-py, whose containers are the yardstick: `sleep` in an image of busybox."""

import importlib
import io
import os
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from measuring import AT_ONCE, available_bytes, show, times

from benthic.sandbox.images.tiny import static_busybox

SYSTEM, IMAGE = "docker-py", "benthic-bench:latest"
LIMITS: dict[str, Any] = {"mem_limit": "512m", "nano_cpus": 10**9, "pids_limit": 256, "network_mode": "none"}


def measure_docker_py(*, starts: int, alive: int, burst: int) -> None:
    """Prints the lines, or one that says why there are none."""
    try:
        docker = importlib.import_module("docker")
        client = docker.from_env(timeout=120)
        client.ping()
    except ModuleNotFoundError:
        return show(SYSTEM, "probe", None, reason="the package is not installed: pip install docker")
    except docker.errors.DockerException as error:
        return show(SYSTEM, "probe", None, reason=f"no daemon answers here: {error}")
    client.api.import_image_from_data(rootfs(), repository=IMAGE.partition(":")[0], tag="latest")
    try:
        _measure(client, starts, alive, burst)
    finally:
        client.images.remove(IMAGE, force=True)


def _measure(client: Any, starts: int, alive: int, burst: int) -> None:
    made: list[Any] = []
    show(SYSTEM, "create to first result", times(starts, lambda: made.append(first_result(client))))
    show(SYSTEM, "exec true", times(100, lambda: run_true(made[0])))
    end(made)
    before, began = available_bytes(), time.perf_counter()
    many, _ = together(alive, lambda: start(client))
    made_s, used = time.perf_counter() - began, before - available_bytes()
    for container in many:
        run_true(container)
    began = time.perf_counter()
    end(many)
    facts = {"created_per_s": alive / made_s, "host_mib_each": used / alive / 2**20}
    show(SYSTEM, f"{alive} alive", None, answered=alive, **facts, end_s=time.perf_counter() - began)
    began = time.perf_counter()
    made, failures = together(burst, lambda: first_result(client))
    took_s = time.perf_counter() - began
    show(SYSTEM, f"burst of {burst}", None, took_s=took_s, failures=len(failures), first_failure=failures[:1])
    end(made)


def start(client: Any) -> Any:
    """A running container with the limits of a sandbox, of disk apart."""
    return client.containers.run(IMAGE, ["/bin/busybox", "sleep", "3600"], detach=True, **LIMITS)


def first_result(client: Any) -> Any:
    """A container that has run `true`."""
    container = start(client)
    run_true(container)
    return container


def run_true(container: Any) -> None:
    """One command."""
    assert container.exec_run(["/bin/busybox", "true"]).exit_code == 0


def end(containers: list[Any]) -> None:
    """Removes them, a few at once."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda container: container.remove(force=True), containers))


def together(count: int, work: Callable[[], Any]) -> tuple[list[Any], list[str]]:
    """What so many calls gave, a few at once, and how some of them failed."""
    made, failures = [], []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for future in [pool.submit(work) for _ in range(count)]:
            error = future.exception()
            if error is None:
                made.append(future.result())
            else:
                failures.append(str(error))
    return made, failures


def rootfs() -> bytes:
    """A root file system of one static program."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        tar.add(os.fspath(static_busybox()), "bin/busybox")
    return archive.getvalue()
