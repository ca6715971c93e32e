"""Support staff and others look at a user's packs: all is seen, and nothing is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from ..bed import CsubUser
from ..wait_until import wait_until

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="another user's files need root"),
]

GO = "echo begun; while [ ! -e go ]; do sleep 0.1; done"
PACK = ("pack", "--gres=gpu:1", "--time=30")
LOOKS = (
    ("queue",),
    ("queue", "--all"),
    ("queue", "--json"),
    ("show", "ID"),
    ("show", "ID/1"),
    ("show", "--json", "last"),
    ("why",),
    ("why", "--json", "ID"),
    ("explain", "ID/2"),
    ("history",),
    ("report", "ID"),
    ("report", "--json", "ID"),
    ("report", "--csv", "ID"),
    ("top", "--once"),
    ("logs", "ID"),
)
"""Every command that reads a user's packs."""


@pytest.fixture
def helped(user: CsubUser) -> CsubUser:
    """A user whose state lies where it does by default: below the home in the user database."""
    if user.uid == 0:
        pytest.skip("needs a checkout that ordinary users can read")
    subprocess.run(["usermod", "--home", user.home, user.name], check=True, capture_output=True)
    user.extra["XDG_STATE_HOME"] = ""
    for folder in (".local", ".local/state", ".config", ".config/slurm_colloc"):
        (user.home / folder).mkdir()
        os.chown(user.home / folder, user.uid, user.gid)
    # Where the tests look for it.
    (user.home / "state").symlink_to(".local/state")
    # A monitor writes each second; all else of a pack rests while its members run.
    settings = user.home / ".config/slurm_colloc/settings.toml"
    settings.write_text("monitor = false\n")
    os.chown(settings, user.uid, user.gid)
    return user


@pytest.fixture
def root(helped: CsubUser) -> Iterator[CsubUser]:
    """Root, who has a home of its own."""
    with tempfile.TemporaryDirectory(prefix="root", dir="/var/tmp") as home:
        extra = {"XDG_STATE_HOME": ""}
        yield CsubUser("root", 0, 0, Path(home), helped.sandbox, extra)


def take_picture(user: CsubUser) -> dict[str, tuple[object, ...]]:
    """Everything of a user's files but when they were read."""
    picture: dict[str, tuple[object, ...]] = {}
    for path in [user.home, *sorted(user.home.rglob("*"))]:
        found = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        picture[str(path.relative_to(user.home))] = (
            found.st_mode,
            found.st_uid,
            found.st_gid,
            found.st_mtime_ns,
            found.st_ctime_ns,
            content,
        )
    return picture


def mask(text: str) -> str:
    """A text without what differs from second to second."""
    text = re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "MOMENT", text)
    text = re.sub(r"\b(\d+:)?\d+:\d\d\b", "TIME", text)
    text = re.sub(r'"(elapsed_s|present_s|made_at|at)": [\d.]+', r'"\1": N', text)
    return re.sub(r"[\d.]+ (s|min)\b", "N s", re.sub(" +", " ", text))


def look(reader: CsubUser, words: Sequence[str], job_id: str, *more: str) -> tuple[str, str, int]:
    ended = reader.run(["csub", *(w.replace("ID", job_id) for w in words), *more], check=False)
    return mask(ended.stdout), ended.stderr, ended.returncode


def start_pack(user: CsubUser) -> str:
    user.script("go.sh", GO)
    user.script("three.sh", "exit 3")
    job_id = user.submit(*PACK, "go.sh", "go.sh", "three.sh")
    user.wait_for_states(job_id, {1: "RUNNING", 2: "RUNNING", 3: "FAILED"})
    return job_id


WAYS = {
    "--user": {},
    "XDG_STATE_HOME": {"XDG_STATE_HOME": "{home}/.local/state"},
    "HOME": {"HOME": "{home}"},
}
"""How root comes to a user's state directory, and what of the environment leads there."""


