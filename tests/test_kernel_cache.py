"""Files of compiled kernels: only a whole file of the user's own is accepted; each kernel has its key.

What needs a compiler is in tests/models/test_kernel_cache.py.
"""

from __future__ import annotations

import errno
import functools
import importlib.util
import os
import shutil
import struct
import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import uaprop as ua
from uaprop.numerics import compiled, kernel_cache, rectified
from uaprop.numerics.kernel_key import compiler, kernel_key

if not hasattr(os, "geteuid"):
    pytest.skip("users and modes of files are as POSIX has them", allow_module_level=True)

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
AS_USER = pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write any file")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cache"
    kernel_cache.create(made)
    return made


def stored(folder: Path, name: str = "relu.so", content: bytes = b"library") -> Path:
    path = folder / name
    with kernel_cache.workspace(folder) as work:
        (work / "built.so").write_bytes(content)
        kernel_cache.store(work / "built.so", path)
    return path


def test_a_new_folder_and_its_files_are_for_the_user_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = tmp_path / "a" / "b"
        kernel_cache.create(folder)
        path = stored(folder)
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert path.stat().st_mode & 0o777 == 0o600
    kernel_cache.verify(path)
    assert [file.name for file in folder.iterdir()] == ["relu.so"]


def _truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _empty(path: Path) -> None:
    os.truncate(path, 0)


def _flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


def _append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def _rename_another(path: Path) -> None:
    os.replace(stored(path.parent, "other.so"), path)


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere.so"))
    path.symlink_to("elsewhere.so")


def _folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _writable_by_the_group(path: Path) -> None:
    path.chmod(0o660)


def _writable_by_all(path: Path) -> None:
    path.chmod(0o602)


DAMAGES: dict[Callable[[Path], None], str] = {
    _truncate: "checksum",
    _empty: "checksum",
    _flip_a_bit: "checksum",
    _append: "checksum",
    _rename_another: "checksum",
    _link: "cannot be read",
    _folder_in_its_place: "cannot be read",
    _pipe: "not a regular file",
    _writable_by_the_group: "mode 660",
    _writable_by_all: "mode 602",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__.strip("_"))
def test_a_file_that_is_not_as_it_was_stored_is_refused(
    folder: Path, damage: Callable[[Path], None]
) -> None:
    path = stored(folder)
    kernel_cache.verify(path)
    damage(path)
    with pytest.raises(kernel_cache.RefusedError, match=DAMAGES[damage]):
        kernel_cache.verify(path)


def test_every_truncation_is_noticed(folder: Path) -> None:
    path = stored(folder)
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(kernel_cache.RefusedError):
            kernel_cache.verify(path)


@AS_USER
def test_a_file_that_may_not_be_read_is_refused(folder: Path) -> None:
    path = stored(folder)
    path.chmod(0)
    with pytest.raises(kernel_cache.RefusedError, match="cannot be read"):
        kernel_cache.verify(path)


@AS_ROOT
def test_a_file_of_another_user_is_refused(folder: Path) -> None:
    path = stored(folder)
    os.chown(path, 12345, -1)
    with pytest.raises(kernel_cache.RefusedError, match="another user"):
        kernel_cache.verify(path)


@AS_ROOT
def test_a_folder_of_another_user_is_refused(folder: Path) -> None:
    path = stored(folder)
    os.chown(folder, 12345, -1)
    for use in (lambda: kernel_cache.verify(path), lambda: kernel_cache.create(folder)):
        with pytest.raises(kernel_cache.RefusedFolderError, match=r"uid 12345.*set UAPROP_CACHE"):
            use()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_may_write_to_is_refused(folder: Path, mode: int) -> None:
    path = stored(folder)
    folder.chmod(mode)
    for use in (lambda: kernel_cache.verify(path), lambda: kernel_cache.create(folder)):
        with pytest.raises(kernel_cache.RefusedFolderError, match="other users may write"):
            use()


def test_a_missing_file_or_folder_is_no_damage(tmp_path: Path) -> None:
    for path in (tmp_path / "relu.so", tmp_path / "nowhere" / "relu.so"):
        with pytest.raises(FileNotFoundError):
            kernel_cache.verify(path)


