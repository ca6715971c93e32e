"""Members in MLflow, with a real server, and in W&B, without one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slurm_colloc.instrument
from slurm_colloc.report.member_survey import survey_packs
from slurm_colloc.report.summary_file import find_summary
from slurm_colloc.report.tracker_runs import TrackerValues, build_values, choose_name, track_pack
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.report_files import TrackerRun, keep_tracker_runs, read_tracker_runs

from ..calls import UserWithoutSlurm
from .generated import Truth, make_pack
from .test_data import set_arguments

SITE = Path(slurm_colloc.instrument.__file__).parent / "site"
EVIL = "x\x1b]0;evil\x07"
pytestmark = pytest.mark.filterwarnings("ignore")


class TrackedUser(UserWithoutSlurm):
    """A user with a pack of three: the first well, the second failed, the third counted nothing."""

    def __init__(self, root: Path) -> None:
        path = os.pathsep.join(sys.path)
        super().__init__(root, PYTHONPATH=path, PYTHONWARNINGS="ignore")
        truths = [Truth(1, 0, 120, lambda _: 20), Truth(2, 0, 60, lambda _: 9),
                  Truth(3, 0, 60, lambda _: 9, reports=False, gpu_memory_mb=None)]  # fmt: skip
        self.pack = make_pack(self.state, truths, failed=[2], names=["a", "b", "c"])
        for number in (1, 2, 3):
            set_arguments(self.pack, number, "--lr", f"0.{number}", "--name", EVIL)
        self.notes = root / "notes"
        self.notes.mkdir()

    @property
    def summary(self) -> Any:
        state = State(self.state, "here")
        (view,) = survey_packs(state, [self.pack.name], None)
        return find_summary(state, view)

    def csub(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**self.environment, **variables}
        return subprocess.run([sys.executable, "-m", "slurm_colloc", *words], env=environment,
                              cwd=self.home, capture_output=True, text=True, check=False,
                              timeout=300)  # fmt: skip

    def run_member(self, number: int, program: str, **variables: str) -> str:
        """Run a program as a member does, with the instrument; what it printed."""
        directory = self.notes / f"{number:04d}.1"
        directory.mkdir(exist_ok=True)
        path = os.pathsep.join([str(SITE), *filter(None, sys.path)])
        environment = {"HOME": str(self.home), "PATH": os.defpath, "PYTHONPATH": path,
                       "SLURM_COLLOC_PROGRESS": str(directory), "PYTHONWARNINGS": "ignore",
                       **variables}  # fmt: skip
        done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=self.home,
                              capture_output=True, text=True, check=False, timeout=300)  # fmt: skip
        assert done.returncode == 0, done.stderr
        keep_tracker_runs(str(self.notes), self.pack)
        return done.stdout.strip().splitlines()[-1]


@pytest.fixture
def person(tmp_path: Path) -> TrackedUser:
    return TrackedUser(tmp_path)


def test_what_is_not_known_is_left_out(person: TrackedUser) -> None:
    summary = person.summary
    found = [build_values(summary, member, [], []) for member in summary["members"]]
    assert found[0].parameters == {"lr": "0.1", "name": r"x\x1b]0;evil\x07"}
    assert found[0].figures["system/csub/steps_per_s"] == pytest.approx(20, rel=0.02)
    assert (found[0].is_failed, found[1].is_failed) == (False, True)
    names = {name.removeprefix("system/csub/") for name in found[2].figures}
    assert not names & {"steps", "steps_per_s", "slowdown", "gpu_memory_peak_mb", "data_wait_share"}
    assert "cpu_s" in names
    assert "\x1b" not in json.dumps([dict(values.tags) for values in found])


def test_parameters_are_those_of_the_sweep_and_no_words_of_a_command(person: TrackedUser) -> None:
    summary = person.summary
    member: Any = {**summary["members"][0], "parameters": {"lr": "0.5", "model.depth": "2"}}
    found = build_values(summary, member, [], [])
    assert found.parameters["lr"] == "0.5", "what csub knows for sure"
    assert set(found.parameters) == {"lr", "model.depth", "name"}
    command: Any = {**member, "script": "--wrap", "arguments": ["python x.py --lr 0.5"]}
    assert build_values(summary, command, [], []).parameters == {"lr": "0.5", "model.depth": "2"}


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("model.depth", "model.depth"), ("a/b", "a/b"), ("model@x", "model_x"),
        ("a/../b", "a____b"), ("..", "__"), ("/etc", "_etc"), ("a[0]", "a_0_"), ("ünï", "ünï"),
        ("x" * 300, "x" * 250),
        ("\x1b", "_"), ("a//b", "a__b"), (".", "_"),
    ],
)  # fmt: skip
def test_names_that_mlflow_does_not_take_are_written_otherwise(name: str, word: str) -> None:
    validation = pytest.importorskip("mlflow.utils.validation")
    assert choose_name(name) == word
    validation._validate_param_name(word)


@pytest.mark.long
def test_a_member_that_is_refused_keeps_no_other_from_its_store(
    person: TrackedUser, tmp_path: Path
) -> None:
    pytest.importorskip("mlflow")
    store = f"sqlite:///{tmp_path}/store.db"
    set_arguments(person.pack, 1, "--a/../b=2", "model@x=1")
    note = {"tracker": "mlflow", "run": "f" * 32, "directory": "/", "uri": store}
    (person.notes / "0002.1").mkdir()
    (person.notes / "0002.1" / "tracker-runs.jsonl").write_text(json.dumps(note))
    keep_tracker_runs(str(person.notes), person.pack)
    done = person.csub("track", "4711", "--to=mlflow", "--uri", store)
    assert done.returncode == 5
    (line,) = (line for line in done.stderr.splitlines() if "csub: error" in line)
    assert "MLflow did not take 4711/2: " in line
    assert [text.split()[0] for text in done.stdout.splitlines()] == ["4711/1", "4711/3"]
    client = open_client(store)
    experiment = client.get_experiment_by_name("csub")
    runs = client.search_runs([experiment.experiment_id])
    assert [run.info.status for run in runs] == ["FINISHED", "FINISHED"]
    (first,) = (run for run in runs if run.data.tags["csub.member"] == "4711/1")
    assert first.data.params == {"a____b": "2", "model_x": "1"}


def test_a_member_that_still_runs_is_left_alone(person: TrackedUser) -> None:
    summary: Any = person.summary
    for member in summary["members"][:2]:
        member["ended_at"] = None
    taken = []

    class Taker:
        def track(self, values: TrackerValues, own: TrackerRun | None, stamp: str) -> str:
            taken.append((values.name, own, bool(stamp)))
            return "taken"

    words = dict(track_pack(Taker(), "mlflow", person.pack, summary, frozenset({2, 3})))
    assert words == {
        "4711/2": "still runs: call it again when it has ended",
        "4711/3": "taken",
    }
    assert taken == [("4711/3", None, True)]


def test_series_are_of_the_member_s_time_and_not_too_long(person: TrackedUser) -> None:
    member = person.summary["members"][1]
    begin = member["started_at"]
    row = {"start": 1, "gpu_memory_mb": None, "host_memory_mb": 5.0, "processes": 1}
    rows = [{**row, "at": begin + n / 8, "steps": n} for n in range(480)]
    gpu = [{"at": begin + n, "power_w": 300.0, "sm_active": float("nan")} for n in range(-50, 200)]
    values = build_values(person.summary, member, rows, gpu)
    names = {name for _, found in values.series for name in found}
    assert names == {
        "system/csub/host_memory_mb", "system/csub/processes", "system/csub/steps_per_s",
        "system/csub/whole_gpu/power_w",
    }  # fmt: skip
    assert min(seconds for seconds, _ in values.series) >= 0
    assert max(seconds for seconds, _ in values.series) <= 61.1
    rates = [found["system/csub/steps_per_s"] for _, found in values.series
             if "system/csub/steps_per_s" in found]  # fmt: skip
    assert rates == pytest.approx([8.0] * len(rates), rel=1e-4)
    assert len(values.series) < 2100


def test_what_a_program_notes_is_taken_with_distrust(person: TrackedUser) -> None:
    directory = person.notes / "0001.1"
    directory.mkdir()
    good = {"tracker": "mlflow", "run": "abc", "directory": "/x", "uri": "http://h"}
    bad = [{**good, "run": "../x"}, {**good, "tracker": "x"}, {**good, "uri": 3}, [], "x", None]
    lines = [json.dumps(value) for value in (good, *bad)]
    (directory / "tracker-runs.jsonl").write_text("\n".join([*lines, "{", "\x00"]))
    (person.notes / "lock").write_text("")
    keep_tracker_runs(str(person.notes), person.pack)
    keep_tracker_runs(str(person.notes / ".."), person.pack)
    (run,) = read_tracker_runs(person.pack)
    assert (run.member, run.start, run.run, run.uri) == (1, 1, "abc", "http://h")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real MLflow server with a local store."""
    pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = (folder / "log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port),
         "--workers", "1", "--backend-store-uri", f"sqlite:///{folder}/store.db",
         "--artifacts-destination", str(folder / "artifacts")],
        stdout=log, stderr=log, cwd=folder, process_group=0,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        until = time.monotonic() + 180
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.3)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            # Its workers take their time where the machine is busy.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.close()


