"""What a loader is in the user's program: itself outside a pack, and one of its kind inside."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import threading
from argparse import Namespace
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
)

import slurm_colloc  # noqa: E402
from slurm_colloc.loading.members import MeetingPlace  # noqa: E402
from slurm_colloc.loading.same_loader import identify  # noqa: E402
from slurm_colloc.loading.shared_loader import shared  # noqa: E402

from .loader_programs import ROOT, in_company, run_program  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("pack")]


class Items(Dataset[Any]):
    """Any items; all of them are made by whom `makers` names."""

    def __init__(self, make: Any, length: int = 12) -> None:
        self.make = make
        self.length = length
        self.decode: Any = None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(range(3))


def make_pair(index: int) -> Any:
    return torch.tensor([float(index)]), os.getpid()


def list_ids(loader: Any) -> tuple[list[int], set[int]]:
    """The samples of an epoch, and the processes that made them."""
    ids, makers = [], set()
    for pictures, made_by in loader:
        ids += [int(each) for each in pictures.flatten().tolist()]
        makers |= set(made_by.tolist())
    return ids, makers


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_colloc.loading.shared_loader._said", set())


def test_outside_a_pack_it_is_the_loader_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_COLLOC_PROGRESS", raising=False)
    loader = DataLoader(Items(make_pair))
    assert slurm_colloc.shared(loader) is loader


def test_where_others_could_write_it_is_the_loader_itself(pack: Path) -> None:
    loader = DataLoader(Items(make_pair))
    pack.chmod(0o770)
    assert shared(loader) is loader
    pack.chmod(0o700)
    assert shared(loader) is not loader


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: [1], "it is a list, no DataLoader of torch"),
        (lambda: DataLoader(Endless()), "its dataset is an IterableDataset"),
        (
            lambda: DataLoader(Items(make_pair), batch_size=None),
            "it has no batch size",
        ),
        (
            lambda: DataLoader(
                Items(make_pair),
                batch_sampler=type("Own", (BatchSampler,), {})(
                    SequentialSampler(range(3)), 2, False
                ),
            ),
            "its batch_sampler is a Own",
        ),
        (
            lambda: DataLoader(Items(threading.Lock())),
            "its parts cannot be compared (TypeError); key= names it",
        ),
    ],
)
def test_what_cannot_be_shared_is_used_as_it_is_and_said_once(
    capsys: pytest.CaptureFixture[str], make: Any, reason: str
) -> None:
    loader = make()
    assert shared(loader) is loader
    assert shared(loader) is loader
    said = capsys.readouterr().err
    assert said == f"slurm_colloc: a loader is used as it is, not shared: {reason}\n"


Point = namedtuple("Point", "x y")  # noqa: PYI024 - as programs have them


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda index: {"set": {index}}, "a set, not only tensors"),
        (lambda index: (index, torch.eye(2).to_sparse()), "sparse or quantized tensors"),
        (lambda index: torch.zeros(2, requires_grad=True) + index, "or gradients"),
    ],
)
def test_batches_that_no_one_else_can_have_are_made_by_each(
    capsys: pytest.CaptureFixture[str], make: Any, reason: str
) -> None:
    loader = DataLoader(Items(make, 5), batch_size=1, collate_fn=list)
    with in_company(loader):
        used = shared(loader)
        assert [len(list(used)) for _ in range(2)] == [5, 5]
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert reason in said


def test_an_error_in_the_dataset_is_met_in_the_program_itself() -> None:
    def fail_at_7(index: int) -> Any:
        if index == 7:
            raise LookupError("picture 7")
        return make_pair(index)

    loader = DataLoader(Items(fail_at_7), batch_size=2)
    seen = []
    with in_company(loader):
        batches = iter(shared(loader))
        for _ in range(3):
            seen += next(batches)[0].flatten().tolist()
        with pytest.raises(LookupError, match="picture 7"):
            next(batches)
    assert seen == [0, 1, 2, 3, 4, 5]


def test_all_that_batches_are_made_of_comes_as_it_was() -> None:
    def make(index: int) -> Any:
        return {
            "tensor": torch.full((2, 3), index, dtype=torch.bfloat16).t(),
            "none": None,
            7: [index, 2.5, True, "text", b"bytes", 1j],
            "point": Point(torch.tensor(index), torch.zeros(0, 4)),
        }

    loader = DataLoader(Items(make, 3), collate_fn=tuple, batch_size=2)
    with in_company(loader):
        for ours, plain in zip(shared(loader), loader, strict=True):
            assert type(ours) is tuple
            for one, other in zip(ours, plain, strict=True):
                assert list(one) == list(other)
                assert torch.equal(one["tensor"], other["tensor"])
                assert one["tensor"].dtype is torch.bfloat16
                assert one[7] == other[7]
                assert type(one["point"]) is Point
                assert one["point"].x == other["point"].x
                assert one["point"].y.shape == (0, 4)


def test_it_is_a_loader_of_the_same_class_with_all_that_frameworks_ask() -> None:
    class Own(DataLoader[Any]):
        pass

    loader = Own(Items(make_pair), batch_size=5, drop_last=True, shuffle=True, num_workers=1)
    used = shared(loader)
    assert isinstance(used, Own)
    assert shared(used) is used
    for name in ("dataset", "batch_size", "sampler", "drop_last", "collate_fn", "num_workers"):
        assert getattr(used, name) is getattr(loader, name)
    assert len(used) == 2
    with pytest.raises(ValueError, match="batch_size"):
        used.batch_size = 3


def test_alone_in_a_pack_nothing_is_handed_over() -> None:
    ids, makers = list_ids(shared(DataLoader(Items(make_pair), batch_size=4)))
    assert ids == list(range(12))
    assert makers == {os.getpid()}


def test_a_loader_of_another_key_is_no_company() -> None:
    loader = DataLoader(Items(make_pair), batch_size=4)
    with in_company(loader, "theirs"):
        assert list_ids(shared(loader, key="ours"))[1] == {os.getpid()}
    with in_company(loader, "ours"):
        assert list_ids(shared(loader, key="ours"))[1] != {os.getpid()}


def test_packages_of_other_environments_go_by_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a cluster's module are on PYTHONPATH, and hold what cannot be compared."""
    packages = tmp_path / "lib" / "python3" / "site-packages"
    packages.mkdir(parents=True)
    lines = [
        "import threading",
        "LOCKS = {1: threading.Lock()}",
        "def decode(row): return LOCKS[row]",
    ]
    (packages / "csub_decoders.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(packages)
    items = Items(make_pair)
    items.decode = importlib.import_module("csub_decoders").decode
    loader = DataLoader(items, batch_size=4)
    with in_company(loader):
        assert list_ids(shared(loader))[1] != {os.getpid()}


def test_an_epoch_within_another_is_the_programs_own() -> None:
    loader = DataLoader(Items(make_pair), batch_size=4)
    with in_company(loader):
        used = shared(loader)
        outer = iter(used)
        next(outer)
        assert list_ids(used) == (list(range(12)), {os.getpid()})
        assert len(list(outer)) == 2


def test_an_epoch_may_be_left() -> None:
    loader = DataLoader(Items(make_pair), batch_size=1)
    with in_company(loader):
        used = shared(loader)
        for _ in range(3):
            next(iter(used))
        assert list_ids(used)[0] == list(range(12))


def test_many_batches_may_be_kept() -> None:
    # Each would hold a descriptor, if it were mapped as Python does.
    loader = DataLoader(Items(make_pair, 400), batch_size=1)
    with in_company(loader):
        open_before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
        kept = list(shared(loader))
        assert len(os.listdir("/proc/self/fd")) < open_before + 20  # noqa: PTH208
    assert [int(pictures) for pictures, _ in kept] == list(range(400))


def test_without_memory_for_batches_each_makes_its_own() -> None:
    import resource

    own = os.getpid()

    def limit_others(index: int) -> Any:
        if os.getpid() != own:
            resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
        return make_pair(index)

    loader = DataLoader(Items(limit_others), batch_size=4)
    with in_company(loader):
        assert list_ids(shared(loader)) == (list(range(12)), {own})


@pytest.mark.parametrize("way", ["collated", "listed"])
def test_where_dev_shm_is_full_a_member_goes_on_with_its_own_loader(
    tmp_path: Path, way: str
) -> None:
    unshare = "unshare --user --map-root-user --mount sh -c"
    mount = "mount -t tmpfs -o size=4m none /dev/shm"
    if subprocess.run([*unshare.split(), mount], capture_output=True, check=False).returncode:
        pytest.skip("no mounts of one's own here")
    program = str(Path(__file__).parent / "programs" / "full_shm.py")
    run = subprocess.run(
        [
            *unshare.split(),
            f'{mount} && exec "$@"',
            "sh",
            sys.executable,
            program,
            str(tmp_path),
            way,
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = json.loads(run.stdout)
    assert sorted(first["ids"]) == sorted(second["ids"]) == list(range(12))
    # The first epoch is of its own workers, at least its end; the next one is shared again.
    assert first["own"]
    assert not second["own"]
    said = [line for line in run.stderr.splitlines() if line.startswith("slurm_colloc:")]
    assert said == [
        (
            "slurm_colloc: the process that makes shared batches ended an epoch: /dev/shm has no "
            "room for its workers; this member goes on with its own loader"
        )
    ]


SETTINGS = Namespace(crop=3, rate=0.1)


def make_cropped(index: int) -> Any:
    return make_pair(index * SETTINGS.crop // SETTINGS.crop)


def test_with_whom_it_is_shared_and_with_whom_not_is_said_once(
    pack: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build() -> Any:
        return DataLoader(Items(make_cropped), batch_size=4)

    def join(number: int) -> MeetingPlace:
        monkeypatch.setenv("SLURM_COLLOC_PROGRESS", str(pack / f"000{number}.1"))
        place = MeetingPlace(str(pack), *identify(build(), None))
        place.begin_epoch(3, shared=True)
        return place

    others = [join(2), join(3)]
    monkeypatch.setattr(SETTINGS, "rate", 0.2)
    others.append(join(4))
    monkeypatch.setattr(SETTINGS, "rate", 0.1)
    monkeypatch.setenv("SLURM_COLLOC_PROGRESS", str(pack / "0001.1"))
    used = shared(build())
    assert [list_ids(used)[0] for _ in range(2)] == [list(range(12))] * 2
    key = others[0].identity
    assert capsys.readouterr().err.splitlines() == [
        f"slurm_colloc: the loader of Items is shared with members 2, 3 (key {key})",
        (
            "slurm_colloc: the loader of Items is not shared with member 4: SETTINGS.rate differs "
            "(key= names those that may be shared all the same)"
        ),
    ]
    for place in others:
        place.leave()


def test_a_generator_of_the_same_seed_gives_the_order() -> None:
    def build(seed: int) -> Any:
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(Items(make_pair), batch_size=4, shuffle=True, generator=generator)

    expected = list_ids(build(3))[0]
    with in_company(build(3)):
        ids, makers = list_ids(shared(build(3)))
        assert (ids, makers == {os.getpid()}) == (expected, False)
        assert list_ids(shared(build(4)))[1] == {os.getpid()}


def test_accelerate_moves_what_is_shared() -> None:
    accelerate = pytest.importorskip("accelerate")
    loader = accelerate.Accelerator(cpu=True).prepare(
        DataLoader(Items(make_pair), batch_size=4, shuffle=True)
    )
    with in_company(loader.base_dataloader):
        used = shared(loader)
        assert used is loader
        assert len(used) == 3
        used.set_epoch(1)
        ids, makers = list_ids(used)
    assert sorted(ids) == list(range(12))
    assert os.getpid() not in makers


def test_a_shared_loader_that_accelerate_builds_anew_is_an_ordinary_one() -> None:
    accelerate = pytest.importorskip("accelerate")
    loader = DataLoader(Items(make_pair), batch_size=4)
    with in_company(loader):
        used = accelerate.Accelerator(cpu=True).prepare(shared(loader))
        assert list_ids(used)[0] == list(range(12))


@pytest.mark.long
def test_lightning_and_the_trainer_of_transformers_train_with_it(tmp_path: Path) -> None:
    for module in ("lightning", "transformers", "accelerate"):
        pytest.importorskip(module)
    (found,) = run_program("frameworks.py", str(tmp_path / "theirs"))
    assert sorted(found["lightning"]["ids"]) == list(range(12))
    assert sorted(found["trainer"]["ids"]) == list(range(12))
    assert not found["lightning"]["own"]
    assert not found["trainer"]["own"]
