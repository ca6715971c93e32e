"""Small trainings, each in a forked child, which print what they did themselves.

`python cases.py CASE...`: for each a line of JSON with its pid, steps, skipped steps and samples.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

Counts = tuple[int, int, int]
CASES: dict[str, Callable[[], Counts]] = {}


def case(function: Callable[[], Counts]) -> Callable[[], Counts]:
    """Remember a case by its name."""
    CASES[function.__name__] = function
    return function


def build_model() -> Any:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))


def build_loader(rows: int = 22, batch: int = 4, workers: int = 0) -> Any:
    data = torch.utils.data.TensorDataset(torch.randn(rows, 4), torch.randn(rows, 1))
    context = "fork" if workers else None
    return torch.utils.data.DataLoader(
        data, batch_size=batch, num_workers=workers, multiprocessing_context=context
    )


def compute_loss(model: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.mse_loss(model(x), y)


def train(model: Any, optimizer: Any, loader: Any) -> tuple[int, int]:
    """One epoch; its steps and samples."""
    steps = samples = 0
    for x, y in loader:
        optimizer.zero_grad()
        compute_loss(model, x, y).backward()
        optimizer.step()
        steps += 1
        samples += len(x)
    return steps, samples


@case
def plain_with_scheduler() -> Counts:
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    steps = samples = 0
    for _ in range(3):
        more, of = train(model, optimizer, build_loader())
        steps, samples = steps + more, samples + of
        scheduler.step()
    return steps, 0, samples


@case
def validation_after_each_epoch() -> Counts:
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    training, validation = build_loader(), build_loader(rows=17, batch=5)
    steps = samples = 0
    for _ in range(3):
        more, of = train(model, optimizer, training)
        steps, samples = steps + more, samples + of
        for x, y in validation:
            with torch.no_grad():
                compute_loss(model, x, y)
    return steps, 0, samples


@case
def loader_workers() -> Counts:
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps, samples = train(model, optimizer, build_loader(workers=2))
    return steps, 0, samples


class _Shifted(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """A dataset that draws from a loader of its own."""

    def __iter__(self) -> Iterator[Any]:
        for x, y in build_loader(rows=12, batch=2):
            yield x[0] + 1, y[0]


@case
def loader_that_draws_from_a_loader() -> Counts:
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = torch.utils.data.DataLoader(_Shifted(), batch_size=3)
    steps, samples = train(model, optimizer, loader)
    return steps, 0, samples


@case
def dictionaries_of_tensors() -> Counts:
    rows = [{"text": "a", "more": {"x": torch.randn(4)}, "y": torch.randn(1)} for _ in range(10)]
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = samples = 0
    for batch in torch.utils.data.DataLoader(rows, batch_size=4):
        compute_loss(model, batch["more"]["x"], batch["y"]).backward()
        optimizer.step()
        steps += 1
        samples += len(batch["text"])
    return steps, 0, samples


@case
def accumulated_gradients() -> Counts:
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps = samples = 0
    for number, (x, y) in enumerate(build_loader(rows=32), start=1):
        compute_loss(model, x, y).backward()
        samples += len(x)
        if number % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
    return steps, 0, samples


@case
def two_optimizers_in_turn() -> Counts:
    one, other = build_model(), build_model()
    of_one = torch.optim.Adam(one.parameters())
    of_other = torch.optim.Adam(other.parameters())
    steps = samples = 0
    for x, y in build_loader():
        for model, optimizer in ((one, of_one), (other, of_other)):
            compute_loss(model, x, y).backward()
            optimizer.step()
        steps += 1
        samples += len(x)
    return steps, 0, samples


@case
def one_optimizer_steps_five_times_as_often() -> Counts:
    critic, generator = build_model(), build_model()
    of_critic = torch.optim.Adam(critic.parameters())
    of_generator = torch.optim.Adam(generator.parameters())
    steps = 0
    x, y = torch.randn(4, 4), torch.randn(4, 1)
    for _ in range(6):
        for _ in range(5):
            compute_loss(critic, x, y).backward()
            of_critic.step()
            steps += 1
        compute_loss(generator, x, y).backward()
        of_generator.step()
    return steps, 0, 0


@case
def one_training_after_another() -> Counts:
    steps = samples = 0
    kept = []
    for _ in range(4):
        model = build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        kept.append(optimizer)
        more, of = train(model, optimizer, build_loader())
        steps, samples = steps + more, samples + of
    return steps, 0, samples


@case
def optimizer_in_backward() -> Counts:
    model = build_model()
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}

    def update(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    steps = samples = 0
    for x, y in build_loader():
        compute_loss(model, x, y).backward()
        steps += 1
        samples += len(x)
    return steps, 0, samples


@case
def lbfgs() -> Counts:
    model = build_model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
    steps = samples = 0
    for x, y in build_loader():

        def closure(x: Any = x, y: Any = y) -> Any:
            optimizer.zero_grad()
            loss = compute_loss(model, x, y)
            loss.backward()
            return loss

        optimizer.step(closure)
        steps += 1
        samples += len(x)
    return steps, 0, samples


class _Calling(torch.optim.SGD):  # type: ignore[misc]
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


class _Around(Optimizer):  # type: ignore[misc]
    """Steps another optimizer, as ZeroRedundancyOptimizer does."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner.param_groups, {})
        self.inner = inner

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


