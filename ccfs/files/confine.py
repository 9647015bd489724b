"""Confine this process: limits of memory, time and files and, on Linux, no network and no writes outside of one folder.

Nothing here needs a privilege. Linux gives three means to every process: resource limits, Landlock for the file system
(kernel 5.13 and later) and seccomp for system calls. Children of the process inherit them, and nobody can lift them.
Whatever this machine does not give is returned in words, so that a user can be told.

These limits hold for each process. What all processes of the child have together is watched from outside, by `excess`.
"""

from __future__ import annotations

import ctypes
import os
import platform
import stat
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Confinement", "confine", "end_with_parent", "excess", "has_others"]

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_FILTER = 1, 22, 38, 2
_EPERM = 1
_DEEPEST = 32

# Landlock: system calls, which have the same numbers everywhere, and access rights.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_PATH_BENEATH, _ABI = 1, 1
_WRITE_FILE, _TRUNCATE, _IOCTL_DEVICE = 1 << 1, 1 << 14, 1 << 15
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13
_TCP = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11
# The first version of Landlock's interface that has each of these.
_HAS_REFER, _HAS_TRUNCATE, _HAS_TCP, _HAS_DEVICES, _HAS_SCOPES = 2, 3, 4, 5, 6

# Numbers of system calls that are refused, for each processor: making a socket, `io_uring` (which can make one),
# looking into other processes, and changing modes, owners and attributes of files, which Landlock does not cover. Also
# leaving the group of processes (so that the whole group can be ended), memory that outlives the process or that no
# limit counts, and priorities of other processes. Calls that came later have the same numbers everywhere.
_NEW_CALLS = (425, 426, 427, 438, 447, 452, 463, 466, 469)
_REFUSED: dict[str, tuple[int, tuple[int, ...]]] = {
    "x86_64": (
        0xC000003E,
        (
            *(41, 101, 310, 311, 90, 91, 268, 92, 93, 94, 260, 188, 189, 190, 197, 198, 199),
            *(109, 112, 319, 29, 240, 141, 251),
            *_NEW_CALLS,
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(198, 117, 270, 271, 52, 53, 54, 55, 5, 6, 7, 14, 15, 16),
            *(154, 157, 279, 194, 180, 140, 30),
            *_NEW_CALLS,
        ),
    ),
}
# Calls that are refused unless the process means itself, which is written as 0 in the first argument: its limits, its
# processors and its scheduling.
_OWN_ONLY = {"x86_64": (302, 203, 144, 142, 314, 256, 279), "aarch64": (261, 122, 119, 118, 274, 238, 239)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Confinement:
    """How far a process is confined.

    Args:
        memory: bytes of data.
        seconds: of processor time.
        file_size: bytes of one file that it writes.
        open_files: how many files may be open.
        resident: bytes in memory, of the process and those that it started.
        processes: how many these may be.
        written: bytes of all files in the folder where it may write.
        files: how many files and folders may be there.
    """

    memory: int = 8 << 30
    seconds: int = 24 * 3600
    file_size: int = 256 << 20
    open_files: int = 512
    resident: int = 4 << 30
    processes: int = 64
    written: int = 1 << 30
    files: int = 100_000


def confine(scratch: Path, settings: Confinement) -> tuple[str, ...]:
    """Confine this process for good, and return what could not be confined, in words.

    Call it while the process has one thread, because other threads would stay free.

    Args:
        scratch: the folder where it may write.
        settings: the limits.
    """
    left = _limit_resources(settings)
    if sys.platform != "linux":
        return (*left, "the network", "writes to your files", "signals to your other processes")
    libc = ctypes.CDLL(None, use_errno=True)
    end_with_parent()
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return (*left, "the network", "writes to your files", "signals to your other processes")
    left += _drop_capabilities(libc)
    left += _restrict_files(libc, scratch)
    left += _refuse_system_calls(libc)
    return left


def end_with_parent(number: int = 9) -> None:
    """Let this process get a signal (SIGKILL) when the one that started it ends. Only Linux knows this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def excess(group: int, scratch: Path, settings: Confinement) -> str | None:
    """Return in words what a group of processes has more of than it may, or None. Only Linux tells about processes.

    Args:
        group: number of the group, which is that of its first process.
        scratch: the folder where it may write.
        settings: the limits.
    """
    members = _members(group)
    if len(members) > settings.processes:
        return f"more than {settings.processes} processes"
    hidden = _Hidden(scratch, settings.file_size)
    try:
        for member in members:
            hidden.look(member)
    except PermissionError:
        return "away the right to look at a process"
    if sum(members.values()) + hidden.memory > settings.resident:
        return f"more than {settings.resident >> 20:,} MiB of memory"
    return _too_much_written(scratch, hidden.written, settings)


def has_others(group: int) -> bool:
    """Return whether a group of processes has members besides this process."""
    return any(member != os.getpid() for member in _members(group))


def _too_much_written(scratch: Path, written: int, settings: Confinement) -> str | None:
    """Return in words what is too much in a folder, or None. A folder that cannot be read could hold anything."""
    pending, count = [(os.fspath(scratch), 0)], 0
    while pending:
        folder, depth = pending.pop()
        try:
            with os.scandir(folder) as listing:
                for entry in listing:
                    count += 1
                    if count > settings.files:
                        return f"more than {settings.files:,} files"
                    if entry.is_dir(follow_symlinks=False):
                        pending.append((entry.path, depth + 1))
                    written += _size(Path(entry.path))
        except (FileNotFoundError, NotADirectoryError):
            continue  # it may vanish at any moment
        except OSError:
            return "away the right to read a folder"
        if depth > _DEEPEST:
            return f"more than {_DEEPEST} levels of folders"
    return f"more than {settings.written >> 20:,} MiB of files" if written > settings.written else None


class _Hidden:
    """What processes hold that no listing shows: files without a name, and shared memory that no process touches."""

    def __init__(self, scratch: Path, file_size: int) -> None:
        self._scratch, self._file_size = os.fsencode(scratch.resolve()), file_size
        self._files: dict[int, int] = {}
        self._shared: dict[int, int] = {}

    def look(self, process: int) -> None:
        """Look at the files and the memory of a process."""
        with suppress(FileNotFoundError, ProcessLookupError):  # it may end at any moment
            for name in os.listdir(f"/proc/{process}/fd"):
                with suppress(FileNotFoundError):
                    status = os.stat(f"/proc/{process}/fd/{name}")
                    if stat.S_ISREG(status.st_mode) and not status.st_nlink:
                        self._files[status.st_ino] = status.st_blocks * 512
            for line in Path(f"/proc/{process}/maps").read_bytes().splitlines():
                self._look_at(line.split(None, 5))

    def _look_at(self, mapping: list[bytes]) -> None:
        if len(mapping) < 6 or not mapping[5].endswith(b" (deleted)"):
            return
        first, last = (int(place, 16) for place in mapping[0].split(b"-"))
        number = int(mapping[4])
        if mapping[5].startswith(self._scratch):
            # Nobody can ask how long it is, so it counts as long as it may be.
            self._files.setdefault(number, self._file_size)
        elif mapping[1].endswith(b"s"):
            self._shared[number] = max(self._shared.get(number, 0), last - first)

    @property
    def written(self) -> int:
        """Bytes of files without a name."""
        return sum(self._files.values())

    @property
    def memory(self) -> int:
        """Bytes of shared memory."""
        return sum(self._shared.values())


def _members(group: int) -> dict[int, int]:
    """Return the bytes in memory of each process of a group. Only Linux tells."""
    found: dict[int, int] = {}
    if sys.platform != "linux":
        return found
    page = os.sysconf("SC_PAGE_SIZE")
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError, ValueError, IndexError):  # it may end at any moment
            # The name of the program, in brackets, may hold spaces and brackets.
            fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            if int(fields[2]) == group and fields[0] != "Z":
                found[int(name)] = int(fields[21]) * page
    return found


def _size(path: Path) -> int:
    with suppress(OSError):
        return path.lstat().st_blocks * 512
    return 0


def _limit_resources(settings: Confinement) -> tuple[str, ...]:
    try:
        import resource
    except ImportError:  # Windows
        return ("memory", "processor time", "files")
    wanted = (
        # On Linux this covers all memory that a process can write to. Elsewhere it may cover less.
        (resource.RLIMIT_DATA, settings.memory),
        (resource.RLIMIT_CPU, settings.seconds),
        (resource.RLIMIT_FSIZE, settings.file_size),
        (resource.RLIMIT_NOFILE, settings.open_files),
        (resource.RLIMIT_CORE, 0),
    )
    for kind, most in wanted:
        _, hard = resource.getrlimit(kind)
        value = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (value, value))
    return () if sys.platform == "linux" else ("memory",)


def _drop_capabilities(libc: ctypes.CDLL) -> tuple[str, ...]:
    """Give up the powers of root, if this is root."""
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    return ("the powers of root",) if libc.capset(header, data) and os.geteuid() == 0 else ()


def _restrict_files(libc: ctypes.CDLL, scratch: Path) -> tuple[str, ...]:
    """Allow writes below `scratch` and to /dev/null only."""
    free = ("writes to your files", "signals to your other processes")
    version = libc.syscall(_CREATE_RULESET, None, 0, _ABI)
    if version < 1:
        return free
    writes = _WRITE_FILE | _REMOVE_AND_MAKE
    writes |= (_REFER if version >= _HAS_REFER else 0) | (_TRUNCATE if version >= _HAS_TRUNCATE else 0)
    writes |= _IOCTL_DEVICE if version >= _HAS_DEVICES else 0
    net = _TCP if version >= _HAS_TCP else 0
    scopes = _ABSTRACT_SOCKETS_AND_SIGNALS if version >= _HAS_SCOPES else 0
    size = 24 if version >= _HAS_SCOPES else 16 if version >= _HAS_TCP else 8
    rules = libc.syscall(_CREATE_RULESET, struct.pack("=QQQ", writes, net, scopes)[:size], size, 0)
    if rules < 0:
        return free
    file_rights = writes & (_WRITE_FILE | _TRUNCATE | _IOCTL_DEVICE)
    try:
        for path, rights in ((scratch, writes), (Path(os.devnull), file_rights)):
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                failed = libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", rights, place), 0)
            finally:
                os.close(place)
            if failed:
                return free
        if libc.syscall(_RESTRICT_SELF, rules, 0):
            return free
    finally:
        os.close(rules)
    left = () if version >= _HAS_TRUNCATE else ("emptying your files",)
    return left if version >= _HAS_SCOPES else (*left, "signals to your other processes")


def _refuse_system_calls(libc: ctypes.CDLL) -> tuple[str, ...]:
    """Answer some system calls with "not permitted", by a small program that the kernel runs before each call."""
    if platform.machine() not in _REFUSED or struct.calcsize("P") != 8:
        return ("the network",)
    architecture, refused = _REFUSED[platform.machine()]
    own_only = _OWN_ONLY[platform.machine()]
    load, jump_if_equal, jump_if_at_least, answer = 0x20, 0x15, 0x35, 0x06
    allow, refuse, kill = 0x7FFF0000, 0x00050000 | _EPERM, 0x80000000
    # Jumps count the lines that are passed over. The last five lines are the ends of the program.
    end = len(refused) + len(own_only)
    program = [(load, 0, 0, 4), (jump_if_equal, 1, 0, architecture), (answer, 0, 0, kill), (load, 0, 0, 0)]
    # Numbers from here on are those of another set of system calls of the same processor.
    program += [(jump_if_at_least, end + 4, 0, 0x40000000)]
    program += [(jump_if_equal, end + 3 - place, 0, number) for place, number in enumerate(refused)]
    program += [(jump_if_equal, end - place, 0, number) for place, number in enumerate(own_only, start=len(refused))]
    program += [(answer, 0, 0, allow), (load, 0, 0, 16), (jump_if_equal, 0, 1, 0)]
    program += [(answer, 0, 0, allow), (answer, 0, 0, refuse)]
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    head = ctypes.create_string_buffer(struct.pack("@HxxxxxxQ", len(program), ctypes.addressof(buffer)))
    failed = libc.prctl(_PR_SET_SECCOMP, _SECCOMP_FILTER, head, 0, 0)
    return ("the network",) if failed else ()
