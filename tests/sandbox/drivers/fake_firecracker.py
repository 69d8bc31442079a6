#!/usr/bin/python3 -IS
"""Plays the program Firecracker, for machines without KVM: its API, its vsock, its snapshots, and a guest of sorts.

It takes the options, requests and orders that Firecracker 1.8 takes and refuses the others with its words. Its guest is
the init of the boot archive that it is given, as a plain process of this machine in bubblewrap: one user, a folder
`/work`, no network. What a snapshot keeps of it is its files; its processes begin anew.

It needs no package and reads nothing beside itself but what the API names: `guests` beside this file holds its guests.
"""

import argparse
import contextlib
import http.server
import io
import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path

VERSION = "1.10.1"
AFTER_START = "The requested operation is not supported after starting the microVM."
BEFORE_START = "The requested operation is not supported before starting the microVM."
CONFIGURED = "Loading a microVM snapshot not allowed after configuring boot-specific resources."
# Of each request: its fields, and whether one must be there.
FIELDS = {
    "machine-config": {"vcpu_count": True, "mem_size_mib": True, "smt": False, "track_dirty_pages": False},
    "boot-source": {"kernel_image_path": True, "initrd_path": False, "boot_args": False},
    "drives": {"drive_id": True, "path_on_host": False, "is_read_only": False, "is_root_device": True},
    "vsock": {"guest_cid": True, "uds_path": True, "vsock_id": False},
    "actions": {"action_type": True},
    "vm": {"state": True},
    "snapshot/create": {"snapshot_type": False, "snapshot_path": True, "mem_file_path": True},
    "snapshot/load": {"snapshot_path": True, "mem_backend": True, "resume_vm": False, "track_dirty_pages": False},
}


class FaultError(Exception):
    """A request that Firecracker answers by 400."""