def open_client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    return MlflowClient(tracking_uri=uri)


OWN_RUN = """
import mlflow
with mlflow.start_run() as run:
    mlflow.log_param("lr", "mine")
    mlflow.log_metric("loss", 0.5)
print(run.info.run_id)
"""


@pytest.mark.long
def test_members_come_into_mlflow(person: TrackedUser, server: str) -> None:
    # The second has opened a run of its own, which it has left as FINISHED.
    own = person.run_member(2, OWN_RUN, MLFLOW_TRACKING_URI=server)
    done = person.csub("track", "4711", "--to=mlflow", "--uri", server, "--project", "sweep")
    assert done.returncode == 0, done.stderr
    assert f"4711/2 added to its run {own}" in done.stdout
    client = open_client(server)
    experiment = client.get_experiment_by_name("sweep")
    runs = {
        run.data.tags["csub.member"]: run for run in client.search_runs([experiment.experiment_id])
    }
    assert set(runs) == {"4711/1", "4711/3"}, "the second has its own"
    first, third = runs["4711/1"], runs["4711/3"]
    assert first.info.status == "FINISHED"
    assert first.data.params["lr"] == "0.1"
    assert first.data.metrics["system/csub/total/steps_per_s"] == pytest.approx(20, rel=0.02)
    history = client.get_metric_history(first.info.run_id, "system/csub/steps_per_s")
    assert len(history) > 50
    assert [entry.step for entry in history] == sorted(entry.step for entry in history)
    assert "system/csub/total/steps_per_s" not in third.data.metrics, "missing stays missing"
    assert "system/csub/steps_per_s" not in third.data.metrics
    second = client.get_run(own)
    assert second.info.status == "FAILED", "FAILED is failed"
    assert second.data.params["lr"] == "mine", "what the program logged stays"
    assert second.data.metrics["loss"] == 0.5
    assert second.data.tags["csub.exit_code"] == "1"
    assert second.data.metrics["system/csub/total/steps_per_s"] == pytest.approx(9, rel=0.05)
    # Once more: nothing comes twice.
    again = person.csub("track", "4711", "--to=mlflow", "--uri", server, "--project", "sweep")
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("already") == 3
    assert len(client.get_metric_history(first.info.run_id, "system/csub/steps_per_s")) == len(
        history
    )
    assert len(client.search_runs([experiment.experiment_id])) == 2
    assert "\x1b" not in done.stdout


