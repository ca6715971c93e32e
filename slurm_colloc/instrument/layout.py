"""The counter file of one process: 256 bytes, one table for the writer and the reader.

The file lies in the directory that SLURM_COLLOC_PROGRESS names and is called
`PID.START.progress`, START being the process's start in ticks from /proc/self/stat: a pid that
is used again is another file. It is 32 words of 8 bytes, little endian, each written whole:

    word  content
       0  magic `CSUBPROG`
       1  version u16, size in bytes u16, flags u32
       2  pid i64
       3  sequence u64, odd while the file is being written
       4  steps u64
       5  skipped u64: steps that an AMP scaler refused because of infinite gradients
       6  samples u64
       7  batches u64
       8  wait_ns u64: time waited for data
       9  micro u64, reserved
      10  first_step_ns i64, CLOCK_MONOTONIC
      11  last_step_ns i64
      12  updated_ns i64
      13  rank i64, -1 where there is none
      14  world i64, 0 where it is not known
      15  source u32, optimizers u32
      16  gpu_reserved_peak u64: the most bytes that PyTorch's allocator had reserved at once on
          each of its GPUs, added up over them
      17  gpu_reserved u64: the same at the newest look
      18  gpu_read_ns i64: when it was looked at last
      19  loader_workers i64: workers of the DataLoader whose batches steps follow, and one; 0 is
          "unknown"
      20  zero to the end

Times are CLOCK_MONOTONIC in nanoseconds and mean something on the same node only; 0 is "never".
Writers that do not know the words from 16 on leave them 0: the allocator was never asked.
"""

from __future__ import annotations

import struct

MAGIC = b"CSUBPROG"
VERSION = 1
SIZE = 256
SUFFIX = ".progress"
VARIABLE = "SLURM_COLLOC_PROGRESS"
STALLS = "SLURM_COLLOC_STALLS"
"""Path of what torch_stalls finds; next to it a mark that it has begun, and the workers' turn."""

LOADERS = ".loaders"
"""Next to the members' directories: one for each loader that may be shared, see loading/members."""

# Beside the counter files, see door.py.
GPU_USED = "gpu.used"
DOOR = "door"

FLAG_FINISHED = 1
FLAG_SEVERAL_OPTIMIZERS = 2
FLAG_SEVERAL_LOADERS = 4
# A fused optimizer skips inside its kernel, and to ask it would make the host wait for the GPU.
FLAG_SKIPS_UNKNOWN = 8

SOURCE_OPTIMIZER = 1
SOURCE_API = 2
SOURCE_REGEX = 3

# Numbers of the words, for a writer that stores them one at a time.
HEAD = 1
PID = 2
SEQUENCE = 3
STEPS = 4
SKIPPED = 5
SAMPLES = 6
BATCHES = 7
WAIT_NS = 8
FIRST_STEP_NS = 10
LAST_STEP_NS = 11
UPDATED_NS = 12
RANK = 13
WORLD = 14
ORIGIN = 15
GPU_RESERVED_PEAK = 16
GPU_RESERVED = 17
GPU_READ_NS = 18
LOADER_WORKERS = 19

WORKERS_MOST = 4096
"""Workers of a DataLoader; more are not believed."""

RECORD = struct.Struct("<8sHHIqQQQQQQQqqqqqIIQQqq")


def build_name(pid: int, start_ticks: int) -> str:
    """The name of a process's counter file."""
    return "%d.%d%s" % (pid, start_ticks, SUFFIX)


def parse_start_ticks(stat: bytes) -> int:
    """When a process started, in clock ticks since boot, from its /proc/PID/stat.

    Raises:
        ValueError: The text is none of a process.
    """
    # Its name may hold blanks and parentheses; the fields after it do not.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if len(fields) < 20:
        raise ValueError("a stat line with too few fields")
    return int(fields[19])
