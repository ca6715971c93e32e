"""Makes NVML call a real GPU lost, for every program of this environment: a fault on demand.

No one takes a GPU off its bus for a test. What is played is what programs see of it: NVIDIA's
Python binding answers GPU_IS_LOST for that GPU, by whichever way it is asked for.
"""

from __future__ import annotations

import contextlib
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

_NAME = "csub_lossy_nvml"
_MODULE = """
import ctypes, importlib.abc, importlib.util, os, sys

LOST = {lost!r}


def read_lost():
    try:
        with open(LOST) as file:
            return file.read().split()
    except OSError:
        return []


def patch(nvml):
    uuids = {{}}
    ask_uuid = nvml.nvmlDeviceGetUUID

    def key_of(handle):
        return ctypes.cast(handle, ctypes.c_void_p).value

    def fail():
        raise nvml.NVMLError(nvml.NVML_ERROR_GPU_IS_LOST)

    def wrap_find(find):
        def found(*arguments, **named):
            handle = find(*arguments, **named)
            uuid = ask_uuid(handle)
            uuid = uuid.decode() if isinstance(uuid, bytes) else uuid
            uuids[key_of(handle)] = uuid
            return fail() if uuid in read_lost() else handle
        return found

    def wrap(call):
        def called(handle, *arguments, **named):
            try:
                uuid = uuids.get(key_of(handle))
            except (ctypes.ArgumentError, TypeError):
                uuid = None
            if uuid is not None and uuid in read_lost():
                fail()
            return call(handle, *arguments, **named)
        return called

    for name in dir(nvml):
        call = getattr(nvml, name)
        if not callable(call) or not name.startswith(("nvmlDevice", "nvmlGpmSampleGet")):
            continue
        if name.startswith("nvmlDeviceGetHandleBy"):
            setattr(nvml, name, wrap_find(call))
        elif not name.startswith("nvmlDeviceGetCount"):
            setattr(nvml, name, wrap(call))


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "pynvml":
            return None
        sys.meta_path.remove(self)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def execute(module):
                load(module)
                patch(module)

            spec.loader.exec_module = execute
        return spec


sys.meta_path.insert(0, Finder())
"""


@contextlib.contextmanager
def breaking_nvml() -> Iterator[Callable[[str], None]]:
    """While it lasts, programs that start in this environment believe what is said to be lost.

    Returns:
        Says that a GPU is lost, by UUID.
    """
    site = Path(sysconfig.get_path("purelib"))
    lost = site / f"{_NAME}.lost"
    files = {
        site / f"{_NAME}.py": _MODULE.format(lost=str(lost)),
        site / f"{_NAME}.pth": f"import {_NAME}\n",
        lost: "",
    }
    try:
        for path, text in files.items():
            path.write_text(text)
            path.chmod(0o644)

        def lose(uuid: str) -> None:
            lost.write_text(f"{uuid}\n")

        yield lose
    finally:
        for path in files:
            path.unlink(missing_ok=True)