def test_a_full_disk_leaves_no_file_and_keeps_the_old_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    path = stored(folder)
    before = path.read_bytes()
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        stored(folder, content=b"another")
    with pytest.raises(OSError, match="No space left"):
        stored(folder, "new.so")
    assert path.read_bytes() == before
    assert [file.name for file in folder.iterdir()] == ["relu.so"]


def test_what_a_killed_process_left_is_removed_a_day_later(folder: Path) -> None:
    for name, age in ((".building-old", 2 * 86400), (".building-new", 60)):
        (folder / name).mkdir()
        (folder / name / "loop.so").write_bytes(b"half")
        moment = time.time() - age
        os.utime(folder / name, (moment, moment))
    with kernel_cache.workspace(folder):
        pass
    assert [file.name for file in folder.iterdir()] == [".building-new"]


def _stack_flags(library: bytes) -> list[int]:
    (offset,) = struct.unpack_from("<Q", library, 32)
    size, count = struct.unpack_from("<HH", library, 54)
    headers = [struct.unpack_from("<II", library, offset + size * i) for i in range(count)]
    return [flags for kind, flags in headers if kind == 0x6474E551]


def test_a_library_asks_for_no_executable_stack(folder: Path) -> None:
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<Q", header, 32, 64)
    struct.pack_into("<HH", header, 54, 56, 2)
    code, stack = bytearray(56), bytearray(56)
    struct.pack_into("<II", code, 0, 1, 5)  # PT_LOAD, readable and executable
    struct.pack_into("<II", stack, 0, 0x6474E551, 7)
    library = bytes(header + code + stack)
    assert _stack_flags(library) == [7]
    found = stored(folder, content=library).read_bytes()
    assert _stack_flags(found) == [6]
    differing = [i for i, (a, b) in enumerate(zip(library, found, strict=False)) if a != b]
    assert differing == [64 + 56 + 4]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"UAPROP_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/uaprop"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/uaprop"),
        ({"XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/uaprop"),
    ],
)
def test_where_kernels_are(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UAPROP_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert kernel_cache.folder() == Path(expected)


# ---------------------------------------------------------------- the key


def _made(factor: float) -> Callable[..., Any]:
    def scaled(mean: Any, var: Any) -> Any:
        return factor * mean, factor * factor * var

    return scaled


def _calls(inner: Callable[..., Any]) -> Callable[..., Any]:
    def outer(mean: Any, var: Any) -> Any:
        return inner(mean, var)

    return outer


def _with_default(mean: Any, var: Any, scale: float = 2.0) -> Any:
    return scale * mean, var


SCALE = 2.0


def _with_global(mean: Any, var: Any) -> Any:
    return SCALE * mean, var


def test_a_changed_kernel_has_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kernel_key(_made(2.0)) == kernel_key(_made(2.0))
    assert kernel_key(_made(2.0)) != kernel_key(_made(3.0))
    assert kernel_key(_calls(_made(2.0))) != kernel_key(_calls(_made(3.0)))
    before = kernel_key(_with_default)
    monkeypatch.setattr(_with_default, "__defaults__", (3.0,))
    assert kernel_key(_with_default) != before
    before = kernel_key(_with_global)
    monkeypatch.setitem(globals(), "SCALE", 3.0)
    assert kernel_key(_with_global) != before
    made = []
    for sign in "+-":
        space: dict[str, Any] = {"__name__": "rules"}
        exec(f"def moments(mean, var):\n    return mean {sign} var, var\n", space)
        made.append(kernel_key(space["moments"]))
    assert made[0] != made[1]


def _defined(source: str) -> Callable[..., Any]:
    space: dict[str, Any] = {"__name__": "rules", "torch": torch}
    exec(source, space)
    found: Callable[..., Any] = space["moments"]
    return found


def _holding(value: Any) -> Callable[..., Any]:
    def moments(mean: Any, var: Any) -> Any:
        return value, mean, var

    return moments


def _wrapping(inner: Callable[..., Any]) -> Callable[..., Any]:
    return functools.lru_cache(inner)


class _Scaled:
    def once(self, mean: Any, var: Any) -> Any:
        return mean, var

    def twice(self, mean: Any, var: Any) -> Any:
        return 2.0 * mean, 4.0 * var


def _method(factor: float) -> Callable[..., Any]:
    """A method that differs from others in what its function refers to alone."""
    return types.MethodType(_made(factor), _Scaled())


INNER = "def moments(mean, var):\n    return (lambda x: x * SCALE)(mean), var\nSCALE = {}\n"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            _defined("def moments(mean, var):\n    return 2.0 * mean, var\n"),
            _defined("def moments(mean, var):\n    return 3.0 * mean, var\n"),
        ),
        (
            _defined("def moments(mean, var):\n    return mean.sin(), var\n"),
            _defined("def moments(mean, var):\n    return mean.cos(), var\n"),
        ),
        (
            _defined("def moments(mean, var, *, scale=2.0):\n    return scale * mean, var\n"),
            _defined("def moments(mean, var, *, scale=3.0):\n    return scale * mean, var\n"),
        ),
        (_defined(INNER.format(2.0)), _defined(INNER.format(3.0))),
        (_holding(torch.tensor([1.0, 2.0])), _holding(torch.tensor([1.0, 3.0]))),
        (_holding(torch.tensor([1.0])), _holding(torch.tensor([1.0]).double())),
        (_holding(torch.float32), _holding(torch.float64)),
        (_holding({"scale": 2.0}), _holding({"scale": 3.0})),
        (_holding({"scale": 2.0}), _holding({"shift": 2.0})),
        (_holding({1, 2}), _holding({1, 3})),
        (_holding((1, (2, 3))), _holding((1, (2, 4)))),
        (_holding(((1,), 2)), _holding(((1, 2),))),
        (_holding((1, 2)), _holding([1, 2])),
        (_holding(True), _holding(1)),
        (_holding(functools.partial(_made, 2.0)), _holding(functools.partial(_made, 3.0))),
        (_holding(functools.partial(torch.sin)), _holding(functools.partial(torch.cos))),
        (
            _holding(functools.partial(_made, factor=2.0)),
            _holding(functools.partial(_made, factor=3.0)),
        ),
        (_holding(_Scaled().once), _holding(_Scaled().twice)),
        (_holding(_method(2.0)), _holding(_method(3.0))),
        (_holding(_wrapping(_made(2.0))), _holding(_wrapping(_made(3.0)))),
        (_holding(torch.sin), _holding(torch.cos)),
    ],
    ids=[
        "number",
        "name",
        "keyword default",
        "global of an inner function",
        "tensor",
        "tensor's type",
        "type",
        "table",
        "name in a table",
        "set",
        "nested numbers",
        "nesting",
        "tuple or list",
        "kind of number",
        "bound argument",
        "bound function",
        "bound keyword",
        "method",
        "method's function",
        "wrapped function",
        "torch's function",
    ],
)
def test_kernels_that_differ_in_one_thing_have_different_keys(
    one: Callable[..., Any], other: Callable[..., Any]
) -> None:
    assert kernel_key(one) == kernel_key(one)
    assert kernel_key(one) != kernel_key(other)


