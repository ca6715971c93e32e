"""`csub admin metrics`: what the audit log says, in the format that Prometheus reads."""

from __future__ import annotations

import gzip
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import parser

from slurm_colloc import __version__
from slurm_colloc.__main__ import run
from slurm_colloc.administration.hook_metrics import (
    CountedLog,
    HookTotals,
    MetricFamily,
    build_value,
    count_log,
    format_value,
    name_outcome,
    parse_time,
    parse_value,
    render_families,
)
from slurm_colloc.administration.slurm_conf import BASE_VARIABLE, Places
from slurm_colloc.host.hooks.audit_log import write_audit

PROLOG = {
    "hook": "prolog", "job": "7", "uid": 0, "node": "n1", "mode": "mps", "action": "prepared",
    "outcome": "", "ms": 20.5, "exit": 0,
}  # fmt: skip
EPILOG = {**PROLOG, "hook": "epilog", "action": "undone", "ms": 700}
STUCK = {**EPILOG, "outcome": "not fit for the next job", "exit": 1, "unsafe": ["process 9"]}
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def node(base: Path, monkeypatch: pytest.MonkeyPatch) -> Places:
    """A node with a policy and no log yet."""
    monkeypatch.setenv(BASE_VARIABLE, str(base))
    monkeypatch.delenv("SLURM_COLLOC_DRIVER", raising=False)
    places = Places(base=str(base))
    for path in (places.policy_path, Path(places.log_path).parent, Path(places.totals_path).parent):
        Path(path).parent.mkdir(parents=True)
    write_policy(places, f'audit_log = "{places.log_path}"\n')
    return places


def write_policy(places: Places, text: str) -> None:
    policy = Path(places.policy_path)
    policy.write_text(text)
    policy.chmod(0o644)


def leave(places: Places, *entries: dict[str, Any]) -> None:
    """Leave lines as the hooks do."""
    for entry in entries:
        assert write_audit(places.log_path, entry, syslog="/nowhere") == ""


def read_samples(text: str) -> Samples:
    """The samples of a text that Prometheus' own parser takes."""
    found: Samples = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def metrics(capsys: pytest.CaptureFixture[str], *words: str) -> Samples:
    assert run(["admin", "metrics", *words]) == 0
    return read_samples(capsys.readouterr().out)


def count(samples: Samples, hook: str, outcome: str) -> float:
    return samples["slurm_colloc_hook_runs_total", (("hook", hook), ("outcome", outcome))]


@pytest.mark.root
@pytest.mark.usefixtures("node")
def test_a_node_without_a_log_has_every_counter_at_0(capsys: pytest.CaptureFixture[str]) -> None:
    samples = metrics(capsys)
    assert count(samples, "prolog", "prepared") == 0
    assert count(samples, "epilog", "failed") == 0
    assert samples["slurm_colloc_hook_unsafe_ends_total", ()] == 0
    assert samples["slurm_colloc_jobs_prepared", ()] == 0
    assert samples["slurm_colloc_policy_enabled", ()] == 1
    assert samples["slurm_colloc_info", (("version", __version__),)] == 1
    assert not any(name.endswith("last_run_timestamp_seconds") for name, _ in samples)


