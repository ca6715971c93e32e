"""What in a script would collide is said as it is submitted; what loses work keeps it alone."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ..bed import CsubUser

TWO = ("--array=1-2", "--gres=gpu:1", "--time=5", "--hold")
LOCK = "exec 9>/tmp/x_$USER.lock; flock -n 9 || exit 0"
SAID = "csub: lock.sh:3: flock -n 9: members run on one node, and only the first gets the lock"
LIST_MODULES = (
    "import sys\nfrom slurm_colloc.__main__ import run\nrun(sys.argv[1:])\n"
    "print('tree_sitter' in sys.modules, 'ast' in sys.modules)\n"
)


def kept(user: CsubUser) -> Path:
    return user.state / "waits" / "checked.json"


def list_partners(user: CsubUser, job_id: str) -> list[str]:
    why = user.csub("why", job_id).stdout
    user.csub("cancel", job_id, "--yes")
    return [line for line in why.splitlines() if "it runs alone" in line]


def set_up(user: CsubUser, text: str) -> None:
    path = user.home / ".config/slurm_colloc/settings.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_what_loses_work_is_said_and_keeps_each_job_alone(user: CsubUser) -> None:
    user.script("lock.sh", LOCK)
    ended = user.csub("--parsable", *TWO, "lock.sh")
    assert ended.stderr.startswith(SAID)
    assert ended.stderr.endswith("; it runs alone, --accept=tmp-lock shares all the same\n")
    assert ended.stderr.count("\n") == 1
    job_id = ended.stdout.strip()
    (alone,) = list_partners(user, job_id)
    assert f"it runs alone: {SAID.removeprefix('csub: ')}" in alone
    assert alone.startswith(f"{job_id}/1-2 ")


def test_what_only_collides_is_said_and_shared_and_why_knows_it_later(user: CsubUser) -> None:
    user.script("port.sh", "export MASTER_PORT=29500")
    ended = user.csub("--parsable", *TWO, "port.sh")
    assert ended.stderr.startswith("csub: port.sh:3: MASTER_PORT=29500: all members would open")
    assert ended.stderr.endswith(" (fixed-port)\n")
    job_id = ended.stdout.strip()
    (told,) = user.csub("why", job_id).stdout.splitlines()
    assert ended.stderr.removeprefix("csub: ").strip() in told
    assert not list_partners(user, job_id)


@pytest.mark.parametrize("way", ["option", "all", "directive", "setting", "several"])
def test_a_finding_is_accepted(user: CsubUser, way: str) -> None:
    directive = "#CSUB --accept=tmp-lock" if way == "directive" else ""
    user.script("lock.sh", LOCK, directives=directive)
    if way == "setting":
        set_up(user, 'accept = ["tmp-lock"]\n')
    words = {"option": ["--accept=tmp-lock"], "all": ["--accept=all"],
             "several": ["--accept=fixed-port", "--accept=tmp-lock"]}.get(way, [])  # fmt: skip
    ended = user.csub("--parsable", *words, *TWO, "lock.sh")
    assert ended.stderr == ""
    assert not list_partners(user, ended.stdout.strip())
    checked = user.csub("check", *words, *TWO, "lock.sh")
    assert checked.stdout.startswith("lock.sh: nothing found that would collide")


def test_a_name_that_is_none_is_refused_with_those_that_are(user: CsubUser) -> None:
    user.script("ok.sh", "exit 0")
    refused = user.csub("--accept=lock", *TWO, "ok.sh", check=False)
    assert refused.returncode == 2
    assert "--accept: lock is not the name of a finding" in refused.stderr
    assert "tmp-lock" in refused.stderr
    set_up(user, 'accept = ["lock"]\n')
    assert "the setting accept: lock" in user.csub(*TWO, "ok.sh", check=False).stderr
    assert user.csub("config", "accept", "tmp-lock,fixed-port").returncode == 0
    assert user.csub(*TWO, "ok.sh").returncode == 0


def test_quiet_keeps_back_what_is_only_said(user: CsubUser) -> None:
    user.script("lock.sh", f"{LOCK}\nexport MASTER_PORT=29500")
    ended = user.csub("--quiet", *TWO, "lock.sh")
    assert ended.stdout == ""
    assert ended.stderr.startswith(SAID)
    assert ended.stderr.count("\n") == 1


def test_who_reads_both_streams_together_gets_the_id_alone(user: CsubUser) -> None:
    user.script("lock.sh", LOCK)
    words = " ".join(("csub --parsable", *TWO, "lock.sh"))
    assert user.run(["bash", "-c", f"{words} 2>&1"]).stdout.strip().isdigit()
    assert user.run(["bash", "-c", words]).stderr.startswith(SAID)


def test_a_job_that_shares_with_none_anyway_is_not_read(user: CsubUser) -> None:
    user.script("lock.sh", LOCK)
    one = ("--gres=gpu:1", "--time=5", "--hold")
    for words in (one, (*TWO, "--share=exclusive"), (*TWO, "--gres=gpu:0")):
        assert "tmp-lock" not in user.csub(*words, "lock.sh").stderr
    assert not kept(user).exists()
    for word in ("--join", "--open"):
        assert user.csub(*one, word, "lock.sh").stderr.startswith(SAID)
    assert kept(user).exists()


def test_a_job_that_is_kept_alone_joins_none_and_is_not_opened(user: CsubUser) -> None:
    user.script("go.sh", "while [ ! -e go ]; do sleep 0.1; done")
    user.script("lock.sh", f"{LOCK}\nwhile [ ! -e go ]; do sleep 0.1; done")
    one = ("--gres=gpu:1", "--time=5", "--mem=500M", "--json")
    first = json.loads(user.csub(*one, "--open=3", "go.sh").stdout)["submitted"][0]["job_id"]
    user.wait_for_states(first, "RUNNING")
    alone = json.loads(user.csub(*one, "--join", "--open=3", "lock.sh").stdout)
    (pack,) = alone["submitted"][0]["packs"]
    assert pack["slurm_job_id"] != first
    (why,) = user.csub("why", pack["slurm_job_id"]).stdout.splitlines()
    assert "it runs alone: lock.sh:3" in why
    accepted = json.loads(user.csub(*one, "--join", "--accept=tmp-lock", "lock.sh").stdout)
    assert accepted["joined"]["slurm_job_id"] == first
    user.run(["touch", "go"])
    user.csub("cancel", "all", "--yes")


def test_pack_sweep_batch_and_the_name_sbatch_say_it(user: CsubUser) -> None:
    user.script("lock.sh", LOCK)
    user.script("ok.sh", "exit 0")
    (user.home / "commands").write_text("true\nflock -n /tmp/x.lock python t.py\n")
    one = ("--gres=gpu:1", "--time=5", "--hold")
    ended = user.csub("pack", "--parsable", *one, "ok.sh", "lock.sh", "ok.sh")
    assert ended.stderr.startswith(SAID)
    (alone,) = list_partners(user, ended.stdout.strip())
    assert "/2 " in alone.split(":")[0] + " "
    assert user.csub("sweep", *one, "lock.sh", "--lr", "1,2,3").stderr.count(SAID) == 1
    assert "(tmp-lock)" in user.csub("batch", *one, "commands").stderr
    (user.home / "bin").mkdir()
    (user.home / "bin" / "sbatch").symlink_to(Path(sys.executable).with_name("csub"))
    sbatch = user.run([str(user.home / "bin" / "sbatch"), *TWO, "lock.sh"])
    assert sbatch.stderr.startswith(SAID)
    assert sbatch.stdout.startswith("Submitted batch job ")


def test_the_job_id_is_said_to_collide_only_where_it_is_the_packs(user: CsubUser) -> None:
    user.script("ckpt.sh", "mkdir -p ckpt/$SLURM_JOB_ID")
    assert user.csub("--parsable", *TWO, "ckpt.sh").stderr == ""
    assert "(job-id-path)" in user.csub("--job-id=pack", *TWO, "ckpt.sh").stderr
    set_up(user, 'job_id = "pack"\n')
    assert "(job-id-path)" in user.csub(*TWO, "ckpt.sh").stderr
    assert "(job-id-path" in user.csub("check", *TWO, "ckpt.sh", check=False).stdout
    own = user.csub("check", "--job-id=own", *TWO, "ckpt.sh")
    assert "job-id-path" not in own.stdout


def list_modules(user: CsubUser, *words: str) -> str:
    ended = user.run([sys.executable, "-c", LIST_MODULES, *TWO, *words])
    return ended.stdout.splitlines()[-1]


def test_what_was_read_before_loads_no_parser(user: CsubUser) -> None:
    user.script("port.sh", "export MASTER_PORT=29500\npython t.py")
    program = user.home / "t.py"
    program.write_text("print(1)\n")
    assert list_modules(user, "port.sh") == "True True"
    assert list_modules(user, "port.sh") == "False False"
    program.write_text('open("/tmp/x", "w")\n')
    assert list_modules(user, "port.sh") == "True True"
    assert list_modules(user, "port.sh") == "False False"
    assert "t.py:1: /tmp/x" in user.csub(*TWO, "port.sh").stderr
    user.script("port.sh", "python t.py")
    assert "MASTER_PORT" not in user.csub(*TWO, "port.sh").stderr
    # Where no word of a rule stands there is nothing to parse.
    program.write_text("print(1)\n")
    user.script("plain.sh", "python t.py")
    assert list_modules(user, "plain.sh") == "False False"
    program.unlink()
    assert user.csub("--parsable", *TWO, "plain.sh").stderr == ""


@pytest.mark.parametrize("text", ["{", '{"schema": 1}', '{"schema": 99}', "[]"])
def test_what_is_damaged_is_read_anew(user: CsubUser, text: str) -> None:
    user.script("lock.sh", LOCK)
    said = user.csub("--quiet", *TWO, "lock.sh").stderr
    whole = kept(user).read_text()
    kept(user).write_text(text)
    assert user.csub("--quiet", *TWO, "lock.sh").stderr == said
    assert json.loads(kept(user).read_text())["answer"] == json.loads(whole)["answer"]


def test_other_rules_read_all_anew_and_little_is_kept(user: CsubUser) -> None:
    user.script("lock.sh", LOCK)
    user.csub(*TWO, "lock.sh")
    value = json.loads(kept(user).read_text())
    (reading,) = value["answer"]["readings"]
    reading["findings"] = []
    kept(user).write_text(json.dumps(value))
    assert user.csub("--parsable", *TWO, "lock.sh").stderr == ""
    kept(user).write_text(json.dumps({**value, "about": "other rules"}))
    assert user.csub(*TWO, "lock.sh").stderr.startswith(SAID)
    many = [{**reading, "key": str(number)} for number in range(60)]
    kept(user).write_text(json.dumps({**value, "answer": {"readings": many}}))
    user.csub(*TWO, "lock.sh")
    left = json.loads(kept(user).read_text())["answer"]["readings"]
    assert len(left) == 40
    assert left[0]["key"] == "21"


@pytest.mark.parametrize("kind", ["pipe", "folder", "unreadable", "python 2", "gone"])
def test_a_program_that_cannot_be_read_holds_nothing_up(user: CsubUser, kind: str) -> None:
    user.script("port.sh", "export MASTER_PORT=29500\npython t.py\n./t.py < fifo")
    program = user.home / "t.py"
    os.mkfifo(user.home / "fifo")
    if kind == "pipe":
        os.mkfifo(program)
    elif kind == "folder":
        program.mkdir()
    elif kind != "gone":
        program.write_text("print 'python 2'\n")
        program.chmod(0 if kind == "unreadable" else 0o644)
    ended = user.run(["csub", "--parsable", *TWO, "port.sh"], timeout_s=60)
    assert ended.stdout.strip().isdigit()
    assert ended.stderr.count("\n") == 1
    assert user.run(["csub", "check", *TWO, "port.sh"], check=False, timeout_s=60).returncode == 1


def test_a_script_that_takes_too_long_to_read_is_submitted_with_one_note(user: CsubUser) -> None:
    user.script("deep.sh", "export MASTER_PORT=29500\necho " + "$(echo " * 3000 + ")" * 3000)
    ended = user.csub("--parsable", *TWO, "deep.sh")
    assert ended.stdout.strip().isdigit()
    assert ended.stderr == "csub: deep.sh: it is nested too deeply, and was not checked\n"
    assert user.csub("--quiet", *TWO, "deep.sh").stderr == ""
    assert "nested too deeply" in user.csub("check", *TWO, "deep.sh", check=False).stdout
    line = "export A=$(( 1 + $B )) MASTER_PORT=29500; [ -e $A ] && break\n"
    user.script("long.sh", line * 14_000)
    ended = user.run(["csub", "--parsable", *TWO, "long.sh"], timeout_s=100)
    assert ended.stdout.strip().isdigit()
    assert (
        ended.stderr == "csub: long.sh: reading it takes longer than 1 s, so it was not checked\n"
    )


def test_a_script_with_a_long_word_is_read_as_any_other(user: CsubUser) -> None:
    # As a file in base64 is, in one line.
    user.script("blob.sh", f"export MASTER_PORT=29500\nBLOB={'A' * 300_000}\npython t.py\n")
    ended = user.run(["csub", "--parsable", *TWO, "blob.sh"], timeout_s=60)
    assert ended.stdout.strip().isdigit()
    assert ended.stderr.startswith("csub: blob.sh:3: MASTER_PORT=29500")
    chain = ("--chain", "--gres=gpu:1", "--time=5", "--hold")
    told = user.run(["csub", *chain, "blob.sh"], check=False, timeout_s=60)
    assert (told.returncode, "blob.sh: nothing shows that it saves" in told.stderr) == (2, True)


def test_scripts_that_are_too_many_to_check_are_counted(user: CsubUser) -> None:
    names = [f"s{number}.sh" for number in range(22)]
    for name in names:
        user.script(name, f"echo {name}")
    ended = user.csub("pack", "--parsable", "--gres=gpu:1", "--time=5", "--hold", *names)
    assert "csub: not checked: 2 scripts; csub check SCRIPT does it\n" in ended.stderr
    quiet = user.csub("pack", "--quiet", "--gres=gpu:1", "--time=5", "--hold", *names)
    assert "not checked" not in quiet.stderr
