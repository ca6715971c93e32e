"""Settings and where they come from: `csub config` on real files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slurm_colloc.errors import UsageProblem
from slurm_colloc.model.setting_values import RunnerSettings
from slurm_colloc.settings import (
    Caps,
    Settings,
    load_node_settings,
    load_settings,
    parse_settings,
)

from ..calls import UserWithoutSlurm

SHIPPED = Path(__file__).resolve().parents[2] / "site-config" / "settings.toml"


class UserOfSite(UserWithoutSlurm):
    """Somebody at a site with a settings file."""

    def __init__(self, root: Path) -> None:
        self.site = root / "site.toml"
        self.site.write_text("")
        super().__init__(root, SLURM_COLLOC_SETTINGS=str(self.site))
        self.own = self.home / ".config" / "slurm_colloc" / "settings.toml"

    def rows(self) -> dict[str, dict[str, object]]:
        rows = json.loads(self.csub("config", "--json").stdout)
        return {row["name"]: row for row in rows}


@pytest.fixture
def person(tmp_path: Path) -> UserOfSite:
    return UserOfSite(tmp_path)


def test_every_setting_is_shown_with_its_source(person: UserOfSite) -> None:
    person.site.write_text('degree = 3\nkill_wait_s = 9\n[gpu_memory]\na100 = "40G"\n')
    assert person.csub("config", "degree", "2").returncode == 0
    assert person.csub("config", "gpu_memory.any", "80G").returncode == 0
    rows = person.rows()
    sources = {name: (row["value"], row["source"]) for name, row in rows.items()}
    assert sources["degree"] == (2, "user")
    assert sources["kill_wait_s"] == (9, "site")
    assert sources["launcher"] == ("auto", "built-in")
    assert sources["gpu_memory.a100"] == ("40G", "site")
    assert sources["gpu_memory.any"] == ("80G", "user")
    assert rows["degree"]["file"] == str(person.own)
    table = person.csub("config").stdout
    for name in (*Settings.__dataclass_fields__.keys() - {"gpu_memory", "caps"}, "caps.join"):
        assert f"\n{name} " in table
    assert person.csub("config", "degree").stdout == "2\n"
    assert person.csub("config", "gpu_memory").stdout.splitlines() == [
        "gpu_memory.a100 = 40G", "gpu_memory.any = 80G",
    ]  # fmt: skip
    settings = load_settings(person.environment)
    assert (settings.degree, dict(settings.gpu_memory)) == (2, {"a100": "40G", "any": "80G"})


def test_comments_and_order_survive_a_change(person: UserOfSite) -> None:
    person.own.parent.mkdir(parents=True)
    person.own.write_text(
        '# mine\nlauncher = "srun"  # steps\n\n# how many\ndegree = 2\n\n'
        '[gpu_memory]\n# ours\nany = "80G"\n'
    )
    person.own.chmod(0o640)
    for name, value in (("degree", "6"), ("join", "never"), ("gpu_memory.any", "40G")):
        told = person.csub("config", name, value)
        assert told.returncode == 0, told.stderr
        assert str(person.own) in told.stderr
    text = person.own.read_text()
    for line in ("# mine", 'launcher = "srun"  # steps', "# how many", "degree = 6", "# ours"):
        assert line in text.splitlines()
    settings = load_settings(person.environment)
    assert (settings.degree, settings.join, settings.launcher) == (6, "never", "srun")
    assert settings.gpu_memory == {"any": "40G"}
    assert person.own.stat().st_mode & 0o777 == 0o640
    assert person.csub("config", "--unset", "degree").returncode == 0
    assert person.csub("config", "--unset", "gpu_memory.any").returncode == 0
    assert load_settings(person.environment).degree == Settings().degree
    assert load_settings(person.environment).gpu_memory == {}
    again = person.csub("config", "--unset", "degree")
    assert again.returncode == 2
    assert "does not set degree" in again.stderr


def test_a_link_to_the_settings_stays_a_link(person: UserOfSite) -> None:
    target = person.home / "dotfiles.toml"
    target.write_text("degree = 2\n")
    person.own.parent.mkdir(parents=True)
    person.own.symlink_to(target)
    assert person.csub("config", "degree", "5").returncode == 0
    assert person.own.is_symlink()
    assert target.read_text() == "degree = 5\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("degre",), "there is no setting 'degre': did you mean 'degree'?"),
        (("degre", "3"), "did you mean 'degree'?"),
        (("degree", "many"), "degree = many: it must be a whole number"),
        (("degree", "0"), "degree = 0 must be from 1 to 10000"),
        (("slowdown_bound", "0.5"), "slowdown_bound = 0.5 must be from 1 to 100"),
        (("monitor", "perhaps"), "it must be true or false"),
        (("state_shared", "false"), "the setting 'state_shared' was removed: set state_dir to"),
        (("join", "sometimes"), "join = 'sometimes' must be auto, pending, never or always"),
        (("slurm_access", "rest"), "must be auto, commands or pyslurm"),
        (("launcher", "ssh"), "must be auto, srun or process"),
        (("gpu_memory", "80G"), "gpu_memory is a table"),
        (("gpu_memory.any", "80"), "gpu_memory.any: '80' is not a GPU memory size"),
        (("caps.join", "auto"), "only the site can set caps.join"),
        (("degree", "3", "--unset", "join"), "--unset takes no other arguments"),
    ],
)
def test_a_wrong_value_changes_nothing(
    person: UserOfSite, arguments: tuple[str, ...], words: str
) -> None:
    assert person.csub("config", "kill_wait_s", "7").returncode == 0
    before = person.own.read_text()
    told = person.csub("config", *arguments)
    assert told.returncode == 2
    assert words in told.stderr
    assert "Traceback" not in told.stderr
    assert person.own.read_text() == before


def test_caps_hold_for_everybody_and_name_their_file(person: UserOfSite) -> None:
    person.site.write_text(
        'pack_size = 9\n[caps]\nmembers_per_pack = 3\npack_time = "1-0"\njoin = "pending"\n'
    )
    settings = load_settings(person.environment)
    assert (settings.degree, settings.pack_size, settings.join) == (3, 3, "pending")
    assert settings.caps == Caps(3, "1-0", "pending")
    assert settings.caps.pack_time_s == 86400
    rows = person.rows()
    assert (rows["degree"]["source"], rows["degree"]["wanted"]) == ("cap", 4)
    assert (rows["join"]["source"], rows["join"]["value"]) == ("cap", "pending")
    assert f"cap in {person.site} (instead of 9)" in person.csub("config").stdout
    for name, value in (("degree", "4"), ("pack_size", "8"), ("join", "auto")):
        told = person.csub("config", name, value)
        assert told.returncode == 2
        assert f"{name} = {value} is more than the site allows" in told.stderr
        assert f"[caps] in {person.site} says so" in told.stderr
    assert not person.own.exists()
    for name, value in (("degree", "2"), ("join", "never")):
        assert person.csub("config", name, value).returncode == 0
    assert load_settings(person.environment).join == "never"
    # What was written by hand, or before the cap came, counts as the cap.
    person.own.write_text('degree = 8\njoin = "auto"\n')
    settings = load_settings(person.environment)
    assert (settings.degree, settings.join) == (3, "pending")


def test_a_user_has_no_caps_to_set(person: UserOfSite) -> None:
    person.own.parent.mkdir(parents=True)
    person.own.write_text("[caps]\nmembers_per_pack = 100\n")
    told = person.csub("queue")
    assert told.returncode == 2
    assert f"{person.own}: [caps] has no meaning here" in told.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[caps]\nmembers = 3", "there is no setting 'caps.members'"),
        ("[caps]\nmembers_per_pack = -1", "caps.members_per_pack = -1 must be from 0 to 100000"),
        ("[caps]\nmembers_per_pack = true", "should be of the kind of 0"),
        ('[caps]\npack_time = "long"', "caps.pack_time: 'long' is not a time limit"),
        ('[caps]\njoin = "no"', "caps.join = 'no' must be auto, pending or never"),
        ("caps = 3", "caps = 3 should be of the kind of"),
        ("degree = [", "is not TOML"),
    ],
)
def test_a_wrong_site_file_is_told_with_its_name(text: str, words: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_settings("/etc/site.toml", text.encode(), is_site=True)
    assert str(caught.value).startswith("/etc/site.toml")
    assert words in str(caught.value)


def test_the_shipped_file_lists_every_setting_with_its_built_in_value() -> None:
    values = parse_settings(str(SHIPPED), SHIPPED.read_bytes(), is_site=True)
    built_in = Settings()
    assert set(values) == set(Settings.__dataclass_fields__)
    assert set(values["caps"]) == set(Caps.__dataclass_fields__)
    assert Caps(**values["caps"]) == built_in.caps
    assert {name: value for name, value in values.items() if name != "caps"} == {
        name: getattr(built_in, name) for name in values if name != "caps"
    }


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("slowdown_bound = inf", "slowdown_bound = inf must be from 1 to 100"),
        ("slowdown_bound = nan", "slowdown_bound = nan must be from 1 to 100"),
        ("slowdown_bound = -inf", "slowdown_bound = -inf must be from 1 to 100"),
        ("monitor_interval_s = nan", "monitor_interval_s = nan must be from 0.5 to 60"),
        ("monitor_interval_s = inf", "monitor_interval_s = inf must be from 0.5 to 60"),
        (f"degree = {10**18}", f"degree = {10**18} must be from 1 to 10000"),
        (f"start_margin_s = {10**18}", f"start_margin_s = {10**18} must be from 0 to 86400"),
        (f"kill_wait_s = {10**18}", f"kill_wait_s = {10**18} must be from 0 to 65533"),
        ("activity_source = 'nvml'", "activity_source = 'nvml' must be gpm or dcgm"),
    ],
)
def test_a_value_that_cannot_be_is_refused_where_it_is_read(
    person: UserOfSite, line: str, sentence: str
) -> None:
    person.own.parent.mkdir(parents=True)
    person.own.write_text(f"{line}\n")
    ended = person.csub("queue")
    assert (ended.returncode, ended.stderr) == (2, f"csub: error: {person.own}: {sentence}\n")


def test_a_setting_that_was_removed_is_ignored_with_one_warning(person: UserOfSite) -> None:
    person.own.parent.mkdir(parents=True)
    person.own.write_text("state_shared = false\ndegree = 2\n")
    told = (
        f"{person.own}: the setting 'state_shared' was removed and is ignored: "
        "set state_dir to a path that login and compute nodes share"
    )
    for command in (("queue",), ("config", "degree"), ("config", "degree", "2")):
        ended = person.csub(*command)
        assert ended.returncode == 0
        assert ended.stderr.startswith(f"csub: {told}\n")
        assert ended.stderr.count("state_shared") == 1
    settings, problems = load_node_settings(person.environment, None)
    assert (settings.degree, problems) == (2, (told,))
    assert person.csub("config", "--unset", "state_shared").returncode == 0
    assert person.csub("queue").stderr == ""


@pytest.mark.parametrize("word", ["inf", "nan"])
def test_csub_config_writes_no_number_that_is_none(person: UserOfSite, word: str) -> None:
    ended = person.csub("config", "slowdown_bound", word)
    assert ended.returncode == 2
    assert f"slowdown_bound = {word} must be from 1 to 100" in ended.stderr
    assert not person.own.exists()


def test_on_a_node_what_cannot_be_used_is_a_warning_and_the_rest_counts(person: UserOfSite) -> None:
    person.own.parent.mkdir(parents=True)
    person.site.write_text('kill_wait_s = 9\nlauncher = "of_tomorrow"\n[caps]\njoin = "never"\n')
    person.own.write_text('degre = 3\ndegree = 2\npause = "no"\nslowdown_bound = nan\n')
    own = RunnerSettings(kill_wait_s=5, pause=False)
    settings, problems = load_node_settings(person.environment, None)
    assert (settings.degree, settings.kill_wait_s, settings.join) == (2, 9, "never")
    assert (settings.launcher, settings.pause, settings.slowdown_bound) == ("auto", True, 1.5)
    assert [problem.partition(": ")[2].split()[-1 if "degre'" in problem else 0] for problem in
            problems] == ["launcher", "'degree'?", "pause", "slowdown_bound"]  # fmt: skip
    settings, again = load_node_settings(person.environment, own)
    assert (settings.for_runner, again) == (own, problems)


@pytest.mark.parametrize("text", ["degree = ", "\x00", '"'])
def test_on_a_node_a_file_that_is_no_toml_is_a_warning(person: UserOfSite, text: str) -> None:
    person.own.parent.mkdir(parents=True)
    person.own.write_text(text)
    settings, problems = load_node_settings(person.environment, None)
    assert settings == Settings()
    assert len(problems) == 1
    assert problems[0].startswith(f"{person.own} is not TOML")


def test_on_a_node_the_sites_file_may_be_missing(person: UserOfSite) -> None:
    person.site.unlink()
    settings, problems = load_node_settings(person.environment, RunnerSettings(monitor=False))
    assert not settings.monitor
    assert problems == (f"cannot read the settings {person.site}: No such file or directory",)