def test_root_sees_what_the_owner_sees_and_leaves_everything_as_it_was(
    helped: CsubUser, root: CsubUser
) -> None:
    job_id = start_pack(helped)
    seen = {words: look(helped, words, job_id) for words in LOOKS}
    assert "RUNNING" in seen["queue",][0]
    before = take_picture(helped)
    for way, given in WAYS.items():
        told = {name: value.format(home=helped.home) for name, value in given.items()}
        root.extra = {"XDG_STATE_HOME": "", **told}
        more = ("--user", helped.name) if way == "--user" else ()
        for words in LOOKS:
            assert look(root, words, job_id, *more) == seen[words], (way, words)
            assert take_picture(helped) == before, (way, words)
    assert list(root.home.rglob("*")) == [], "nothing of root's own either"
    assert helped.members(job_id)[1]["state"] == "RUNNING"
    assert helped.csub("queue").stdout.count("RUNNING") == 2
    helped.script("go", "")
    assert [row["state"] for row in helped.finish(job_id).values()][:2] == ["COMPLETED"] * 2


def test_what_has_ended_unseen_by_its_owner_is_seen_as_the_owner_would(
    helped: CsubUser, root: CsubUser
) -> None:
    job_id = start_pack(helped)
    waiting = helped.submit(*PACK, "--begin=now+1hour", "go.sh", "three.sh")
    helped.run(["scancel", job_id, waiting])
    wait_until(
        lambda: not helped.run(["squeue", "-h", "--me"]).stdout.strip(), "Slurm has ended both"
    )
    before = take_picture(helped)
    words = ("queue", "--all")
    told = look(root, words, job_id, "--user", helped.name)
    assert look(root, ("queue",), job_id, "--user", str(helped.uid))[0].count("\n") == 1
    assert take_picture(helped) == before
    assert [line.split()[2] for line in told[0].splitlines()[1:]].count("CANCELLED") == 4
    assert look(helped, words, job_id) == told


SECRET = "only-root-may-read-this-4711"


@pytest.fixture
def secret(root: CsubUser) -> Path:
    """A file of root's that nobody else can read."""
    path = root.home / "secret"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    return path


LINKED = (
    "packs/*/slurm_job_id",
    "packs/*/events.jsonl",
    "packs/*/pack.json",
    "packs/*/members/0001/spec.json",
    "packs/*/members/0002/state.*.json",
    "jobs/*.json",
)
"""Files of a state in whose place its owner can put a link."""


def put_in_place(user: CsubUser, path: Path, target: Path | str) -> None:
    """As the user, have a link or a named pipe instead of a file."""
    made = ["ln", "-sfn", str(target), str(path)] if target else ["mkfifo", str(path)]
    user.run(["sh", "-c", 'rm -rf "$1"; shift; "$@"', "sh", str(path), *made])


def look_everywhere(reader: CsubUser, job_id: str, *more: str) -> str:
    """What all commands say; none of them waits for ever."""
    told = []
    for words in (*LOOKS, ("logs", "ID/1"), ("logs", "--tail=3", "ID"), ("report", "--since=1d")):
        given = [word.replace("ID", job_id) for word in words]
        ended = reader.run(["csub", *given, *more], check=False, timeout_s=60)
        assert "Traceback" not in ended.stderr, words
        told.append(ended.stdout + ended.stderr)
    return "".join(told)


@pytest.mark.smoke
def test_root_is_led_nowhere_by_links_in_the_place_of_outputs(
    helped: CsubUser, root: CsubUser, secret: Path
) -> None:
    job_id = start_pack(helped)
    output = helped.home / f"slurm-{job_id}_1.out"
    put_in_place(helped, output, secret)
    by_name = ("--user", helped.name)
    for way in (by_name, ()):
        root.extra = {"XDG_STATE_HOME": "" if way else f"{helped.home}/.local/state"}
        assert SECRET not in look_everywhere(root, job_id, *way), way
    root.extra = {"XDG_STATE_HOME": ""}
    ended = root.run(["csub", "logs", f"{job_id}/1", *by_name], check=False)
    assert (ended.returncode, ended.stdout) == (6, "")
    assert ended.stderr == f"csub: error: cannot read the output {output}: Permission denied\n"
    # The others' outputs are shown.
    ended = root.run(["csub", "logs", job_id, *by_name], check=False)
    assert (ended.returncode, ended.stdout.count("begun")) == (6, 1)
    assert ended.stderr.startswith(f"csub: error: {job_id}/1: cannot read the output ")
    # What the user may read and does not own is not shown either: it may be the reader's.
    (root.home / "public").write_text(f"{SECRET}\n")
    root.home.chmod(0o755)
    put_in_place(helped, output, root.home / "public")
    ended = root.run(["csub", "logs", f"{job_id}/1", *by_name], check=False)
    assert (ended.returncode, ended.stdout) == (6, "")
    assert ended.stderr.endswith(f": it belongs to root, not to {helped.name}\n")
    # A link to a file of the same user's is one's good right.
    (helped.home / "elsewhere").write_text("found\n")
    os.chown(helped.home / "elsewhere", helped.uid, helped.gid)
    put_in_place(helped, output, "elsewhere")
    assert root.run(["csub", "logs", f"{job_id}/1", *by_name]).stdout == "found\n"
    put_in_place(helped, output, "")
    ended = root.run(["csub", "logs", f"{job_id}/1", *by_name], check=False, timeout_s=60)
    assert ended.stderr.endswith(f"{output}: it is a named pipe, no file\n")


