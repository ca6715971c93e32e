"""Compiling the simulated NVML library, once for each version of its source."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from slurm_colloc.errors import NodeError, StateError
from slurm_colloc.host.system.child_programs import run_program

LIBRARY = "libnvidia-ml.so.1"
CUDA_LIBRARY = "libcuda.so.1"
"""Another name of the same file, which has the driver's checkpoint calls, too."""

_HERE = Path(__file__).resolve().parent
_SOURCES = (
    "nvml.c",
    "nvml_device.c",
    "nvml_processes.c",
    "nvml_monitor.c",
    "nvml_state.c",
    "nvml_process_state.c",
    "nvml_faults.c",
    "nvml_mig_state.c",
    "nvml_profiles.c",
    "nvml_gpu_instances.c",
    "nvml_compute_profiles.c",
    "nvml_compute_instances.c",
    "nvml_mig_devices.c",
    "cuda_checkpoint.c",
)
_HEADERS = ("nvml_common.h", "nvml_state.h", "nvml_mig.h")
_FLAGS = (
    "-shared",
    "-fPIC",
    "-O2",
    "-Wall",
    "-Wextra",
    "-fvisibility=hidden",
    f"-Wl,-soname,{LIBRARY}",
)
_LIBRARIES = ("-lpthread", "-ldl")
_COMPILE_S = 60.0


class NoCompiler(NodeError):
    """There is no C compiler, or it does not work."""


def find_compiler(environment: Mapping[str, str]) -> str:
    """The path of `cc`.

    Raises:
        NoCompiler: PATH has none.
    """
    found = shutil.which("cc", path=environment.get("PATH"))
    if found is None:
        raise NoCompiler(
            "the simulated NVML library needs a C compiler, and PATH has no cc",
            hint="install gcc (Debian and Ubuntu: packages gcc and libc6-dev)",
        )
    return found


def install_library(target: Path, environment: Mapping[str, str]) -> None:
    """Put the library at `target`, compiled now or when the same source was last compiled.

    Args:
        target: Its path; the directory exists.
        environment: PATH names the compiler, HOME or XDG_CACHE_HOME the cache.

    Raises:
        NoCompiler: It has to be compiled and cannot be.
        StateError: It cannot be written.
    """
    cached = _choose_cache(environment) / f"nvml-{compute_key()}.so"
    if not _is_ours(cached):
        compiler = find_compiler(environment)
        with contextlib.suppress(OSError):
            cached.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not _is_our_directory(cached.parent):
            cached = target
        _compile(compiler, cached, environment)
    if cached == target:
        return
    try:
        with _replacing(target) as temporary:
            shutil.copyfile(cached, temporary)
    except OSError as error:
        raise StateError(f"{target} cannot be written ({error.strerror})") from error


def compute_key() -> str:
    """What the library is made from, as a short hash: sources, options, machine, C library."""
    digest = hashlib.sha256(repr((_FLAGS, _LIBRARIES, os.uname().machine)).encode())
    for name in (*_SOURCES, *_HEADERS):
        digest.update((_HERE / name).read_bytes())
    # A home directory may be shared by machines with different C libraries.
    digest.update(repr(platform.libc_ver()).encode())
    return digest.hexdigest()[:20]


def _compile(compiler: str, target: Path, environment: Mapping[str, str]) -> None:
    sources = [str(_HERE / name) for name in _SOURCES]
    try:
        with _replacing(target) as temporary:
            argv = [compiler, *_FLAGS, "-o", str(temporary), *sources, *_LIBRARIES]
            ended = run_program(argv, environment, timeout_s=_COMPILE_S)
            if ended.returncode != 0:
                lines = ended.stderr.strip().splitlines() or ["it gave no reason"]
                errors = [line for line in lines if "error" in line]
                raise NoCompiler(
                    f"the simulated NVML library does not compile with {compiler} "
                    f"({(errors or lines)[0]})",
                    hint="install gcc and the C library's headers (Debian: gcc and libc6-dev)",
                )
    except OSError as error:
        raise NoCompiler(
            f"the simulated NVML library cannot be compiled to {target} ({error.strerror})"
        ) from error


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    """A temporary file next to `target` that takes its place; programs that use it keep the old."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o755)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def _choose_cache(environment: Mapping[str, str]) -> Path:
    base = environment.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        base = f"{environment.get('HOME') or '/nonexistent'}/.cache"
    return Path(base) / "slurm_colloc"


def _is_our_directory(path: Path) -> bool:
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()


def _is_ours(path: Path) -> bool:
    """Whether a compiled library can be trusted: no other user may have written it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return _is_our_directory(path.parent) and (
        stat.S_ISREG(status.st_mode)
        and status.st_uid == os.geteuid()
        and not status.st_mode & 0o022
    )
