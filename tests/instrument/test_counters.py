"""Counter files are read as they were written, and anything else is passed over."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from slurm_colloc.instrument import layout
from slurm_colloc.store.progress_counters import (
    ProcessProgress,
    add_up,
    parse_counters,
    read_member_progress,
    read_process_progress,
)

WORDS = 32


def build_content(**changed: int) -> bytes:
    """A counter file whose word N holds 100 + N, but for the words that are named."""
    words = [100 + number for number in range(WORDS)]
    for name, value in changed.items():
        words[getattr(layout, name)] = value
    content = bytearray(struct.pack(f"<{WORDS}q", *words))
    content[:8] = layout.MAGIC
    if "HEAD" not in changed:
        content[8:16] = struct.pack("<HHI", layout.VERSION, layout.SIZE, 0)
    return bytes(content)


def build_process(**changed: object) -> ProcessProgress:
    content = build_content(RANK=-1, WORLD=0, ORIGIN=layout.SOURCE_OPTIMIZER | 1 << 32)
    process = parse_counters(content, 5)
    assert process is not None
    return ProcessProgress(**{**process.__dict__, **changed})


def test_every_word_is_where_the_table_says() -> None:
    head = layout.VERSION | layout.SIZE << 16 | (1 | 4 | 8) << 32
    process = parse_counters(build_content(HEAD=head, ORIGIN=2 | 3 << 32), 77)
    assert process == ProcessProgress(
        pid=102,
        start_ticks=77,
        rank=113,
        world=114,
        steps=104,
        skipped=105,
        samples=106,
        batches=107,
        wait_s=108e-9,
        first_step_s=110e-9,
        last_step_s=111e-9,
        updated_s=112e-9,
        source="api",
        optimizers=3,
        finished=True,
        several_loaders=True,
        skips_unknown=True,
        gpu_reserved_peak=116,
        gpu_reserved=117,
        loader_workers=118,
    )


def test_a_file_of_an_older_writer_says_nothing_of_the_allocator() -> None:
    content = build_content(GPU_RESERVED_PEAK=0, GPU_RESERVED=0, GPU_READ_NS=0)
    process = parse_counters(content, 5)
    assert process is not None
    assert (process.steps, process.gpu_reserved_peak, process.gpu_reserved) == (104, None, None)


@pytest.mark.parametrize(
    ("word", "workers"),
    [(0, None), (1, 0), (9, 8), (4097, 4096), (4098, None), (-1, None), (1 << 62, None)],
)
def test_a_loaders_workers_are_known_or_not_and_never_more_than_can_be(
    word: int, workers: int | None
) -> None:
    process = parse_counters(build_content(LOADER_WORKERS=word), 5)
    assert process is not None
    assert process.loader_workers == workers


def test_workers_are_those_of_the_only_process_that_trains() -> None:
    trains = build_process(loader_workers=2)
    prepares = build_process(loader_workers=7, last_step_s=None)
    assert add_up((prepares, trains)).loader_workers == 2
    assert add_up((trains, trains)).loader_workers is None
    assert add_up((prepares,)).loader_workers is None


def test_peaks_of_processes_that_were_there_at_the_same_time_are_added_up() -> None:
    def run(first_s: float, updated_s: float, peak: int, *, finished: bool) -> ProcessProgress:
        return build_process(
            first_step_s=first_s, updated_s=updated_s, gpu_reserved_peak=peak,
            gpu_reserved=peak // 2, finished=finished,
        )  # fmt: skip

    one_by_one = (run(0, 10, 600, finished=True), run(11, 20, 400, finished=True))
    assert add_up(one_by_one).gpu_reserved_peak == 600
    assert add_up(one_by_one).gpu_reserved is None, "none of them counts any more"
    both = (*one_by_one, run(5, 15, 100, finished=False))
    assert (add_up(both).gpu_reserved_peak, add_up(both).gpu_reserved) == (700, 50)
    without = build_process(gpu_reserved_peak=None, gpu_reserved=None)
    assert add_up((without,)).gpu_reserved_peak is None


def test_a_process_that_was_killed_holds_nothing_any_more() -> None:
    killed = build_process(updated_s=10.0, gpu_reserved_peak=8, gpu_reserved=8, finished=False)
    alive = build_process(updated_s=100.0, gpu_reserved_peak=3, gpu_reserved=2, finished=False)
    assert add_up((killed, alive)).gpu_reserved == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(256),
        b"CSUBPROG",
        build_content()[:100],
        build_content(HEAD=2 | 256 << 16),
        os.urandom(256),
    ],
    ids=["empty", "zeros", "magic", "cut", "version 2", "noise"],
)
def test_what_is_no_counter_file_is_passed_over(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "1.2.progress").write_bytes(content)
    assert read_process_progress(str(tmp_path), "1.2.progress") is None
    assert read_member_progress(str(tmp_path)) is None


def test_what_was_written_while_it_was_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "1.2.progress"
    half = build_content(SEQUENCE=1, STEPS=2, SAMPLES=2)
    path.write_bytes(half)
    states = [half, half, build_content(SEQUENCE=2, STEPS=2, SAMPLES=4)]
    states += [build_content(SEQUENCE=4, STEPS=3, SAMPLES=6)] * 2
    read = os.pread

    def write_and_read(descriptor: int, size: int, offset: int) -> bytes:
        if states:
            path.write_bytes(states.pop(0))
        return read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", write_and_read)
    process = read_process_progress(str(tmp_path), "1.2.progress")
    assert process is not None
    assert (process.steps, process.samples) == (3, 6)


def test_a_count_that_was_never_ended_is_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "1.2.progress").write_bytes(build_content(SEQUENCE=7, STEPS=4, SAMPLES=6))
    process = read_process_progress(str(tmp_path), "1.2.progress")
    assert process is not None
    assert (process.steps, process.samples) == (4, 6)


def test_odd_names_links_and_pipes_are_passed_over(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "a.progress").write_bytes(build_content())
    (tmp_path / "1.x.progress").write_bytes(build_content())
    (tmp_path / "elsewhere").write_bytes(build_content())
    (tmp_path / "1.1.progress").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "1.3.progress")
    (tmp_path / "1.4.progress").mkdir()
    assert read_member_progress(str(tmp_path)) is None


def test_nothing_counted_is_not_zero(tmp_path: Path) -> None:
    assert read_member_progress(str(tmp_path)) is None
    assert read_member_progress(str(tmp_path / "gone")) is None


def test_a_writer_that_was_killed_while_it_wrote_is_read_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "1.2.progress").write_bytes(build_content(SEQUENCE=7))
    progress = read_member_progress(str(tmp_path))
    assert progress is not None
    assert progress.processes[0].steps == 104


def test_ranks_step_together_and_processes_without_a_rank_do_not() -> None:
    ranks = tuple(
        build_process(rank=rank, world=3, steps=10, skipped=1, samples=5, batches=2, wait_s=0.5)
        for rank in range(3)
    )
    member = add_up(ranks)
    assert (member.steps, member.skipped, member.samples, member.batches) == (10, 1, 15, 6)
    assert (member.wait_s, member.trainers) == (1.5, 3)
    alone = add_up((build_process(steps=10), build_process(steps=4)))
    assert alone.steps == 14


def test_the_first_and_the_last_of_times_and_the_surest_source() -> None:
    early = build_process(first_step_s=1.0, last_step_s=2.0, updated_s=9.0, source="api")
    late = build_process(first_step_s=1.5, last_step_s=4.0, updated_s=5.0, optimizers=2)
    loading = build_process(first_step_s=None, last_step_s=None, updated_s=6.0, source=None)
    member = add_up((late, early, loading))
    assert (member.first_step_s, member.last_step_s, member.updated_s) == (1.0, 4.0, 9.0)
    assert (member.source, member.trainers) == ("api", 2)
    waiting = add_up((loading,))
    assert (waiting.source, waiting.first_step_s, waiting.trainers) == (None, None, 0)


def test_the_start_of_a_process_with_an_odd_name() -> None:
    fields = " ".join(str(number) for number in range(3, 53))
    assert layout.parse_start_ticks(f"12 (a) b) c) {fields}".encode()) == 22
    for text in (b"", b"12 (a) S 1 2"):
        with pytest.raises(ValueError, match=r"few|not found"):
            layout.parse_start_ticks(text)
