"""Changes by turns what a training gets from its DataLoader, and times its batches.

That is `csub probe --stalls`: a batch again and again whose copies on the GPU stay there, without
and with exchange between the processes of a training; the same batch copied each time; few samples
again and again; and what the training would have got, read from files whose pages were dropped
before. On any surprise the program gets its own batches, and the result says why. An epoch does not
end meanwhile: the work of a probe is lost anyway.
"""

from __future__ import annotations

import functools
import json
import math
import mmap
import os
import stat
import sys
import weakref
from itertools import islice
from time import monotonic
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import layout
from .tally import is_loader_worker, tally
from .torch_loader import measure_batch
from .torch_optimizer import keep_dynamo_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, MutableSequence

PHASES = ("apart", "resident", "replayed", "cached", "ordinary")
TURNS = 3
WARM_BATCHES = 10
WARM_S = 3.0
UNCOUNTED_S = 60.0
"""Batches without a step for so long: nothing counts the steps."""
ALL_STEP_S = 15.0
"""Processes that have taken no batch by then take none; long before the runner's patience ends."""
PHASE_S = 4.0
PHASE_MOST_S = 30.0
LEAST_BATCHES = 8
KEPT = 4
"""Batches whose samples are read again and again."""
REPLAYED = ("apart", "resident", "replayed")
DEEPEST = 4
FILES_MOST = 50_000
AHEAD = 4
"""Steps from an announcement to its phase: a process may be about to take its next batch."""

PHASE_COUNT = TURNS * len(PHASES)

# Words that the processes of a training share; the first is PageDropper's.
_OVER = 1
_STARTS = 2
_STEPS = _STARTS + PHASE_COUNT + 1


def name_phase(number: int) -> str:
    """The name of a phase; empty before the first and after the last."""
    return PHASES[number % len(PHASES)] if 0 <= number < PHASE_COUNT else ""


class Lockstep:
    """Which phase it is at a step, for all processes of a training alike.

    Rank 0 announces the step at which a phase begins, and with `apart` its end: meanwhile nothing
    holds the processes together. One that has not seen an announcement stays in its phase. One that
    sees it too late is so many steps late from then on: then all still exchange equally often, and
    none waits forever.

    Args:
        words: Shared; as many as `count_words` says, 0 at first.
        rank: Of this process.
        world: How many processes there are.
    """

    def __init__(self, words: MutableSequence[int], rank: int = 0, world: int = 1) -> None:
        self.rank = rank
        self.world = world
        self.phase = -1
        self.exchanges = 0
        """Passes that would have been followed by an exchange."""
        self.is_late = False
        self._words = words
        self._late = self._seen = 0

    @staticmethod
    def count_words(world: int) -> int:
        """How many words so many processes share."""
        return _STEPS + world

    def count_stepping(self) -> int:
        """How many of the processes have taken a batch after a step."""
        return sum(1 for rank in range(self.world) if self._words[_STEPS + rank])

    def is_over(self) -> bool:
        """Whether a process has given up."""
        return bool(self._words[_OVER])

    def end(self) -> None:
        """Give up, for all."""
        self._words[_OVER] = 1

    def may_announce(self, phase: int) -> bool:
        """Whether this process is to announce a phase, and has not yet."""
        return not self.rank and not self._words[_STARTS + phase]

    def announce(self, phase: int, apart_steps: int) -> None:
        """Let a phase begin as soon as all can know.

        Args:
            phase: Its number.
            apart_steps: How long it lasts if it is `apart`.
        """
        most = max(self._words[_STEPS + rank] for rank in range(self.world))
        begin = most + (AHEAD if self.world > 1 else 0)
        # Who announces is not late.
        self._seen = min(self._seen, begin - 1)
        if name_phase(phase) == "apart":
            self._words[_STARTS + phase + 1] = begin + apart_steps
        self._words[_STARTS + phase] = begin

    def find_phase(self, steps: int) -> int:
        """The number of the phase at a step of this process; -1 before the first."""
        phase = self.phase
        self._words[_STEPS + self.rank] = steps
        while phase < PHASE_COUNT:
            due = self._words[_STARTS + phase + 1]
            if not due or steps < due + self._late:
                break
            if self._seen >= due + self._late:
                self._late = steps - due
                self.is_late = True
            phase += 1
        self._seen = steps
        self.phase = phase
        return phase

    def is_apart(self, steps: int) -> bool:
        """Whether nothing is exchanged at a step."""
        return name_phase(self.find_phase(steps)) == "apart"


