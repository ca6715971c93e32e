"""What a process's memory consists of."""

from __future__ import annotations

import mmap
import os
import subprocess
from pathlib import Path

from .mappings import read_mappings, sum_by_name

SMAPS = """\
7f00-7f01 r-xp 00000000 fd:00 17                         /usr/lib/libc.so.6
Size:               1600 kB
Rss:                1200 kB
Private_Clean:       100 kB
Private_Dirty:         0 kB
VmFlags: rd ex mr mw me sd
7f01-7f02 rw-p 00002000 fd:00 17                         /usr/lib/libc.so.6
Rss:                  16 kB
Private_Clean:         4 kB
Private_Dirty:        12 kB
7f03-7f04 rw-p 00000000 00:00 0
Rss:                 300 kB
Private_Clean:         0 kB
Private_Dirty:       300 kB
7f05-7f06 r--s 00000000 fd:00 18                         /a file with blanks
Rss:                   8 kB
"""


def test_pieces_of_one_file_are_one_entry() -> None:
    found = sum_by_name(SMAPS)
    assert found["/usr/lib/libc.so.6"] == {"Rss": 1216, "Private_Dirty": 12, "Private": 116}
    assert found["[anonymous]"] == {"Rss": 300, "Private_Dirty": 300, "Private": 300}
    assert found["/a file with blanks"]["Rss"] == 8


def test_a_large_file_of_this_process_is_among_its_largest(tmp_path: Path) -> None:
    size_mb = 64
    path = tmp_path / "large"
    path.write_bytes(os.urandom(1 << 20) * size_mb)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert sum(mapped[place] for place in range(0, len(mapped), 4096)) > 0
        found = read_mappings(os.getpid())
    assert found["largest_kb"][str(path)]["Rss"] >= size_mb << 10
    assert found["status"]["Threads"] >= 1
    assert found["smaps_rollup_kb"]["Rss"] >= size_mb << 10


def test_of_a_process_that_is_gone_there_is_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert read_mappings(ended.pid) == {}
