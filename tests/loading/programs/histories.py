"""Members of packs that start late, are slow, stop and die: what ids does each of them see?

    python histories.py DIRECTORY FIRST COUNT     random ones, by their numbers
    python histories.py DIRECTORY HISTORY         one, as JSON

Prints one line of JSON for each history that went wrong, and one about all. Members are forked from
here, so that torch is imported once.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from slurm_colloc.loading.shared_loader import shared


class Numbers(Dataset[Any]):
    def __init__(self, length: int, pause_s: float) -> None:
        self.length = length
        self.pause_s = pause_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.pause_s)
        return {
            "id": index,
            "double": torch.full((3,), 2 * index),
            "name": str(index),
            "noise": torch.rand(()),
            "maker": os.getpid(),
        }


def train(history: dict[str, Any], member: dict[str, Any], out: Path) -> None:
    time.sleep(member["start_s"])
    torch.manual_seed(member["seed"])
    loader = DataLoader(
        Numbers(history["length"], history["make_s"]),
        batch_size=history["batch"],
        shuffle=history["shuffle"],
        drop_last=history["drop_last"],
        num_workers=history["workers"],
    )
    used = shared(loader)
    with out.open("w") as file:
        for epoch in range(history["epochs"]):
            for number, batch in enumerate(used):
                ids = batch["id"].tolist()
                assert batch["double"].tolist() == [[2 * each] * 3 for each in ids]
                assert batch["name"] == [str(each) for each in ids]
                # Nobody else sees what is done to a batch.
                batch["double"].zero_()
                noise = [round(each, 6) for each in batch["noise"].tolist()]
                line = [epoch, ids, noise, int(batch["maker"][0])]
                file.write(json.dumps(line) + "\n")
                file.flush()
                time.sleep(member["use_s"] if number % 7 else 3 * member["use_s"])
                if history.get("fork_at") == number:
                    fork_and_use(used)
        file.write('"ended"\n')


def fork_and_use(used: DataLoader[Any]) -> None:
    """A child that uses the loader too, and another that lives on: neither is a member."""
    if not os.fork():
        ids = [each for batch in used for each in batch["id"].tolist()]
        os._exit(sorted(ids) != list(range(len(used.dataset))))
    assert os.wait()[1] == 0
    if not os.fork():
        time.sleep(3)
        os._exit(0)


def draw_history(seed: int) -> dict[str, Any]:
    draw = random.Random(seed)
    faults = []
    count = draw.choice([2, 3, 3, 4, 5])
    for _ in range(draw.choice([0, 1, 1, 2, 3])):
        kind = draw.choice(["kill", "kill", "kill producer", "kill producer", "pause"])
        faults.append([draw.uniform(0, 0.9), kind, draw.randrange(count)])
    return {
        "seed": seed,
        "length": draw.randrange(1, 150),
        "batch": draw.choice([1, 2, 4, 8]),
        "shuffle": draw.random() < 0.8,
        "drop_last": draw.random() < 0.3,
        "workers": draw.choice([0, 0, 0, 0, 1]),
        "make_s": draw.choice([0, 0, 0.0005, 0.002]),
        "epochs": draw.choice([1, 2, 3]),
        "faults": sorted(faults),
        "members": [
            {
                "seed": draw.randrange(1000),
                "start_s": draw.choice([0, 0, 0, draw.uniform(0, 0.6)]),
                "use_s": draw.choice([0, 0.001, 0.001, 0.004, 0.02]),
            }
            for _ in range(count)
        ],
    }


def list_children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (path / "stat").read_bytes().rpartition(b")")[2].split()
                if int(fields[1]) == pid:
                    found.append(int(path.name))
    return found


def list_below(pid: int) -> list[int]:
    return [pid, *(each for child in list_children(pid) for each in list_below(child))]


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def act(kind: str, pid: int, workers: int) -> bool:
    """Do what a history wants; whether the member itself is killed."""
    if kind == "kill":
        send([pid], signal.SIGKILL)
        return True
    # With workers, children may be those of a loader of its own.
    if kind == "kill producer" and not workers:
        send(list_children(pid), signal.SIGKILL)
    elif kind == "pause":
        stopped = list_below(pid)
        send(stopped, signal.SIGSTOP)
        time.sleep(1.3)
        send(stopped, signal.SIGCONT)
    return False


def run_history(history: dict[str, Any], directory: Path) -> tuple[list[str], int]:
    pack = directory / "pack"
    pack.mkdir(mode=0o700)
    pids = []
    homes = [pack / f"{number + 1:04}.1" for number in range(len(history["members"]))]
    if history.get("together"):
        # Whose start is known is waited for.
        for own in homes:
            own.mkdir()
    for number, (own, member) in enumerate(zip(homes, history["members"], strict=True)):
        own.mkdir(exist_ok=True)
        pid = os.fork()
        if not pid:
            os.environ["SLURM_COLLOC_PROGRESS"] = str(own)
            status = 1
            try:
                train(history, member, directory / f"{number}.ids")
                status = 0
            finally:
                # As an interpreter ends: what waits for children is done, too.
                sys.stderr.flush()
                import atexit

                atexit._run_exitfuncs()
                os._exit(status)
        pids.append(pid)
    begun = time.monotonic()
    killed = set()
    for at_s, kind, number in history["faults"]:
        time.sleep(max(0.0, begun + at_s - time.monotonic()))
        if number not in killed and act(kind, pids[number], history["workers"]):
            killed.add(number)
    problems = wait_for(pids, killed)
    orders = []
    for number in range(len(pids)):
        path = directory / f"{number}.ids"
        lines = path.read_text().splitlines() if path.exists() else []
        found, epochs = check(history, lines, killed=number in killed)
        problems += [f"member {number}: {each}" for each in found]
        orders.append(epochs)
    common = sum(
        len(epochs) - len(set(epochs)) for epochs in zip(*orders, strict=False) if len(epochs) > 1
    )
    return problems, common


def wait_for(pids: list[int], killed: set[int]) -> list[str]:
    problems = []
    deadline = time.monotonic() + 60
    for number, pid in enumerate(pids):
        while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > deadline:
                problems.append(f"member {number} hangs")
                send(list_below(pid), signal.SIGKILL)
            time.sleep(0.005)
        status = os.waitpid(pid, 0)[1]
        if status and number not in killed:
            problems.append(f"member {number} ended with {status}")
    return problems


def check(
    history: dict[str, Any], lines: list[str], *, killed: bool
) -> tuple[list[str], list[tuple[int, ...]]]:
    """What is wrong with the ids that a member saw, and its whole epochs."""
    problems, epochs = [], []
    # The last line of a killed one may be half.
    if killed and lines and not lines[-1].endswith(("]", '"')):
        lines = lines[:-1]
    seen: dict[int, list[int]] = {}
    for line in lines:
        value = json.loads(line)
        if value != "ended":
            seen.setdefault(value[0], []).extend(value[1])
    length, batch = history["length"], history["batch"]
    whole = length - length % batch if history["drop_last"] else length
    for epoch in range(history["epochs"]):
        ids = seen.get(epoch, [])
        if len(set(ids)) != len(ids):
            problems.append(f"doubled in epoch {epoch}")
        if not set(ids) <= set(range(length)):
            problems.append(f"unknown in epoch {epoch}")
        if len(ids) == whole:
            epochs.append(tuple(ids))
            if not history["shuffle"] and ids != list(range(whole)):
                problems.append(f"another order in epoch {epoch}")
        elif not killed:
            problems.append(f"{len(ids)} of {whole} in epoch {epoch}")
    if not killed and lines[-1:] != ['"ended"']:
        problems.append("it did not end")
    return problems, epochs


def show_history(directory: Path, history: dict[str, Any]) -> None:
    """What each member saw, whole."""
    problems, _ = run_history(history, directory)
    seen = [
        [json.loads(line) for line in path.read_text().splitlines()[:-1]]
        for path in sorted(directory.glob("*.ids"))
    ]
    print(json.dumps({"problems": problems, "seen": seen}))


def main() -> None:
    torch.set_num_threads(1)
    directory = Path(sys.argv[1])
    if len(sys.argv) == 3:
        show_history(directory, json.loads(sys.argv[2]))
        return
    first, count = int(sys.argv[2]), int(sys.argv[3])
    common = 0
    for seed in range(first, first + count):
        history = draw_history(seed)
        own = directory / str(seed)
        own.mkdir()
        problems, found = run_history(history, own)
        common += found
        if problems:
            print(json.dumps({"problems": problems, "history": history}), flush=True)
        shutil.rmtree(own, ignore_errors=True)
    print(json.dumps({"histories": count, "common": common}))


if __name__ == "__main__":
    main()