def join_ranks(path: str) -> Lockstep:
    """The lockstep of this program's processes, which from now on computes apart when it is due.

    Args:
        path: A file that they share.
    """
    group: Any = sys.modules.get("torch.distributed")
    has_group = group is not None and group.is_available() and group.is_initialized()
    world = group.get_world_size() if has_group else 1
    if world == 1:
        return Lockstep([0] * Lockstep.count_words(1))
    words: Any = memoryview(map_file(path, 8 * Lockstep.count_words(world))).cast("q")
    lockstep = Lockstep(words, group.get_rank(), world)
    hook_exchange(lockstep)
    return lockstep


def hook_exchange(lockstep: Lockstep) -> None:
    """Let DistributedDataParallel exchange nothing in the phases that are apart."""
    module = sys.modules.get("torch.nn.parallel.distributed")
    if module is None:
        return
    kind = module.DistributedDataParallel
    original = kind.forward

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        lockstep.exchanges += 1
        if not lockstep.is_apart(tally.count_of_steps):
            return original(self, *args, **kwargs)
        was = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            return original(self, *args, **kwargs)
        finally:
            self.require_backward_grad_sync = was

    # Its counts would make torch.compile compile anew at each step.
    forward._torchdynamo_disable = True  # type: ignore[attr-defined]
    keep_dynamo_out(forward, Lockstep.is_apart, Lockstep.find_phase, name_phase)
    kind.forward = forward


def map_file(path: str, size: int) -> mmap.mmap:
    """A file's bytes, shared; it is made or grows as needed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        return mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)


class PageDropper:
    """Drops files' pages from the page cache, in this process and in the loader's workers.

    A worker drops the pages of a file when it first opens it in a turn: only then is it known.
    """

    def __init__(self, path: str) -> None:
        self._turn = map_file(path, 8)
        self._seen_in = 0
        self._seen: set[Any] = set()
        sys.addaudithook(self._hear)

    def set_turn(self, turn: int) -> None:
        """Drop the pages of what is opened from now on; 0 for no more."""
        self._turn[0] = turn

    def _hear(self, event: str, args: Any) -> None:
        if event != "open" or not self._turn[0]:
            return
        try:
            path, _, flags = args
            turn = self._turn[0]
            if turn != self._seen_in:
                self._seen_in = turn
                self._seen.clear()
            is_read = isinstance(path, (str, bytes)) and not flags & (os.O_WRONLY | os.O_RDWR)
            if is_read and path not in self._seen:
                # First, for opening it here is heard, too.
                self._seen.add(path)
                drop_pages(path)
        except Exception:
            # What is raised here would be raised by the program's open().
            pass

    def drop_now(self, iterator: Any) -> None:
        """Drop the pages of all files that the loader has open or that its data set names."""
        for pid in list_processes(iterator):
            folder = f"/proc/{pid}/fd"
            try:
                for name in os.listdir(folder):
                    drop_pages(f"{folder}/{name}")
            except OSError:
                # It may have ended.
                pass
        for path in islice(list_files(getattr(iterator, "_dataset", None)), FILES_MOST):
            drop_pages(path)


def drop_pages(path: Any) -> None:
    """Drop a regular file's pages; those that are dirty or mapped stay."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    except OSError:
        # A file system without it; the bytes read tell.
        pass
    finally:
        os.close(descriptor)


def list_files(dataset: Any, depth: int = DEEPEST) -> Iterator[str]:
    """Files that a data set names in lists, as those of torchvision do; C++ opens them unheard."""
    for value in list(getattr(dataset, "__dict__", {}).values()):
        if isinstance(value, (list, tuple)):
            for item in value:
                name = item[0] if isinstance(item, tuple) and item else item
                if not isinstance(name, (str, os.PathLike)):
                    break
                yield os.fspath(name)
        elif depth and hasattr(type(value), "__getitem__") and hasattr(value, "__dict__"):
            yield from list_files(value, depth - 1)


def list_processes(iterator: Any) -> list[int]:
    """This process and the workers of an iterator."""
    return [os.getpid(), *(worker.pid for worker in getattr(iterator, "_workers", ()))]