class Guest:
    """Init in bubblewrap, and the folders that are its disk and its memory at once."""

    def __init__(self, archive: bytes, saved: Path | None) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=Path(__file__).parent / "guests"))
        (self.folder / "init").write_bytes(init_of(archive))
        (self.folder / "init").chmod(0o755)
        if saved is None:
            (self.folder / "work").mkdir()
            (self.folder / "tmp").mkdir()
        else:
            with tarfile.open(saved, "r|") as files:
                files.extractall(self.folder)
        self.path = str(self.folder / "init.sock")
        self.process = self._run()

    def _run(self) -> "subprocess.Popen[bytes]":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen(8)
            system = [name for name in ("bin", "lib", "lib64", "sbin") if Path("/", name).is_symlink()]
            links = [word for name in system for word in ("--symlink", f"usr/{name}", f"/{name}")]
            command = [
                *("bwrap", "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000", "--die-with-parent"),
                *("--hostname", "sandbox", "--ro-bind", "/usr", "/usr", *links, "--ro-bind", "/etc", "/etc"),
                *("--proc", "/proc", "--dev", "/dev"),
                *("--bind", str(self.folder / "work"), "/work", "--bind", str(self.folder / "tmp"), "/tmp"),
                *("--ro-bind", str(self.folder / "init"), "/init", "--", "/init", "--listen-fd"),
            ]
            number = listener.fileno()
            return subprocess.Popen([*command, str(number)], pass_fds=[number], env={}, stdin=subprocess.DEVNULL)

    def save(self, target: Path, size: int) -> None:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as files:
            for name in ("work", "tmp"):
                files.add(self.folder / name, name)
        with target.open("wb") as file:
            file.write(packed.getvalue())
            file.truncate(size)

    def signal(self, number: int) -> None:
        """To all its processes, children before what might start more of them."""
        for pid in [*reversed(descendants(self.process.pid)), self.process.pid]:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class Machine:
    """The one machine of this process."""

    def __init__(self, name: str) -> None:
        self.name, self.state = name, "Not started"
        self.config, self.drives, self.guest = {}, {}, None
        self.lock = threading.Lock()

    def ask(self, method: str, path: str, fields: dict) -> dict | None:
        with self.lock:
            if method == "GET" and path == "":
                return {"id": self.name, "state": self.state, "app_name": "Firecracker", "vmm_version": VERSION}
            kind = "drives" if path.startswith("drives/") else path
            known = {"vm": "PATCH"}.get(kind, "PUT")
            if method != known or kind not in FIELDS:
                raise FaultError(f"Invalid request method and/or path: {method} {path}.")
            for name in fields:
                if name not in FIELDS[kind]:
                    raise FaultError(f"unknown field `{name}` in {path}")
            for name, is_needed in FIELDS[kind].items():
                if is_needed and name not in fields:
                    raise FaultError(f"missing field `{name}` in {path}")
            getattr(self, f"put_{kind.replace('/', '_').replace('-', '_')}")(path, fields)
            return None

    def _before_start(self) -> None:
        if self.state != "Not started":
            raise FaultError(AFTER_START)

    def put_machine_config(self, path: str, fields: dict) -> None:
        self._before_start()
        if not (type(fields["vcpu_count"]) is int and 1 <= fields["vcpu_count"] <= 32):
            raise FaultError("The vCPU number is invalid! The vCPU number can only be 1 or an even number")
        if not (type(fields["mem_size_mib"]) is int and fields["mem_size_mib"] > 0):
            raise FaultError("The memory size (MiB) is invalid.")
        self.config["machine"] = fields

    def put_boot_source(self, path: str, fields: dict) -> None:
        self._before_start()
        with opened(fields["kernel_image_path"]) as kernel:
            if kernel.read(4) != b"\x7fELF":
                raise FaultError("The kernel file is not an ELF image")
        opened(fields["initrd_path"]).close()
        self.config["boot"] = fields

    def put_drives(self, path: str, fields: dict) -> None:
        self._before_start()
        if path != f"drives/{fields['drive_id']}":
            raise FaultError("The id from the path does not match the id from the body!")
        opened(fields["path_on_host"], "rb" if fields["is_read_only"] else "r+b").close()
        self.drives[fields["drive_id"]] = fields

    def put_vsock(self, path: str, fields: dict) -> None:
        self._before_start()
        if fields["guest_cid"] < 3:
            raise FaultError("guest_cid must be at least 3")
        self.config["vsock"] = fields

    def put_actions(self, path: str, fields: dict) -> None:
        if fields["action_type"] != "InstanceStart":
            raise FaultError(f"unknown variant `{fields['action_type']}`")
        self._before_start()
        if "boot" not in self.config:
            raise FaultError("Cannot start microvm without kernel configuration.")
        words = self.config["boot"]["boot_args"].split()
        for word in ("ordered=1", "vsock=1024", f"layers={len(self.drives) - 1}", "--boot"):
            if word not in words:  # what our init needs, and a kernel would find out
                print(f"benthic-init: {word} is not among {words}", flush=True)
                os._exit(1)
        with opened(self.config["boot"]["initrd_path"]) as archive:
            self.config["archive"] = archive.read()
        self._run(None)

    def put_vm(self, path: str, fields: dict) -> None:
        if self.state == "Not started":
            raise FaultError(BEFORE_START)
        wanted = {"Paused": "Paused", "Resumed": "Running"}.get(fields["state"])
        if wanted is None:
            raise FaultError(f"unknown variant `{fields['state']}`, expected `Paused` or `Resumed`")
        if wanted != self.state:
            self.guest.signal(signal.SIGSTOP if wanted == "Paused" else signal.SIGCONT)
        self.state = wanted

    def put_snapshot_create(self, path: str, fields: dict) -> None:
        if self.state == "Not started":
            raise FaultError(BEFORE_START)
        if self.state != "Paused":
            raise FaultError("Cannot save a microVM that is not paused: the vCPUs are running")
        size = self.config["machine"]["mem_size_mib"] << 20
        self.guest.save(Path(fields["mem_file_path"]), size)
        kept = {"config": {**self.config, "archive": self.config["archive"].hex()}, "drives": self.drives, "size": size}
        Path(fields["snapshot_path"]).write_text(json.dumps(kept))

    def put_snapshot_load(self, path: str, fields: dict) -> None:
        self._before_start()
        if self.config or self.drives:
            raise FaultError(CONFIGURED)
        backend = fields["mem_backend"]
        if set(backend) != {"backend_type", "backend_path"} or backend["backend_type"] != "File":
            raise FaultError("mem_backend needs backend_type and backend_path")
        with opened(fields["snapshot_path"]) as file:
            kept = json.loads(file.read())
        with opened(backend["backend_path"]) as memory:
            if os.fstat(memory.fileno()).st_size != kept["size"]:
                raise FaultError("The memory file has another size than the snapshot says")
        self.config, self.drives = kept["config"], kept["drives"]
        self.config["archive"] = bytes.fromhex(self.config["archive"])
        for fields_ in self.drives.values():
            opened(fields_["path_on_host"], "rb" if fields_["is_read_only"] else "r+b").close()
        self._run(Path(backend["backend_path"]))
        if not fields.get("resume_vm"):
            self.guest.signal(signal.SIGSTOP)
            self.state = "Paused"

    def _run(self, saved: Path | None) -> None:
        self.guest = Guest(self.config["archive"], saved)
        try:
            VsockServer(self.config["vsock"]["uds_path"], self.guest.path).begin()
        except OSError as error:
            raise FaultError(f"Cannot create the vsock: {error}") from None
        self.state = "Running"
        threading.Thread(target=self._end_with_guest, daemon=True).start()

    def _end_with_guest(self) -> None:
        status = self.guest.process.wait()
        self.guest.remove()
        print(f"Firecracker exiting: the guest ended with {status}", flush=True)
        os._exit(0)


