"""Kernels from the cache, in processes of their own: right results whatever happens to files and folders.

Every process prints how far compiled results are from the formula's, and how many kernels it has loaded.
"""

from __future__ import annotations

import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

if not hasattr(os, "geteuid"):
    pytest.skip("users and modes of files are as POSIX has them", allow_module_level=True)

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
AS_USER = pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write any file")
PROCESS = """
import sys, torch, uaprop as ua
from uaprop.numerics import compiled, rectified
mean, var = torch.linspace(-5, 5, 200), torch.linspace(0, 4, 200)
with ua.fused(False):
    expected = rectified.relu(mean, var)
with ua.fused({mode}):
    for _ in range(3):
        found = rectified.relu(mean, var)
error = max(float((a - b).abs().max()) for a, b in zip(found, expected))
print(error < 1e-5, len(compiled._loaded))
"""
RIGHT, LOADED, WITHOUT = "True", "True 1", "True 0"


def environment(folder: Path | None, **changes: str | None) -> dict[str, str]:
    changes = {"UAPROP_CACHE": None if folder is None else str(folder), **changes}
    found = {k: v for k, v in os.environ.items() if k not in changes}
    return found | {k: v for k, v in changes.items() if v is not None}


def start(
    folder: Path | None,
    mode: bool | None,
    before: Callable[[], None] | None = None,
    **env: str | None,
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS.format(mode=mode)],
        env=environment(folder, **env),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=before,
        start_new_session=True,
    )


def run(
    folder: Path | None,
    mode: bool | None,
    before: Callable[[], None] | None = None,
    **env: str | None,
) -> tuple[str, list[str]]:
    """What a process prints, and what uaprop says to its user."""
    process = start(folder, mode, before, **env)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out.strip(), [line for line in err.splitlines() if line.startswith("uaprop: ")]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kernels")
    out, told = run(folder, True)
    assert out == LOADED
    assert [line.split()[1] for line in told] == ["compiling", "compiled"]
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path) -> Path:
    """A copy of the cache with one good kernel."""
    return Path(shutil.copytree(built, tmp_path / "cache"))


def kernel(folder: Path) -> Path:
    (path,) = folder.glob("*.so")
    return path


def test_a_good_kernel_is_loaded_without_a_word(folder: Path) -> None:
    assert run(folder, None) == (LOADED, [])