def read_bytes(iterator: Any) -> tuple[int, int]:
    """Bytes that the loader's processes have asked files for, and that came from disk."""
    asked = read = 0
    for pid in list_processes(iterator):
        try:
            with open(f"/proc/{pid}/io") as file:
                fields = dict(line.split(": ") for line in file)
            asked += int(fields["rchar"])
            read += int(fields["read_bytes"])
        except (OSError, KeyError, ValueError):
            # Then nothing is said to have come from disk.
            pass
    return asked, read


class ResidentBatch:
    """A batch that can be given again and again; copies of its tensors are made once if asked."""

    def __init__(self, batch: Any, kind: Any) -> None:
        self.batch = batch
        self._tensors = list(find_tensors(batch, kind, DEEPEST))

    def keep_copies(self) -> None:
        """Let `to` and `cuda` of its tensors return what they returned to the same call before."""
        for tensor in self._tensors:
            for name in ("to", "cuda"):
                setattr(tensor, name, _remember(getattr(type(tensor), name), tensor))

    def copy_again(self) -> None:
        """Undo that."""
        for tensor in self._tensors:
            for name in ("to", "cuda"):
                tensor.__dict__.pop(name, None)


def _remember(method: Callable[..., Any], tensor: Any) -> Callable[..., Any]:
    results: dict[Any, Any] = {}

    def move(*args: Any, **kwargs: Any) -> Any:
        try:
            key = args, tuple(sorted(kwargs.items()))
            found = results.get(key)
        except TypeError:
            return method(tensor, *args, **kwargs)
        if found is None:
            found = results[key] = method(tensor, *args, **kwargs)
        return found

    return move


def find_tensors(value: Any, kind: Any, depth: int) -> Iterator[Any]:
    """The tensors in a batch, as far as lists, dicts and attributes lead."""
    if isinstance(value, kind):
        yield value
    elif depth:
        if isinstance(value, dict):
            parts: Any = value.values()
        elif isinstance(value, (list, tuple)):
            parts = value
        else:
            parts = getattr(value, "__dict__", {}).values()
        for part in list(parts):
            yield from find_tensors(part, kind, depth - 1)