@pytest.mark.root
def test_runs_are_counted_by_hook_and_outcome(
    node: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    recovered = {"hook": "recover", "action": "recovered", "exit": 1, "ms": 5}
    leave(node, PROLOG, PROLOG, {**PROLOG, "action": "told"}, {**PROLOG, "action": "none"})
    leave(node, EPILOG, STUCK, {**recovered, "jobs": [{"job": "1", "unsafe": ["x"]}]})
    leave(node, {**recovered, "exit": 0, "jobs": [{"job": "1", "unsafe": []}]})
    with Path(node.log_path).open("a") as log:
        log.write("half a li\n")
    jobs = Path(node.run_path, "jobs")
    jobs.mkdir(parents=True)
    (jobs / "4711.json").write_text("{}")
    samples = metrics(capsys)
    outcomes = {"prepared": 2, "told": 1, "none": 1, "failed": 0}
    assert {name: count(samples, "prolog", name) for name in outcomes} == outcomes
    assert (count(samples, "epilog", "undone"), count(samples, "epilog", "failed")) == (1, 1)
    assert count(samples, "recover", "recovered") == count(samples, "recover", "failed") == 1
    assert samples["slurm_colloc_hook_unsafe_ends_total", ()] == 2
    assert samples["slurm_colloc_audit_unreadable_lines_total", ()] == 1
    assert samples["slurm_colloc_jobs_prepared", ()] == 1
    name, epilog = "slurm_colloc_hook_duration_seconds", ("hook", "epilog")
    assert samples[f"{name}_count", (epilog,)] == 2
    assert samples[f"{name}_sum", (epilog,)] == pytest.approx(1.4)
    assert samples[f"{name}_bucket", (epilog, ("le", "0.5"))] == 0
    assert samples[f"{name}_bucket", (epilog, ("le", "1"))] == 2
    assert samples[f"{name}_bucket", (epilog, ("le", "+Inf"))] == 2
    newest = parse_time(json.loads(Path(node.log_path).read_text().splitlines()[-2]))
    assert samples["slurm_colloc_hook_last_run_timestamp_seconds", (("hook", "recover"),)] == newest


@pytest.mark.root
def test_no_text_of_a_line_becomes_a_label(
    node: Places, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = 'x"} 1\nevil{a="'
    leave(node, {**PROLOG, "hook": evil}, {**PROLOG, "action": evil}, {"hook": ["a"], "ms": "b"})
    leave(node, {**PROLOG, "action": {"a": 1}, "ms": True}, {**PROLOG, "ms": 10**400})
    leave(node, {**PROLOG, "ms": float("nan"), "jobs": "abc", "exit": "x" * 99})
    samples = metrics(capsys)
    assert count(samples, "other", "prepared") == 1
    assert count(samples, "other", "other") == 1
    assert count(samples, "prolog", "other") == 2
    assert count(samples, "prolog", "failed") == 1
    values = {value for _, labels in samples for name, value in labels if name != "le"}
    known = {"prolog", "epilog", "recover", "other", "prepared", "told", "none", "failed"}
    assert values <= known | {"undone", "recovered", __version__}


@pytest.mark.root
@pytest.mark.parametrize(
    ("text", "valid", "enabled"), [("enabled = false\n", 1, 0), ("surprise = 1\n", 0, 0)]
)
def test_the_policy_is_told(
    node: Places, text: str, valid: int, enabled: int, capsys: pytest.CaptureFixture[str]
) -> None:
    write_policy(node, text)
    samples = metrics(capsys)
    assert samples["slurm_colloc_policy_valid", ()] == valid
    assert samples["slurm_colloc_policy_enabled", ()] == enabled


@pytest.mark.root
def test_a_file_is_written_at_once_for_all_to_read(
    node: Places, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(node, PROLOG)
    output = base / "textfile" / "slurm_colloc.prom"
    output.parent.mkdir()
    umask = os.umask(0o077)
    try:
        assert run(["admin", "metrics", "--output", str(output)]) == 0
    finally:
        os.umask(umask)
    assert capsys.readouterr().out == ""
    assert stat.S_IMODE(output.stat().st_mode) == 0o644
    assert list(output.parent.iterdir()) == [output]
    assert count(read_samples(output.read_text()), "prolog", "prepared") == 1
    first = output.stat().st_ino
    with output.open() as reader:
        assert run(["admin", "metrics", "--output", str(output)]) == 0
        assert reader.read() == output.read_text()
    assert output.stat().st_ino != first


@pytest.mark.root
@pytest.mark.usefixtures("node")
def test_a_directory_that_others_could_exchange_gets_nothing(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = []
    for name in ("open", "foreign"):
        directory = base / name
        directory.mkdir()
        outputs.append((directory, directory / "a.prom", 5))
    outputs[0][0].chmod(0o777)
    os.chown(outputs[1][0], 65534, 65534)
    outputs.append((base, base / "none" / "a.prom", 6))
    outputs.append((base, base / "a.txt", 2))
    for _, output, status in outputs:
        assert run(["admin", "metrics", "--output", str(output)]) == status
        assert capsys.readouterr().err.count("\n") == 1
        assert not output.exists()


@pytest.mark.root
@pytest.mark.usefixtures("node")
def test_a_link_in_the_way_is_replaced_and_not_followed(base: Path) -> None:
    victim = base / "victim"
    victim.write_text("precious")
    output = base / "a.prom"
    output.symlink_to(victim)
    assert run(["admin", "metrics", "--output", str(output)]) == 0
    assert victim.read_text() == "precious"
    assert not output.is_symlink()


class Rotation:
    """A log, metrics that are written again and again, and logrotate in between."""

    def __init__(self, node: Places, base: Path) -> None:
        self.node = node
        self.log = Path(node.log_path)
        self.output = base / "a.prom"

    def count(self) -> float:
        assert run(["admin", "metrics", "--output", str(self.output)]) == 0
        return count(read_samples(self.output.read_text()), "prolog", "prepared")

    def rotate(self, *, compress: bool = False) -> None:
        """As logrotate does it, with `create` and `delaycompress`."""
        for number in (3, 2, 1):
            for suffix in ("", ".gz"):
                old = Path(f"{self.log}.{number}{suffix}")
                if old.exists():
                    old.rename(f"{self.log}.{number + 1}{suffix}")
        self.log.rename(f"{self.log}.1")
        self.log.touch(0o640)
        if compress:
            for old in self.log.parent.glob("hooks.log.[0-9]"):
                with gzip.open(f"{old}.gz", "wb") as file:
                    file.write(old.read_bytes())
                old.unlink()


@pytest.fixture
def rotation(node: Places, base: Path) -> Rotation:
    return Rotation(node, base)


@pytest.mark.root
def test_no_counter_falls_when_an_old_log_is_removed(rotation: Rotation) -> None:
    leave(rotation.node, PROLOG, PROLOG)
    assert rotation.count() == 2
    assert rotation.count() == 2
    leave(rotation.node, PROLOG)
    rotation.rotate()
    # Nothing new in the new file yet, one line in the old one.
    assert rotation.count() == 3
    leave(rotation.node, PROLOG)
    assert rotation.count() == 4
    rotation.rotate()
    leave(rotation.node, PROLOG, PROLOG)
    assert rotation.count() == 6
    for old in rotation.log.parent.glob("hooks.log.*"):
        old.unlink()
    assert rotation.count() == 6
    rotation.log.unlink()
    assert rotation.count() == 6
    leave(rotation.node, {**PROLOG, "time": "2999-01-01T00:00:00+0000"})
    assert rotation.count() == 7


@pytest.mark.root
def test_where_the_last_file_is_compressed_the_time_tells_what_is_new(rotation: Rotation) -> None:
    leave(rotation.node, PROLOG, PROLOG)
    assert rotation.count() == 2
    later = {**PROLOG, "time": "2998-01-01T00:00:00+0000"}
    leave(rotation.node, later)
    rotation.rotate(compress=True)
    leave(rotation.node, {**PROLOG, "time": "2999-01-01T00:00:00+0000"})
    assert rotation.count() == 4
    assert rotation.count() == 4


@pytest.mark.root
def test_a_line_that_is_just_written_is_counted_when_it_is_whole(rotation: Rotation) -> None:
    leave(rotation.node, PROLOG)
    line = rotation.log.read_text()
    with rotation.log.open("a") as log:
        log.write(line[:20])
    assert rotation.count() == 1
    with rotation.log.open("a") as log:
        log.write(line[20:])
    assert rotation.count() == 2


@pytest.mark.root
@pytest.mark.parametrize("text", ["", "[]", '{"totals": {}, "position": {}}', "{"])
def test_damaged_totals_are_counted_anew_from_what_is_left(rotation: Rotation, text: str) -> None:
    leave(rotation.node, PROLOG, PROLOG)
    assert rotation.count() == 2
    Path(rotation.node.totals_path).write_text(text)
    assert rotation.count() == 2


@pytest.mark.root
def test_without_output_nothing_is_kept(
    node: Places, base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave(node, PROLOG)
    before = sorted(base.rglob("*"))
    assert count(metrics(capsys), "prolog", "prepared") == 1
    assert sorted(base.rglob("*")) == before


def test_rotated_and_compressed_files_are_counted(tmp_path: Path) -> None:
    log = tmp_path / "hooks.log"
    line = json.dumps(PROLOG) + "\n"
    with gzip.open(f"{log}.2.gz", "wt") as file:
        file.write(line)
    Path(f"{log}.1").write_text(line * 2)
    log.write_text(line * 3)
    totals = count_log(str(log), CountedLog()).totals
    assert totals.runs["prolog", "prepared"] == 6


def test_totals_survive_being_written_down() -> None:
    totals = HookTotals()
    for entry in (PROLOG, EPILOG, STUCK, {"hook": "x"}, None):
        totals.add(entry)
    assert parse_value(json.loads(json.dumps(build_value(totals)))) == totals
    for name in ("runs", "durations", "last_run_s", "schema", "buckets_s"):
        with pytest.raises(ValueError, match=r".+"):
            parse_value({**build_value(totals), name: [["a", "b", "c"]]})


@pytest.mark.parametrize(
    ("entry", "outcome"),
    [
        ({"action": "prepared", "exit": 10}, "failed"),
        ({"action": "failed", "exit": 0}, "failed"),
        ({"action": None}, "other"),
        ({}, "other"),
    ],
)
def test_an_outcome_is_one_of_a_few(entry: dict[str, Any], outcome: str) -> None:
    assert name_outcome(entry) == outcome


def test_times_have_their_zone() -> None:
    assert parse_time({"time": "1970-01-01T02:00:00+0200"}) == 0
    assert parse_time({"time": "1970-01-01T00:00:00"}) is None
    assert parse_time({}) is None


def test_label_values_are_escaped_as_the_format_demands() -> None:
    family = MetricFamily("m", "gauge", 'a "line"\nand a \\ more')
    family.add(1.5, path='C:\\a "b"\nc')
    text = render_families([family])
    assert text.splitlines()[0] == '# HELP m a "line"\\nand a \\\\ more'
    assert read_samples(text) == {("m", (("path", 'C:\\a "b"\nc'),)): 1.5}
    (parsed,) = parser.text_string_to_metric_families(text)
    assert parsed.documentation == 'a "line"\nand a \\ more'
    for bad in (
        MetricFamily("1m", "gauge", "x", [("", {}, 1)]),
        MetricFamily("m", "gauge", "", []),
    ):
        if bad.name != "m":
            with pytest.raises(ValueError, match="no name of a metric"):
                render_families([bad])
    with pytest.raises(ValueError, match="no name of a label"):
        render_families([MetricFamily("m", "gauge", "x", [("", {"a-b": "c"}, 1)])])


def test_numbers_are_as_the_format_has_them() -> None:
    values = [0, 3.0, 0.1, 1e20, float("inf"), float("-inf"), float("nan")]
    assert [format_value(value) for value in values] == [
        *("0", "3", "0.1", "1e+20", "+Inf", "-Inf", "NaN"),
    ]
