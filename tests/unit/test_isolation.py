"""The inherited state that a fork of the worker drops."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """\
import ctypes, os, socket, sys
from pathlib import Path
from etbuild.processes import sandbox as isolation

user = int(sys.argv[1])
if user != os.geteuid():
    os.setgid(user)
    os.setuid(user)
    ctypes.CDLL(None).prctl(4, 1)  # as open to itself as a process that has always been this user's
isolation.leave_network()
assert os.geteuid() == user, os.geteuid()
Path("written").write_text("")
print(*[name for _, name in socket.if_nameindex()])
server, client = socket.create_server(("127.0.0.1", 0)), socket.socket()
client.connect(server.getsockname())
"""
NOBODY = 65534
USERS = [0, NOBODY] if os.geteuid() == 0 else [os.geteuid()]


@pytest.mark.parametrize("user", USERS)
def test_a_process_leaves_the_network_and_keeps_its_user(user: int, tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--user", "--net", "true"], check=False, capture_output=True).returncode:
        pytest.skip("network namespaces are not allowed here")
    tmp_path.chmod(0o777)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(user)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "lo\n"), done.stderr
    assert (tmp_path / "written").stat().st_uid == user