def test_root_is_led_nowhere_by_links_in_a_state(
    helped: CsubUser, root: CsubUser, secret: Path
) -> None:
    job_id = start_pack(helped)
    state = helped.home / ".local/state/slurm_colloc"
    settings = helped.home / ".config/slurm_colloc/settings.toml"
    for target in (secret, ""):
        for pattern in LINKED:
            path = next(state.glob(pattern), None)
            assert path is not None, pattern
            kept = path.read_bytes()
            put_in_place(helped, path, target)
            for words in (("show", job_id), ("report", job_id), ("show", f"{job_id}/2")):
                ended = root.run(["csub", *words, "--user", helped.name], check=False, timeout_s=60)
                assert SECRET not in ended.stdout + ended.stderr, (pattern, words)
                assert "Traceback" not in ended.stderr, (pattern, words)
            root.extra = {"XDG_STATE_HOME": f"{helped.home}/.local/state"}
            told = root.run(["csub", "show", job_id], check=False, timeout_s=60)
            assert SECRET not in told.stdout + told.stderr, pattern
            root.extra = {"XDG_STATE_HOME": ""}
            path.unlink()
            path.write_bytes(kept)
            os.chown(path, helped.uid, helped.gid)
        put_in_place(helped, settings, target)
        ended = root.run(["csub", "queue", "--user", helped.name], timeout_s=60)
        assert SECRET not in ended.stderr
        assert ended.stdout.count("RUNNING") == 2


def test_a_page_of_another_users_submission_is_a_file_of_roots(
    helped: CsubUser, root: CsubUser
) -> None:
    job_id = start_pack(helped)
    helped.script("go", "")
    helped.finish(job_id)
    for file, words in (
        ("page.html", [job_id, "page.html", "--html"]),
        ("members.parquet", [job_id, "--parquet", "members.parquet"]),
    ):
        root.run(["csub", "report", *words, "--user", helped.name])
        assert (root.home / file).stat().st_uid == 0


def test_another_user_is_told_how_a_sandbox_is_and_whose(helped: CsubUser, root: CsubUser) -> None:
    where = f"--dir={helped.sandbox.directory}"
    told = helped.run(["csub", "sandbox", "status", where]).stdout
    assert "state    up; it is root's\n" in told
    assert "does not run" not in told
    own = root.run(["csub", "sandbox", "status", where]).stdout
    assert "state    up\n" in own
    assert told.replace("up; it is root's", "up") == own


def test_rights_are_those_of_the_owner_and_of_the_owners_groups(
    helped: CsubUser, root: CsubUser
) -> None:
    program = (
        "import json, os\n"
        "from slurm_colloc import ownership\n"
        "before = os.geteuid(), os.getegid(), os.getgroups()\n"
        f"ownership.take_rights_of({helped.uid})\n"
        "taken = os.geteuid(), os.getegid(), sorted(os.getgroups()), ownership.find_caller()\n"
        "with ownership.with_own_rights():\n"
        "    assert (os.geteuid(), os.getegid(), os.getgroups()) == before\n"
        "assert os.geteuid() != 0\n"
        "ownership.give_rights_back()\n"
        "print(json.dumps([before == (os.geteuid(), os.getegid(), os.getgroups()), taken]))\n"
    )
    is_back, taken = json.loads(root.run([sys.executable, "-c", program]).stdout)
    groups = sorted(set(os.getgrouplist(helped.name, helped.gid)))
    assert is_back
    assert taken == [helped.uid, helped.gid, groups, 0]


REFUSED = (
    ("cancel", "ID"),
    ("cancel", "ID/1", "--yes"),
    ("hold", "ID"),
    ("release", "ID"),
    ("requeue", "ID"),
    ("shell", "ID/1", "--", "true"),
    ("clean",),
    ("profile", "forget", "--all"),
    ("profile", "import", "none.json"),
    ("submit", "go.sh"),
    ("pack", "go.sh", "go.sh"),
    ("probe", "go.sh"),
    ("--local", "go.sh"),
)