def test_it_asks_for_no_executable_stack(folder: Path) -> None:
    library = kernel(folder).read_bytes()
    if library[:6] != b"\x7fELF\x02\x01":
        pytest.skip("not a little-endian ELF file")
    (offset,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    headers = [struct.unpack_from("<II", library, offset + size * i) for i in range(count)]
    assert [flags & 1 for kind, flags in headers if kind == 0x6474E551] == [0]


def _truncate(path: Path) -> None:
    os.truncate(path, 4096 * 10)  # whole pages of the file are missing: SIGBUS if it is mapped


def _garbage(path: Path) -> None:
    path.write_bytes(b"\x7fELF" + bytes(5000))


def _open_to_all(path: Path) -> None:
    path.chmod(0o666)


def _of_another_user(path: Path) -> None:
    os.chown(path, 12345, 12345)


DAMAGES = [_truncate, _garbage, _open_to_all, pytest.param(_of_another_user, marks=AS_ROOT)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_kernel_is_not_loaded_and_said_so_once(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    path = kernel(folder)
    damage(path)
    out, told = run(folder, None)
    assert out == WITHOUT
    assert len(told) == 1
    assert f"the compiled kernel {path} is not used: " in told[0]
    assert run(folder, None) == (WITHOUT, [])  # it is gone


def test_a_bad_kernel_is_compiled_again(folder: Path) -> None:
    path = kernel(folder)
    _truncate(path)
    out, told = run(folder, True)
    assert out == LOADED
    assert sum("is not used" in line for line in told) == 1
    assert run(folder, None) == (LOADED, [])


def test_a_library_that_cannot_be_loaded_is_compiled_again(folder: Path) -> None:
    """Its checksum is right: such as one that links to a library that is gone."""
    from uaprop.numerics import kernel_cache

    path = kernel(folder)
    with kernel_cache.workspace(folder) as work:
        (work / "built.so").write_bytes(b"no library at all")
        kernel_cache.store(work / "built.so", path)
    out, told = run(folder, True)
    assert out == LOADED
    assert sum("is not used" in line for line in told) == 1


@AS_ROOT
def test_a_folder_of_another_user_is_not_used(folder: Path) -> None:
    os.chown(folder, 12345, 12345)
    before = sorted(folder.iterdir())
    for mode in (None, True):
        out, told = run(folder, mode)
        assert out == WITHOUT
        assert len(told) == 1
        assert "uid 12345" in told[0]
        assert "UAPROP_CACHE" in told[0]
    assert sorted(folder.iterdir()) == before


def test_a_folder_that_others_may_write_to_is_not_used(folder: Path) -> None:
    folder.chmod(0o777)
    out, told = run(folder, True)
    assert out == WITHOUT
    assert len(told) == 1
    assert "other users may write to it" in told[0]


@AS_ROOT
def test_without_a_home() -> None:
    """As a user that the system does not know, in a process without HOME."""
    marker = "with ua.fused(True)"
    script = PROCESS.format(mode=True).replace(marker, f"import os; os.setuid(54321)\n{marker}")
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(None, HOME=None, XDG_CACHE_HOME=None),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == WITHOUT
    told = [line for line in done.stderr.splitlines() if line.startswith("uaprop: ")]
    assert len(told) == 1
    assert "UAPROP_CACHE" in told[0]


def test_a_place_where_no_folder_can_be_made() -> None:
    """Not even by root."""
    out, told = run(Path("/proc/uaprop"), True)
    assert out == WITHOUT
    assert len(told) == 1


@AS_USER
def test_a_folder_that_may_only_be_read(folder: Path) -> None:
    folder.chmod(0o500)
    try:
        assert run(folder, None) == (LOADED, [])
    finally:
        folder.chmod(0o700)


def test_a_full_disk(tmp_path: Path) -> None:
    """No file may be longer than 64 kB."""
    import resource

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    folder, scratch = tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    out, told = run(folder, True, limited, TORCHINDUCTOR_CACHE_DIR=str(scratch))
    assert out == WITHOUT
    assert sum("without a compiler" in line for line in told) == 1
    assert not list(folder.glob("*.so"))
    assert not list(folder.glob(".building-*"))
    out, _ = run(folder, True, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "other"))
    assert out == LOADED


def test_without_a_compiler(tmp_path: Path, folder: Path) -> None:
    gone = {"CXX": str(tmp_path / "no-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "t")}
    out, told = run(tmp_path / "empty", True, **gone)
    assert out == WITHOUT
    assert sum("without a compiler" in line for line in told) == 1
    assert run(folder, None, **gone) == (LOADED, [])  # what was compiled elsewhere is used


def test_four_processes_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    processes = [start(folder, True) for _ in range(4)]
    outputs = [process.communicate(timeout=600) for process in processes]
    assert [out.strip() for out, _ in outputs] == [LOADED] * 4, [err for _, err in outputs]
    kernel(folder)
    assert not list(folder.glob(".building-*"))
    assert run(folder, None) == (LOADED, [])


@pytest.mark.parametrize("seconds", [1.0, 4.0])
def test_a_process_killed_while_it_compiles(tmp_path: Path, seconds: float) -> None:
    """With its compiler, at several moments; the next one compiles again."""
    folder, scratch = tmp_path / "cache", str(tmp_path / "scratch")
    process = start(folder, True, TORCHINDUCTOR_CACHE_DIR=scratch)
    deadline = time.monotonic() + 120
    while not list(folder.glob(".building-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    out, told = run(folder, True, TORCHINDUCTOR_CACHE_DIR=scratch)
    assert out == LOADED, told
    kernel(folder)