def test_a_server_that_is_not_there_is_one_sentence(person: TrackedUser) -> None:
    pytest.importorskip("mlflow")
    # By itself MLflow would try for minutes.
    done = person.csub("track", "--to=mlflow", "--uri", "http://127.0.0.1:9")
    assert done.returncode == 5
    assert [line for line in done.stderr.splitlines() if "did not take 4711/1" in line]
    assert "Traceback" not in done.stderr


OWN_WANDB = """
import wandb
run = wandb.init(project="mine", mode="offline", config={"lr": "mine"})
run.log({"loss": 0.5})
run.finish()
print(run.id)
"""


def read_wandb(folder: Path) -> list[Any]:
    """The records of an offline run: LevelDB's log format after seven bytes, as W&B writes it."""
    from wandb.proto import wandb_internal_pb2

    kind: Any = wandb_internal_pb2
    (path,) = folder.glob("*.wandb")
    data, at, whole, records = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, part = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        # A whole record, or the last part of one.
        if part in (1, 4):
            record = kind.Record()
            record.ParseFromString(whole)
            records.append(record)
            whole = b""
    return records


@pytest.mark.long
def test_members_come_into_wandb_offline(person: TrackedUser) -> None:
    pytest.importorskip("wandb")
    own = person.run_member(2, OWN_WANDB)
    done = person.csub("track", "4711", "--to=wandb", "--offline", "--project", "sweep")
    assert done.returncode == 0, done.stderr
    assert f"4711/2 added to its run {own}" in done.stdout
    found: dict[str, tuple[dict[str, str], list[dict[str, str]], int]] = {}
    for folder in sorted((person.home / "wandb").glob("offline-run-*")):
        records = read_wandb(folder)
        run = next(r.run for r in records if r.WhichOneof("record_type") == "run")
        history = [{item.key or "/".join(item.nested_key): item.value_json
                    for item in r.history.item}
                   for r in records if r.WhichOneof("record_type") == "history"]  # fmt: skip
        summary = {(item.key or "/".join(item.nested_key)): item.value_json
                   for r in records if r.WhichOneof("record_type") == "summary"
                   for item in r.summary.update}  # fmt: skip
        ends = [r.exit.exit_code for r in records if r.WhichOneof("record_type") == "exit"]
        if "csub.member" in summary:
            found[json.loads(summary["csub.member"])] = (summary, history, ends[-1])
            assert (run.run_id == own) == (summary["csub.member"] == '"4711/2"')
            assert run.project == ("mine" if run.run_id == own else "sweep")
    assert set(found) == {"4711/1", "4711/2", "4711/3"}
    summary, history, end = found["4711/1"]
    assert float(summary["system/csub/total/steps_per_s"]) == pytest.approx(20, rel=0.02)
    assert end == 0
    assert sum("system/csub/steps_per_s" in row for row in history) > 50
    assert found["4711/2"][2] == 1, "FAILED is failed"
    assert "system/csub/total/steps_per_s" not in found["4711/3"][0], "missing stays missing"


def test_wrong_words_are_one_sentence(person: TrackedUser) -> None:
    for words in ((), ("--to=x",), ("--to=mlflow", "--offline"), ("--to=wandb", "--uri", "x")):
        done = person.csub("track", *words)
        assert done.returncode == 2, words
        assert len(done.stderr.splitlines()) == 1
    assert "no tracker was named: csub track ID --to mlflow" in person.csub("track", "4711").stderr