@pytest.mark.smoke
def test_what_changes_something_is_refused_in_one_sentence(
    helped: CsubUser, root: CsubUser
) -> None:
    job_id = start_pack(helped)
    (root.home / "go.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n")
    (root.home / "none.json").write_text("[]")
    root.extra["XDG_STATE_HOME"] = f"{helped.home}/.local/state"
    before = take_picture(helped)
    for words in REFUSED:
        _, told, status = look(root, words, job_id)
        assert told == (
            f"csub: error: the state directory {helped.home}/.local/state/slurm_colloc belongs to "
            f"{helped.name}, you are root: you can read it, and only {helped.name} can change it; "
            "for jobs of your own, set state_dir in the settings, or XDG_STATE_HOME, to a "
            "directory of yours\n"
        ), words
        assert status == 6
        assert take_picture(helped) == before, words
    assert helped.csub("queue").stdout.count("RUNNING") == 2
    told = look(root, ("cancel", "ID", "--user", helped.name), job_id)[1]
    assert "No such option: --user" in told, "such a command takes no other user"


def test_planning_and_looking_elsewhere_write_nothing_either(
    helped: CsubUser, root: CsubUser
) -> None:
    (root.home / "go.sh").write_text("#!/bin/sh\n#SBATCH --gres=gpu:1\n")
    for state in (f"{helped.home}/.local/state", f"{helped.home}/nowhere"):
        root.extra["XDG_STATE_HOME"] = state
        before = take_picture(helped)
        for words in (
            ("plan", "go.sh"),
            ("check", "go.sh"),
            ("--test-only", "--gres=gpu:1", "go.sh"),
            ("profile", "list"),
            ("clean", "--dry-run"),
            ("queue",),
            ("doctor", "--no-job"),
        ):
            look(root, words, "1")
            assert take_picture(helped) == before, words
        told, _, status = look(root, ("go.sh",), "1")
        assert (told, status) == ("", 6)
        assert take_picture(helped) == before


def test_packs_that_cannot_be_read_are_counted_and_the_others_shown(
    helped: CsubUser, root: CsubUser, other_user: CsubUser
) -> None:
    ended = other_user.run(["csub", "queue", "--user", helped.name], check=False)
    assert (ended.returncode, ended.stdout) == (6, "")
    assert ended.stderr == (
        f"csub: error: cannot read the state directory of {helped.name}, "
        f"{helped.home}/.local/state/slurm_colloc: Permission denied: "
        f"root and {helped.name} can\n"
    )
    shown, *hidden = [start_pack(helped) for _ in range(3)]
    subprocess.run(["chmod", "-R", "o+rX", helped.home], check=True)
    for job_id in hidden:
        entry = json.loads(helped.index(job_id).read_bytes())
        (helped.state / "packs" / f"{entry['submission']}.0").chmod(0o700)
    before = take_picture(helped)
    ended = other_user.run(["csub", "queue", "--user", helped.name], check=False)
    assert [line.split()[0] for line in ended.stdout.splitlines()] == [
        "MEMBER",
        f"{shown}/1",
        f"{shown}/2",
    ]
    assert ended.stderr.startswith(f"csub: error: 2 packs of {helped.name} cannot be read: cannot ")
    assert ended.stderr.count("Permission denied") == 2
    assert ended.stderr.count("\n") == 1
    assert ended.returncode == 6
    named = other_user.run(["csub", "show", "--user", helped.name, hidden[0]], check=False)
    assert (named.returncode, named.stdout) == (6, "")
    assert "Permission denied" in named.stderr
    assert take_picture(helped) == before
    # Root can read all of them; one is damaged.
    entry = json.loads(helped.index(hidden[0]).read_bytes())
    record = helped.state / "packs" / f"{entry['submission']}.0" / "pack.json"
    whole = record.read_bytes()
    record.write_bytes(b"{")
    told = root.run(["csub", "queue", "-u", helped.name], check=False)
    assert told.stdout.count("RUNNING") == 4
    assert told.stderr.startswith(f"csub: error: 1 pack of {helped.name} cannot be read: ")
    assert told.returncode == 6
    record.write_bytes(whole)