def _key_beside(formulas: str, folder: Path) -> str:
    """The key that a copy of the module computes which has these formulas beside it."""
    copy = folder / "kernel_key.py"
    shutil.copy(sys.modules[kernel_key.__module__].__file__ or "", copy)
    (folder / "formulas.py").write_text(formulas)
    spec = importlib.util.spec_from_file_location("copied", copy)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return str(module.kernel_key(_made(2.0)))


def test_changed_formulas_or_another_processor_have_another_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = _key_beside("HALF = 0.5", tmp_path)
    assert _key_beside("HALF = 0.6", tmp_path) != before
    assert _key_beside("HALF = 0.5", tmp_path) == before
    if Path("/proc/cpuinfo").exists():
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: "flags : none of them")
        assert _key_beside("HALF = 0.5", tmp_path) != before


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(torch, "__version__", "0.0"),
        lambda patch: patch.setattr(torch.version, "git_version", "0" * 40),
        lambda patch: patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "NONE"),
        lambda patch: patch.setattr("platform.machine", lambda: "another"),
        lambda patch: patch.setattr(sys, "platform", "another"),
        lambda patch: patch.setenv("TORCHINDUCTOR_CPP_ENABLE_UNSAFE_MATH_OPT_FLAG", "1"),
        lambda patch: patch.setenv("AOT_INDUCTOR_DEBUG_SYMBOLS", "1"),
        lambda patch: patch.setenv("AOTINDUCTOR_FREEZING", "1"),
        lambda patch: patch.setenv("ATEN_CPU_CAPABILITY", "default"),
    ],
    ids=["torch", "build", "cpu", "machine", "system", "code", "library", "freezing", "vectors"],
)
def test_another_torch_or_machine_has_another_key(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    function = _made(2.0)
    before = kernel_key(function)
    change(monkeypatch)
    assert kernel_key(function) != before
    monkeypatch.undo()
    assert kernel_key(function) == before


def test_another_compiler_has_another_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def key(name: str, text: str = "#!/bin/sh\n", time: int = 1000) -> str | None:
        program = tmp_path / name
        program.write_text(text)
        program.chmod(0o700)
        os.utime(program, (time, time))
        monkeypatch.setenv("CXX", str(program))
        return compiler()

    before = key("one")
    assert before is not None
    assert key("one") == before
    assert key("two") != before  # another path
    assert key("one", "#!/bin/sh\n\n") != before  # another size
    assert key("one", time=1001) != before  # another date
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    assert compiler() is None


def test_every_kernel_has_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its function, its dtype, what it takes, and the compiler."""
    files: list[Path] = []

    def noted(name: str, function: Any, dtype: Any, takes: str, path: Path) -> None:
        files.append(path)
        raise RuntimeError("there is no compiler")

    monkeypatch.setenv("UAPROP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "_build", noted)
    for program in ("one", "two"):
        (tmp_path / program).touch(mode=0o700)

    def ask(factor: float, dtype: torch.dtype, takes: str, program: str) -> None:
        for name, value in (("_loaded", {}), ("_work", {}), ("_failed", False)):
            monkeypatch.setattr(compiled, name, value)
        monkeypatch.setenv("CXX", str(tmp_path / program))
        with ua.fused(True):
            assert compiled.program(_made(factor), dtype, takes) is None

    first = (2.0, torch.float32, "vv", "one")
    ask(*first)
    ask(*first)
    assert files[0] == files[1]
    ask(3.0, torch.float32, "vv", "one")
    ask(2.0, torch.float64, "vv", "one")
    ask(2.0, torch.float32, "vn", "one")
    ask(2.0, torch.float32, "vv", "two")
    assert len(files) == 6
    assert len(set(files)) == 5


def test_the_key_is_the_same_in_another_process() -> None:
    code = (
        "from uaprop.numerics import rectified\n"
        "from uaprop.numerics.kernel_key import kernel_key\n"
        "print(kernel_key(rectified._relu))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {kernel_key(rectified._relu)}


# ---------------------------------------------------------------- threads and processes


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_process_forked_during_a_compilation_is_not_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has the right result, without the parent's compiler, and leaves the parent's files."""
    started, ended = threading.Event(), threading.Event()

    def slow(name: str, function: Any, dtype: Any, takes: str, path: Path) -> None:
        with kernel_cache.workspace(path.parent):
            started.set()
            ended.wait(60)
            raise RuntimeError("there is no compiler")

    monkeypatch.setenv("UAPROP_CACHE", str(tmp_path / "cache"))
    for name, value in (("_loaded", {}), ("_work", {}), ("_failed", False), ("_build", slow)):
        monkeypatch.setattr(compiled, name, value)
    x = torch.linspace(-2, 2, 50)
    expected = rectified.relu(x, x.abs())
    with ua.fused(True):
        thread = threading.Thread(target=rectified.relu, args=(x, x.abs()))
        thread.start()
        try:
            assert started.wait(60)
            child = os.fork()
            if child == 0:
                code = 1
                try:
                    found = rectified.relu(x, x.abs())
                    same = all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
                    code = 0 if same else 2
                finally:
                    os._exit(code)
            deadline, status = time.monotonic() + 60, (0, 0)
            while status[0] == 0 and time.monotonic() < deadline:
                status = os.waitpid(child, os.WNOHANG)
                time.sleep(0.02)
            if status[0] == 0:
                os.kill(child, 9)
                os.waitpid(child, 0)
                pytest.fail("the child process is stuck")
            assert os.waitstatus_to_exitcode(status[1]) == 0
            assert list((tmp_path / "cache").glob(".building-*"))
        finally:
            ended.set()
            thread.join()
