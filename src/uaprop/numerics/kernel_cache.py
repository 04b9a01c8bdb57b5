"""Compiled kernels on disk: a private folder of files that carry their own checksum.

A shared library runs as code of this process, and one that was cut short ends the process with SIGBUS. So a
file is loaded only after these checks: folder and file belong to this user or to root, no other user may
write to them, and the checksum at the file's end, over its name and all that comes before, is right. Files
are written elsewhere in the folder and renamed once they are whole, so that a process that is killed or runs
out of disk space leaves nothing behind under the final name.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import struct
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = [
    "RefusedError",
    "RefusedFolderError",
    "create",
    "discard",
    "folder",
    "store",
    "verify",
    "workspace",
]

_MARK = b"\nuaprop kernel 1\n"  # followed by the SHA-256 of name and content
_DIGEST = hashlib.sha256().digest_size
_WORKSPACE = ".building-"
_ABANDONED = 24 * 3600  # seconds after which nothing is being compiled there any more
_STACK = 0x6474E551  # PT_GNU_STACK: the program header that says how the stack is to be mapped
_EXECUTABLE = 1  # PF_X


class RefusedError(Exception):
    """A file that must not be loaded; says why."""


class RefusedFolderError(Exception):
    """A folder whose files must not be loaded; says why, and what to do."""


def folder() -> Path | None:
    """Where compiled kernels are; it need not exist.

    Returns:
        ``UAPROP_CACHE``, else ``uaprop`` in ``XDG_CACHE_HOME``, else ``~/.cache/uaprop``; None if there is
        neither of these variables nor a home folder.
    """
    if chosen := os.environ.get("UAPROP_CACHE"):
        return Path(chosen).absolute()
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not base.is_absolute():  # which the XDG specification says to ignore
        try:
            base = Path.home() / ".cache"
        except RuntimeError:
            return None
    return base / "uaprop"


def create(path: Path) -> None:
    """Make the folder, for this user alone; one that exists is checked.

    Raises:
        RefusedFolderError: if it exists and another user owns it or may write to it.
        OSError: if it cannot be made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    _check_folder(path)


def verify(path: Path) -> None:
    """Check that a file is what :func:`store` wrote, and that no other user could have changed it.

    Raises:
        FileNotFoundError: if there is none.
        RefusedError: if it must not be loaded.
        RefusedFolderError: if nothing in its folder must be.
    """
    _check_folder(path.parent)
    try:
        with open(path, "rb", opener=_cautious) as file:
            status = os.fstat(file.fileno())
            regular = stat.S_ISREG(status.st_mode)
            problem = _exposure(status) if regular else "it is not a regular file"
            data = b"" if problem else file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RefusedError(f"it cannot be read ({error.strerror})") from error
    if problem:
        raise RefusedError(problem)
    end = len(data) - len(_MARK) - _DIGEST
    if end < 0 or data[end:] != _seal(path, data[:end]):
        raise RefusedError("it is damaged: its checksum is wrong")


def store(built: Path, path: Path) -> None:
    """Move a shared library to its place, whole or not at all, with its checksum.

    Args:
        built: the library, in a :func:`workspace` of the folder.
        path: where it is to be.
    """
    library = _without_executable_stack(built.read_bytes())
    draft = built.with_suffix(".sealed")
    with open(draft, "xb", opener=_private) as file:
        file.write(library)
        file.write(_seal(path, library))
        file.flush()
        os.fsync(
            file.fileno()
        )  # before the name: a crash must not leave the name without the content
    os.replace(draft, path)


def discard(path: Path) -> None:
    """Remove a file that was refused, if that is possible."""
    with contextlib.suppress(OSError):
        path.unlink()


@contextlib.contextmanager
def workspace(parent: Path) -> Iterator[Path]:
    """A private folder to compile in, removed afterwards.

    What a killed process left behind is removed a day later.

    Yields:
        The folder.
    """
    for old in parent.glob(f"{_WORKSPACE}*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > _ABANDONED:
                shutil.rmtree(old, ignore_errors=True)
    # Not TemporaryDirectory: a process forked meanwhile would remove it when it ends.
    made = Path(tempfile.mkdtemp(prefix=_WORKSPACE, dir=parent))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _seal(path: Path, library: bytes) -> bytes:
    """What follows a library in its file: the name is part of it, so that no kernel passes for another."""
    return _MARK + hashlib.sha256(path.name.encode() + b"\0" + library).digest()


def _cautious(path: str, flags: int) -> int:
    """Not through a symbolic link, and not waiting for the writer of a named pipe."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _check_folder(path: Path) -> None:
    try:
        status = path.stat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise RefusedFolderError(f"{path} cannot be opened ({error.strerror})") from error
    problem = _exposure(status) if stat.S_ISDIR(status.st_mode) else "it is not a folder"
    if problem:
        remedy = "set UAPROP_CACHE to a folder of your own that others cannot write to"
        raise RefusedFolderError(f"{path}: {problem}; {remedy}")


def _exposure(status: os.stat_result) -> str:
    """Who else may have written it, besides this user and root, who could change torch as well."""
    if not hasattr(os, "geteuid"):  # Windows, where a mode says nothing of other users
        return ""
    if status.st_uid not in (os.geteuid(), 0):
        return f"it belongs to another user (uid {status.st_uid})"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"other users may write to it (mode {stat.S_IMODE(status.st_mode):o})"
    return ""


def _without_executable_stack(library: bytes) -> bytes:
    """An ELF file as the linker's ``-z noexecstack`` makes it; other formats as they are.

    AOTInductor assembles a file without the note that it needs no executable stack, and takes no options
    for the linker. An executable stack is a risk, and hardened systems refuse to load such a library.

    Returns:
        The file's content.
    """
    if library[:5] != b"\x7fELF\x02":  # torch has no builds for 32 bits
        return library
    order = "<" if library[5] == 1 else ">"
    (offset,) = struct.unpack_from(f"{order}Q", library, 32)
    size, count = struct.unpack_from(f"{order}HH", library, 54)
    changed = bytearray(library)
    for header in range(offset, offset + size * count, size):
        kind, flags = struct.unpack_from(f"{order}II", changed, header)
        if kind == _STACK:
            struct.pack_into(f"{order}I", changed, header + 4, flags & ~_EXECUTABLE)
    return bytes(changed)