def test_a_user_that_is_not_there_and_one_without_packs(helped: CsubUser, root: CsubUser) -> None:
    for name in ("no-such-user", "4294967290", "a,b", "", "x\x1b[31m\n"):
        ended = root.run(["csub", "queue", f"--user={name}"], check=False)
        if name:
            assert ended.returncode == 2, name
            assert ended.stderr.startswith("csub: error: there is no user '")
            assert ended.stderr.count("\n") == 1
            assert "\x1b" not in ended.stderr
    ended = root.run(["csub", "queue", "--user", helped.name])
    assert ended.stdout.split()[0] == "MEMBER"
    assert ended.stderr.startswith(f"csub: {helped.name} has no packs in {helped.home}/.local/")
    assert not (helped.home / ".local/state/slurm_colloc").exists()
    assert root.run(["csub", "queue", "--user", "root"]).stderr == ""


@pytest.mark.parametrize("by", ["site", "user"])
def test_the_settings_say_where_a_users_state_lies(
    helped: CsubUser, root: CsubUser, by: str
) -> None:
    place = f'state_dir = "{helped.home}/$USER/of-csub"\n'
    if by == "site":
        settings = helped.home / "site.toml"
        settings.write_text(f"{place}monitor = false\n")
        helped.extra["SLURM_COLLOC_SETTINGS"] = root.extra["SLURM_COLLOC_SETTINGS"] = str(settings)
    else:
        with (helped.home / ".config/slurm_colloc/settings.toml").open("a") as file:
            file.write(place)
    job_id = start_pack(helped)
    seen = look(helped, ("queue",), job_id)
    before = take_picture(helped)
    assert look(root, ("queue",), job_id, "--user", helped.name) == seen
    assert "RUNNING" in seen[0]
    assert take_picture(helped) == before
    assert (helped.home / helped.name / "of-csub" / "packs").is_dir()


def test_what_slurm_hides_is_no_reason_to_call_a_member_lost(
    helped: CsubUser, other_user: CsubUser
) -> None:
    job_id = start_pack(helped)
    subprocess.run(["chmod", "-R", "o+rX", helped.home], check=True)
    # As with PrivateData=jobs; the sandbox is shared, so its commands say so to this user alone.
    folder = other_user.home / "bin"
    folder.mkdir()
    for name, body in (("squeue", "exit 0"), ("scontrol", "echo 'PrivateData = jobs,usage'")):
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    other_user.extra["PATH"] = f"{folder}:{other_user.environment['PATH']}"
    subprocess.run(["chmod", "-R", "o+rX", other_user.home], check=True)
    subprocess.run(["chown", "-R", str(other_user.uid), other_user.home], check=True)
    ended = other_user.run(["csub", "queue", "--user", helped.name], check=False)
    assert ended.stdout.count("RUNNING") == 2
    assert "states are as the packs last wrote them: Slurm hides the jobs" in ended.stderr
    assert ended.returncode == 4
    assert helped.members(job_id)[1]["state"] == "RUNNING"


def test_the_end_that_a_sweep_writes_down_is_when_slurm_ended_the_job(helped: CsubUser) -> None:
    helped.script("go.sh", GO)
    job_id = helped.submit(*PACK, "--begin=now+1hour", "go.sh", "go.sh")
    helped.run(["scancel", job_id])
    cancelled_by = time.time() + 1
    wait_until(lambda: time.time() > cancelled_by + 2, "some time has passed")
    rows = json.loads(helped.csub("history", "--json").stdout)
    assert [row["state"] for row in rows] == ["CANCELLED"] * 2
    assert all(row["ended_by"] <= cancelled_by for row in rows)


def test_root_reads_no_state_of_another_user_from_python(helped: CsubUser, root: CsubUser) -> None:
    job_id = start_pack(helped)
    program = (
        "import sys, slurm_colloc\n"
        "try:\n"
        "    print(slurm_colloc.Job(sys.argv[1]).state)\n"
        "except slurm_colloc.errors.StateError as problem:\n"
        "    print(problem)\n"
    )
    state = helped.home / ".local/state"
    argv = [sys.executable, "-c", program, f"{job_id}/3"]
    assert helped.run(argv).stdout == "FAILED\n"
    told = root.run(argv, environment={"XDG_STATE_HOME": str(state)}).stdout
    assert told.startswith("root reads no state of another user from Python, and ")
    assert f"belongs to {helped.name}: csub show --user {helped.name}" in told
    (helped.home / "go").touch()
    helped.finish(job_id)