@case
def steps_inside_steps() -> Counts:
    model = build_model()
    optimizer = _Around(_Calling(model.parameters(), lr=0.01))
    steps, samples = train(model, optimizer, build_loader())
    return steps, 0, samples


@case
def steps_that_raise() -> Counts:
    model = build_model()
    optimizer = _Calling(model.parameters(), lr=0.01)
    steps, samples = train(model, optimizer, build_loader())

    def fail() -> Any:
        raise ValueError("no loss today")

    for _ in range(3):
        try:
            optimizer.step(fail)
        except ValueError:
            continue
    more, of = train(model, optimizer, build_loader())
    return steps + more, 0, samples + of


def train_scaled(optimizer: Any, model: Any, scaler: Any, *, infinite: set[int]) -> Counts:
    """Train with a scaler; the batches whose gradients are infinite are skipped by it."""
    steps = skipped = samples = 0
    for number, (x, y) in enumerate(build_loader()):
        optimizer.zero_grad()
        loss = compute_loss(model, x, y)
        if number in infinite:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if scaler.get_scale() < before:
            skipped += 1
        else:
            steps += 1
        samples += len(x)
    return steps, skipped, samples


@case
def scaler_skips() -> Counts:
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return train_scaled(optimizer, model, torch.amp.GradScaler("cpu"), infinite={0, 3})


@case
def scaler_skips_inside_a_fused_optimizer() -> Counts:
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    return train_scaled(optimizer, model, torch.amp.GradScaler("cpu"), infinite={0, 1, 4})


@case
def disabled_scaler() -> Counts:
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return train_scaled(optimizer, model, scaler, infinite=set())


def _run_worker(queue: Any) -> None:
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    queue.put((os.getpid(), *train(model, optimizer, build_loader())))


def _run_children(method: str) -> Counts:
    """Two children train, and the parent, which had begun before them, goes on."""
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    steps, samples = train(model, optimizer, build_loader())
    context: Any = multiprocessing.get_context(method)
    queue = context.Queue()
    children = [context.Process(target=_run_worker, args=(queue,)) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        pid, of_child, samples_of_child = queue.get()
        tell(f"child by {method}", pid, (of_child, 0, samples_of_child))
        child.join()
    more, of = train(model, optimizer, build_loader())
    return steps + more, 0, samples + of


@case
def forked_children() -> Counts:
    return _run_children("fork")


@case
def spawned_children() -> Counts:
    return _run_children("spawn")


@case
def two_threads() -> Counts:
    def work() -> None:
        model = build_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        x, y = torch.randn(4, 4), torch.randn(4, 1)
        for _ in range(50):
            compute_loss(model, x, y).backward()
            optimizer.step()
            turn.wait()

    # Each waits for the other after every step, so the two train together.
    turn = threading.Barrier(2)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return 50, 0, 0


@case
def hooks_taken_away_by_an_older_compiler() -> Counts:
    """What torch.compile of 2.0 to 2.5 did to optimizers, known to the instrument or not."""
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    from torch._dynamo import eval_frame

    steps, samples = train(model, optimizer, build_loader())
    for known in (torch.optim.SGD, torch.optim.Adam):
        if getattr(known.step, "hooked", False):
            known.step = known.step.__wrapped__
        known.step.hooked = True
    # Its first call is the first torch.compile's; only here does it come after the damage.
    eval_frame.TorchPatcher.patch()
    for old in (optimizer, torch.optim.Adam(model.parameters())):
        more, of = train(model, old, build_loader())
        steps, samples = steps + more, samples + of
    return steps, 0, samples


def tell(name: str, pid: int, counts: Counts) -> None:
    steps, skipped, samples = counts
    said = {"case": name, "pid": pid, "steps": steps, "skipped": skipped, "samples": samples}
    print(json.dumps(said), flush=True)


def main() -> None:
    torch.set_num_threads(1)
    for name in sys.argv[1:]:
        pid = os.fork()
        if not pid:
            tell(name, os.getpid(), CASES[name]())
            # As many programs end: without a word to anybody.
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status:
            sys.exit(f"{name} failed")


if __name__ == "__main__":
    main()