class StallPhases:
    """Which phase it is, and what was timed so far.

    Args:
        path: Where the result goes.
        dropper: Drops pages.
        kind: The class of tensors.
        join: Finds the other processes of the program once it has made a step.
        clock: Seconds.
    """

    def __init__(
        self,
        path: str,
        dropper: PageDropper,
        kind: Any,
        join: Callable[[], Lockstep],
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.path = path
        self.over = False
        self._dropper = dropper
        self._kind = kind
        self._join = join
        self._clock = clock
        self._lockstep: Lockstep | None = None
        self._phase = -1
        self._loader: Any = None
        self._last: Callable[[], Any] = lambda: None
        self._first_at: float | None = None
        self._warm = 0
        self._warm_at = self._step_s = 0.0
        self._steps = 0
        self._kept: list[Any] = []
        self._given = 0
        self._replay: ResidentBatch | None = None
        self._largest = -1
        self._settle = self._batches = self._steps_at = 0
        self._counts = False
        self._seconds = self._counted_to = 0.0
        self._io = 0, 0
        self._timed: dict[str, list[tuple[int, float]]] = {name: [] for name in PHASES}
        self._asked = self._read = 0

    def take(self, iterator: Any, fetch: Callable[[Any], Any]) -> Any:
        """The batch that the program gets."""
        if self.over or is_loader_worker():
            return fetch(iterator)
        if self._guard(self._look, iterator) and self._replay is not None:
            return self._replay.batch
        try:
            batch = fetch(iterator)
        except StopIteration:
            self._last = lambda: None
            raise
        if self._phase < 0:
            self._guard(self._keep, batch)
        return batch

    def choose_index(self, iterator: Any, draw: Callable[[Any], Any]) -> Any:
        """The samples of the next batch that is loaded."""
        if self.over or self._phase < 0 or iterator._index_sampler is not self._loader:
            return draw(iterator)
        is_cached = name_phase(self._phase) == "cached"
        if is_cached and len(self._kept) == KEPT:
            self._given += 1
            return self._kept[self._given % KEPT]
        try:
            index = draw(iterator)
        except StopIteration:
            iterator._sampler_iter = iter(iterator._index_sampler)
            index = draw(iterator)
        if is_cached:
            self._kept.append(index)
        return index

    def _guard(self, work: Callable[[Any], Any], value: Any) -> Any:
        try:
            return work(value)
        except Exception as error:
            self._give_up(f"the phases could not be kept: {type(error).__name__}: {error}")
            return False

    def _look(self, iterator: Any) -> bool:
        """See what is due as a batch is asked for; whether it is the replayed one."""
        steps = tally.count_of_steps
        if self._phase < 0:
            self._warm_up(iterator, steps)
        elif iterator._index_sampler is not self._loader:
            # A validation: its time is not the training's.
            self._last = lambda: None
            return False
        lockstep = self._lockstep
        if lockstep is None or self.over:
            return False
        if lockstep.is_over():
            self._end()
            return False
        is_going = self._phase >= 0 and self._last() is iterator
        self._counts = self._counts and is_going
        if is_going:
            self._measure(iterator, lockstep, steps)
        due = lockstep.find_phase(steps)
        if lockstep.is_late:
            self._give_up("its processes do not step together")
        elif due != self._phase:
            # Between a validation and the next step it is not known that this loader is trained on.
            if self._phase >= 0 or self._warm:
                self._change(iterator, due, steps)
        elif self._phase >= 0 and not is_going:
            self._enter(iterator)
        # Once it is over, no batch is kept.
        return name_phase(self._phase) in REPLAYED

    def _measure(self, iterator: Any, lockstep: Lockstep, steps: int) -> None:
        """Count a batch of the phase once it has settled, and announce the next one in time."""
        if not self._counts:
            self._settle -= 1
            if not self._settle:
                self._begin(iterator, steps)
            return
        self._batches += 1
        self._count_s()
        least = max(LEAST_BATCHES, 3 * iterator._num_workers)
        is_long = self._seconds >= PHASE_S and self._batches >= least
        is_due = is_long or self._seconds >= PHASE_MOST_S
        if is_due and lockstep.may_announce(self._phase + 1):
            lockstep.announce(self._phase + 1, self._choose_apart_steps())

    def _warm_up(self, iterator: Any, steps: int) -> None:
        now = self._clock()
        loader = iterator._index_sampler
        if self._first_at is None:
            self._first_at = now
        if steps and self._lockstep is None:
            self._lockstep = self._join()
        if loader is not self._loader:
            # Which one feeds the training shows as steps follow its batches.
            self._loader, self._warm, self._largest = loader, 0, -1
            self._warm_at = now
        elif steps > self._steps:
            self._warm += 1
            if iterator._dataset_kind == 1:
                self._give_up("its data set is an IterableDataset, which gives no sample twice")
                return
        self._steps = steps
        lockstep = self._lockstep
        since_first_s = now - self._first_at
        if lockstep is None:
            if since_first_s > UNCOUNTED_S:
                self._give_up(
                    "its DataLoader gives batches, but no step of an optimizer is counted"
                )
            return
        is_warm = self._warm >= WARM_BATCHES and since_first_s >= WARM_S
        if is_warm and lockstep.may_announce(0):
            self._announce_first(lockstep, since_first_s)

    def _announce_first(self, lockstep: Lockstep, since_first_s: float) -> None:
        """Let the phases begin once all processes take batches."""
        stepping = lockstep.count_stepping()
        if stepping < lockstep.world:
            if since_first_s > ALL_STEP_S:
                self._give_up(
                    f"{stepping} of its {lockstep.world} processes take batches of a DataLoader, "
                    "as far as this node shows"
                )
            return
        self._step_s = (self._clock() - self._warm_at) / self._warm
        try:
            os.close(os.open(f"{self.path}.begun", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            # Another process of the program is measured, or this one has been started again.
            lockstep.end()
            return
        lockstep.announce(0, self._choose_apart_steps())

    def _choose_apart_steps(self) -> int:
        """Steps without an exchange; 0 where none would be left out."""
        if self._lockstep is None or not self._lockstep.exchanges:
            return 0
        return 2 + max(LEAST_BATCHES, math.ceil(PHASE_S / self._step_s))

    def _change(self, iterator: Any, due: int, steps: int) -> None:
        """Another phase begins."""
        if self._phase >= 0:
            self._close(iterator, steps)
        self._phase = due
        if due == PHASE_COUNT:
            self._end()
        else:
            self._enter(iterator)

    def _keep(self, batch: Any) -> None:
        """Keep the largest batch of the warm-up: the last one of an epoch may be small."""
        size = measure_batch(batch)
        if size > self._largest:
            self._largest, self._replay = size, ResidentBatch(batch, self._kind)

    def _enter(self, iterator: Any) -> None:
        """A phase begins, or goes on with another iterator."""
        self._last = weakref.ref(iterator)
        name = name_phase(self._phase)
        workers = iterator._num_workers
        in_flight = workers * getattr(iterator, "_prefetch_factor", 0) if workers else 0
        # What was loaded for the phase before comes first.
        of_phase = {"cached": in_flight + workers + KEPT, "ordinary": in_flight + workers}
        self._settle = of_phase.get(name, 1) + 1
        self._counts = False
        if self._replay is not None:
            self._replay.copy_again()
            if name in ("apart", "resident"):
                self._replay.keep_copies()
        is_ordinary = name == "ordinary"
        self._dropper.set_turn(1 + self._phase // len(PHASES) if is_ordinary else 0)
        if is_ordinary:
            self._dropper.drop_now(iterator)

    def _begin(self, iterator: Any, steps: int) -> None:
        wait_for_gpu()
        self._counts = True
        self._steps_at = steps
        self._io = read_bytes(iterator)
        self._counted_to = self._clock()

    def _count_s(self) -> None:
        """Count the time up to now; a phase may be of several iterators, with others in between."""
        now = self._clock()
        self._seconds += now - self._counted_to
        self._counted_to = now

    def _close(self, iterator: Any, steps: int) -> None:
        if self._counts:
            wait_for_gpu()
            self._count_s()
        name = name_phase(self._phase)
        if self._batches:
            self._timed[name].append((self._batches, self._seconds))
        if name == "apart" and self._counts:
            self._step_s = self._seconds / max(1, steps - self._steps_at)
        self._batches, self._seconds = 0, 0.0
        if name == "ordinary":
            if self._counts:
                asked, read = read_bytes(iterator)
                self._asked += asked - self._io[0]
                self._read += read - self._io[1]
            self._write(iterator)

    def _write(self, iterator: Any) -> None:
        lockstep = self._lockstep
        if lockstep is None or lockstep.rank:
            return
        turns = self._phase // len(PHASES) + 1
        self._replace(
            {
                "schema": 1,
                "final": turns == TURNS,
                "problem": "",
                "processes": lockstep.world,
                "exchange_untold": "" if self._timed["apart"] else explain_no_exchange(lockstep),
                "workers": iterator._num_workers,
                "cpus": max(1, len(os.sched_getaffinity(0)) // lockstep.world),
                "asked_bytes": self._asked,
                "disk_bytes": self._read,
                "timed": self._timed,
            }
        )

    def _replace(self, result: dict[str, Any]) -> None:
        # Each process has its own: several may give up at once.
        written = f"{self.path}.{os.getpid()}"
        with open(written, "w") as file:
            json.dump(result, file)
        os.replace(written, self.path)

    def _end(self) -> None:
        self.over = True
        self._dropper.set_turn(0)
        if self._replay is not None:
            self._replay.copy_again()
        self._replay = None
        self._kept = []

    def _give_up(self, why: str) -> None:
        try:
            self._end()
            if self._lockstep is not None:
                self._lockstep.end()
            self._replace({"schema": 1, "final": True, "problem": why})
        except Exception:
            # Then there is no result, and the runner says so.
            pass


def explain_no_exchange(lockstep: Lockstep) -> str:
    """Why nothing was timed without exchange; empty where there is one GPU."""
    if lockstep.exchanges:
        return "none of its steps without exchange could be timed"
    if lockstep.world > 1:
        return "its processes compute without DistributedDataParallel"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized() and cuda.device_count() > 1:
        return "its processes are no group of torch.distributed"
    return ""


def wait_for_gpu() -> None:
    """Let what the GPU was given be done, if the program uses one."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is not None and cuda.is_initialized():
        cuda.synchronize()


def hook_stalls(module: ModuleType) -> None:
    """Measure from now on if that is asked for; `module` is torch.utils.data.dataloader."""
    path = os.environ.get(layout.STALLS)
    if not path:
        return
    turn = f"{path}.turn"
    join = functools.partial(join_ranks, turn)
    phases = StallPhases(path, PageDropper(turn), module.torch.Tensor, join)
    iterator = module._BaseDataLoaderIter
    fetch, draw = iterator.__next__, iterator._next_index

    @functools.wraps(fetch)
    def take(self: Any) -> Any:
        return phases.take(self, fetch)

    @functools.wraps(draw)
    def choose_index(self: Any) -> Any:
        return phases.choose_index(self, draw)

    take._torchdynamo_disable = True  # type: ignore[attr-defined]
    iterator.__next__, iterator._next_index = take, choose_index
