"""Reads DataLoaders in awkward ways, and prints how many batches and samples there were.

`python batches.py WAY`: a line of JSON with pid, batches and samples, for each process that reads.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import OrderedDict, UserDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

PARAMETER = torch.nn.Parameter(torch.zeros(1))


class Pair(NamedTuple):
    """As a program's own collate_fn may make it."""

    text: list[str]
    x: Any


class Odd:
    """Anything."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


class Raising:
    """Has a shape, but does not tell it."""

    @property
    def shape(self) -> Any:
        raise RuntimeError("not now")


class Encoding(UserDict):  # type: ignore[type-arg]
    """With its keys as attributes, as that of the Hugging Face tokenizers."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Rows(torch.utils.data.Dataset):  # type: ignore[misc]
    """Numbers as tensors; `fault` is called before each."""

    def __init__(self, number: int, fault: Any = None) -> None:
        self.number = number
        self.fault = fault

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> Any:
        if self.fault is not None:
            self.fault(index)
        return torch.full((2,), float(index))


class Inner(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """Draws from a loader of its own."""

    def __iter__(self) -> Iterator[Any]:
        for batch in torch.utils.data.DataLoader(Rows(12), batch_size=2):
            yield batch[0]


def read(data: Any, **options: Any) -> tuple[int, int]:
    """Batches and samples of one epoch; steps after each."""
    optimizer = torch.optim.SGD([PARAMETER], lr=0.1)
    batches = samples = 0
    for batch in torch.utils.data.DataLoader(data, batch_size=4, **options):
        optimizer.step()
        batches += 1
        samples += len(batch)
    return batches, samples


# What a program may make of four rows or fewer; each is given the tensor of them all.
SHAPES: dict[str, Any] = {
    "tensor": lambda x: x,
    "list": lambda x: [x, x[0]],
    "tuple": lambda x: (x, x[0]),
    "named tuple after text": lambda x: Pair(["text"] * len(x), x),
    "number first": lambda x: [x.sum(), x],
    "number first in a dictionary": lambda x: {"loss": x.sum(), "x": x},
    "dictionary": lambda x: {"x": x, "y": x[0]},
    "ordered dictionary": lambda x: OrderedDict(x=x, y=x[0]),
    "encoding": lambda x: Encoding({"x": x, "y": x[0]}),
    "encoding with a key called shape": lambda x: Encoding({"shape": x, "y": x[0]}),
    "dictionary in a list after text": lambda x: ["text", [b"more"], {"none": None, "x": x}],
    "parameter": lambda x: [torch.nn.Parameter(x)],
    "array": lambda x: [x.numpy()],
    "one after another": lambda x: x if x[0, 0] else [["text"], x],
}
NO_SHAPES: dict[str, Any] = {
    "nothing": lambda _: None,
    "empty list": lambda _: [],
    "empty dictionary": lambda _: {},
    "numbers": lambda x: [float(value) for value in x[:, 0]],
    "text": lambda _: "text",
    "scalar": lambda x: x.sum(),
    "values that are none": lambda _: Odd(values=3),
    "shape that is none": lambda _: Odd(shape=3),
    "shape that raises": lambda _: Raising(),
    "deeper than is looked": lambda x: [[[[[x]]]]],
    "wider than is looked": lambda x: [*["text"] * 16, x],
}


def read_shapes() -> tuple[int, int]:
    """Batches of every shape, the last one incomplete, each step with those of the one before."""
    optimizer = torch.optim.SGD([PARAMETER], lr=0.1)
    batches = samples = 0
    for name, shape in {**SHAPES, **NO_SHAPES}.items():

        def collate(rows: Any, shape: Any = shape) -> Any:
            return shape(torch.stack(rows))

        loader = torch.utils.data.DataLoader(Rows(11), batch_size=4, collate_fn=collate)
        for size, _ in zip((4, 4, 3), loader, strict=True):
            optimizer.step()
            batches += 1
            samples += size if name in SHAPES else 0
    return batches, samples


def read_in_threads() -> tuple[int, int]:
    """Four threads, each with a loader that draws from another; nothing steps."""
    sys.setswitchinterval(1e-6)
    epochs, counts = 60, []

    def work() -> None:
        count = 0
        for _ in range(epochs):
            loader = torch.utils.data.DataLoader(Inner(), batch_size=4)
            count += sum(1 for _ in loader)
        counts.append(count)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts), 0


def read_after_faults() -> tuple[int, int]:
    """A dataset that raises for one row: the batches before and after it count."""

    def fail(index: int) -> None:
        if index == 9:
            raise ValueError("a row that cannot be read")

    batches, samples = 2, 8
    try:
        read(Rows(16, fail))
    except ValueError:
        more, of = read(Rows(6))
    return batches + more, samples + of


def read_in_a_child_of_a_reader() -> tuple[int, int]:
    """Fork while another thread is fetching; a thread of the child has the number of that one."""
    fetching, go_on = threading.Event(), threading.Event()

    def wait(_: int) -> None:
        fetching.set()
        go_on.wait()

    counts: list[tuple[int, int]] = []
    reader = threading.Thread(target=lambda: counts.append(read(Rows(7, wait))))
    reader.start()
    fetching.wait()
    number = reader.ident
    child = os.fork()
    if not child:
        again = threading.Thread(target=lambda: counts.append(read(Rows(10))))
        again.start()
        again.join()
        tell(*counts[0], same=again.ident == number)
        os._exit(0)
    os.waitpid(child, 0)
    go_on.set()
    reader.join()
    return counts[0]


def tell(batches: int, samples: int, **more: Any) -> None:
    said = {"pid": os.getpid(), "batches": batches, "samples": samples, **more}
    print(json.dumps(said), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    tell(*globals()[sys.argv[1]]())