class VsockServer(socketserver.ThreadingUnixStreamServer):
    """The host's end of a vsock: CONNECT <port>, OK <number>, and then bytes."""

    daemon_threads = True

    def __init__(self, path: str, init: str) -> None:
        super().__init__(path, VsockConnection)
        self.init, self.next_port = init, 1 << 30

    def begin(self) -> None:
        threading.Thread(target=self.serve_forever, daemon=True).start()


class VsockConnection(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        asked = self.rfile.readline(64)
        if asked != b"CONNECT 1024\n":
            return  # nobody listens there: the connection ends
        with socket.socket(socket.AF_UNIX) as inside:
            inside.connect(self.server.init)
            self.server.next_port += 1
            self.wfile.write(b"OK %d\n" % self.server.next_port)
            outwards = threading.Thread(target=pump, args=(inside, self.connection), daemon=True)
            outwards.start()
            while data := self.rfile.read1(1 << 16):
                inside.sendall(data)
            ending(inside)
            outwards.join()


class ApiRequest(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    machine: Machine

    def address_string(self) -> str:
        return "api"

    def log_message(self, *words: object) -> None:
        pass

    def _answer(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            fields = json.loads(data) if data else {}
            said = self.machine.ask(self.command, self.path.removeprefix("/"), fields)
            status = 204 if said is None else 200
        except (FaultError, ValueError, TypeError) as fault:
            status, said = 400, {"fault_message": str(fault)}
        body = b"" if said is None else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        if body:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_PATCH = _answer  # noqa: N815 - the names that the library looks for


def init_of(archive: bytes) -> bytes:
    """The member `init` of a boot archive."""
    at = 0
    while archive[at : at + 6] == b"070701":
        size, name_len = (int(archive[at + place : at + place + 8], 16) for place in (54, 94))
        data = (at + 110 + name_len + 3) & ~3
        if archive[at + 110 : at + 110 + name_len - 1] == b"init":
            return archive[data : data + size]
        at = (data + size + 3) & ~3
    print("Kernel panic - not syncing: No working init found.", flush=True)
    os._exit(1)


def opened(path: str, mode: str = "rb"):
    try:
        return open(path, mode)
    except OSError as error:
        raise FaultError(f"Unable to open {path}: {error.strerror} (os error {error.errno})") from None


def pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
    except OSError:
        pass
    ending(target)


def ending(target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def descendants(pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal():
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
        except OSError:
            continue
    found = list(parents.get(pid, []))
    for child in found:
        found += parents.get(child, [])
    return found


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print(f"Firecracker v{VERSION}")
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("--api-sock", required=True)
    parser.add_argument("--id", required=True)
    options = parser.parse_args()
    if len(options.id) > 64 or not options.id.replace("-", "").isalnum():
        sys.exit("Invalid instance ID")
    ApiRequest.machine = Machine(options.id)
    # One request at a time, by the first thread: what it starts ends when the thread that started it does.
    socketserver.UnixStreamServer(options.api_sock, ApiRequest).serve_forever()


if __name__ == "__main__":
    main()
