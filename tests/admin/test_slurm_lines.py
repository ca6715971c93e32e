from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.administration.slurm_conf import (
    ControllerPlan,
    LineChange,
    Places,
    change_text,
    find_obstacles,
    find_places,
    plan_controller,
    plan_removal,
    read_conf_values,
    read_values,
    restore_text,
)
from slurm_colloc.errors import UsageProblem

PLACES = Places()
OLD = {
    "SLURM_VERSION": "22.05.8",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SlurmdUser": "root(0)",
    "Prolog": "(null)",
    "Epilog": "(null)",
    "PrologFlags": "Alloc,Contain",
    "PrologEpilogTimeout": "65534",
    "SchedulerParameters": "nohold_on_prolog_fail",
    "GresTypes": "gpu",
}
NEW = {**OLD, "SLURM_VERSION": "24.11.5"}


def wanted(plan: ControllerPlan) -> dict[str, tuple[str, ...]]:
    return {change.name: change.after for change in plan.changes}


def test_a_site_without_hooks_gets_two_scripts_and_a_time_limit() -> None:
    plan = plan_controller(OLD, PLACES)
    assert wanted(plan) == {
        "Prolog": ("/etc/slurm_colloc/hooks/prolog.sh",),
        "Epilog": ("/etc/slurm_colloc/hooks/epilog.sh",),
        "PrologEpilogTimeout": ("60",),
    }
    assert (plan.problems, plan.notes) == ((), ())


def test_a_directory_of_hooks_takes_ours_last_and_first_and_no_line_changes() -> None:
    config = {**OLD, "Prolog": "/etc/slurm/prolog.d/*", "Epilog": "/etc/slurm/epilog.d/*.sh"}
    plan = plan_controller(config, PLACES)
    assert wanted(plan) == {}
    prolog, epilog = plan.hooks
    assert prolog.path == "/etc/slurm/prolog.d/00-slurm_colloc.sh"
    assert epilog.path == "/etc/slurm/epilog.d/zz-slurm_colloc.sh"


def test_a_pattern_for_numbers_takes_a_name_with_a_number() -> None:
    plan = plan_controller({**OLD, "Epilog": "/etc/slurm/epilog.d/[0-9]*"}, PLACES)
    assert plan.hooks[1].path == "/etc/slurm/epilog.d/99-slurm_colloc.sh"


def test_one_script_of_an_old_slurm_moves_behind_a_link() -> None:
    plan = plan_controller({**OLD, "Prolog": "/etc/slurm/prolog.sh"}, PLACES)
    assert wanted(plan)["Prolog"] == ("/etc/slurm_colloc/hooks/prolog.d/*",)
    hook = plan.hooks[0]
    assert hook.path == "/etc/slurm_colloc/hooks/prolog.d/00-slurm_colloc.sh"
    assert hook.site_link == "/etc/slurm_colloc/hooks/prolog.d/50-site"
    assert hook.site_script == "/etc/slurm/prolog.sh"
    # How long the site's own script may take is not ours to say.
    assert "PrologEpilogTimeout" not in wanted(plan)
    assert any("PrologEpilogTimeout" in note for note in plan.notes)


def test_one_script_of_a_new_slurm_gets_a_second_line() -> None:
    config = {key: value for key, value in NEW.items() if key not in ("Prolog", "Epilog")}
    config |= {"Prolog[0]": "/etc/slurm/prolog.sh", "Epilog[0]": "/etc/slurm/epilog.sh"}
    plan = plan_controller(config, PLACES)
    assert wanted(plan) == {
        "Prolog": ("/etc/slurm/prolog.sh", "/etc/slurm_colloc/hooks/prolog.sh"),
        "Epilog": ("/etc/slurm_colloc/hooks/epilog.sh", "/etc/slurm/epilog.sh"),
    }


def test_many_numbered_values_keep_their_order() -> None:
    config = {f"Prolog[{number}]": f"/p{number}" for number in (10, 2, 0)}
    assert read_values(config, "Prolog") == ("/p0", "/p2", "/p10")


@pytest.mark.parametrize("config", [OLD, NEW, {**OLD, "Prolog": "/etc/slurm/prolog.sh"}])
def test_a_cluster_that_has_the_lines_needs_none(config: dict[str, str]) -> None:
    plan = plan_controller(config, PLACES)
    after = {**config, **{name: values[0] for name, values in wanted(plan).items()}}
    assert plan_controller(after, PLACES).changes == ()


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("SlurmdUser", "slurm(64030)", "SlurmdUser=slurm"),
        ("Prolog", "prolog.sh", "relative path"),
        ("Prolog", "/etc/slurm/prolog.d/*.py", "widen the pattern"),
    ],
)
def test_what_has_no_way_is_a_problem(setting: str, value: str, words: str) -> None:
    assert words in " ".join(plan_controller({**OLD, setting: value}, PLACES).problems)


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("GresTypes", "gpu,mps", "GresTypes has mps"),
        ("PrologFlags", "Alloc,NoHold", "NoHold"),
        ("PrologFlags", "Alloc,RunInJob", "RunInJob"),
        ("PrologEpilogTimeout", "15", "ends a prolog after 15 s"),
        ("SchedulerParameters", "(null)", "nohold_on_prolog_fail"),
    ],
)
def test_what_is_good_to_know_is_a_note(setting: str, value: str, words: str) -> None:
    assert words in " ".join(plan_controller({**OLD, setting: value}, PLACES).notes)


@pytest.mark.parametrize(("flags", "after"), [("(null)", "Alloc"), ("Serial", "Serial,Alloc")])
def test_a_prolog_at_allocation_is_asked_for(flags: str, after: str) -> None:
    plan = plan_controller({**OLD, "PrologFlags": flags}, PLACES)
    assert wanted(plan)["PrologFlags"] == (after,)


def test_configless_is_seen() -> None:
    config = {**OLD, "SlurmctldParameters": "idle_on_node_suspend,enable_configless"}
    plan = plan_controller(config, PLACES)
    assert plan.is_configless
    assert "each node needs them in its own file system" in " ".join(plan.notes)
    assert not plan_controller(OLD, PLACES).is_configless


CONF = """\
ClusterName=c
# Prolog=/not/this/one
prolog = "/etc/slurm/prolog.sh"  # ours since 2019
NodeName=n1 Gres=gpu:2
"""


def test_a_changed_file_has_the_new_lines_and_keeps_the_old_as_comments() -> None:
    config = {**OLD, "Prolog": "/etc/slurm/prolog.sh"}
    text = change_text(CONF, plan_controller(config, PLACES).changes)
    values = read_conf_values(text)
    assert values == {
        "prolog": ("/etc/slurm_colloc/hooks/prolog.d/*",),
        "epilog": ("/etc/slurm_colloc/hooks/epilog.sh",),
    }
    assert '#was prolog = "/etc/slurm/prolog.sh"  # ours since 2019' in text
    assert restore_text(text, ["Prolog", "Epilog"]) == CONF


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("include /etc/slurm/hooks.conf\n", "no such line"),
        ("Prolog=/etc/slurm/other.sh\n", "has /etc/slurm/other.sh"),
        ("Prolog=/etc/slurm/prolog.sh Epilog=/e\n", "line 1 holds more than Prolog"),
        ("A=b\nProlog=/etc/slurm/prolog.sh \\\n", "line 2 holds more than Prolog"),
    ],
)
def test_a_file_that_slurm_does_not_run_with_is_not_changed(text: str, words: str) -> None:
    change = LineChange("Prolog", ("/etc/slurm/prolog.sh",), ("/new",), "a reason")
    with pytest.raises(UsageProblem, match=words.replace("\\", "\\\\")):
        change_text(text, [change])


_WORD = st.text("abcXYZ/._-*09", min_size=1, max_size=20)
_LINE = st.one_of(
    st.builds("{}={}".format, st.sampled_from(["ClusterName", "SlurmUser", "X"]), _WORD),
    st.builds("# {}".format, _WORD),
    st.just(""),
)


@given(
    before=st.lists(_LINE, max_size=8),
    old=st.lists(_WORD, max_size=3),
    new=st.lists(_WORD, min_size=1, max_size=3),
    after=st.lists(_LINE, max_size=8),
)
def test_every_change_can_be_taken_back(
    before: list[str], old: list[str], new: list[str], after: list[str]
) -> None:
    text = "\n".join([*before, *(f"Prolog={value}" for value in old), *after]) + "\n"
    changed = change_text(text, [LineChange("Prolog", tuple(old), tuple(new), "a reason")])
    assert read_conf_values(changed)["prolog"] == tuple(new)
    assert restore_text(changed, ["Prolog"]) == text


def test_removal_takes_out_our_scripts_and_nothing_else() -> None:
    config = {**OLD, "Epilog": "/etc/slurm_colloc/hooks/epilog.sh"}
    config |= {"Prolog": "/etc/slurm_colloc/hooks/prolog.d/*"}
    assert plan_removal(config, PLACES, {}).problems
    plan = plan_removal(config, PLACES, {"prolog": "/etc/slurm/prolog.sh"})
    assert wanted(plan) == {"Prolog": ("/etc/slurm/prolog.sh",), "Epilog": ()}
    assert plan_removal({**OLD, "Prolog": "/etc/slurm/prolog.d/*"}, PLACES, {}).changes == ()


def test_a_hook_that_slurm_names_is_still_needed() -> None:
    path = "/etc/slurm_colloc/hooks/prolog.sh"
    record = {"hooks": {"prolog": path}, "files": {path: ""}, "links": {}}
    assert find_obstacles(record, {"prolog": (path,)}, PLACES)
    assert find_obstacles(record, {"prolog": ("/etc//slurm_colloc/hooks/prolog.sh",)}, PLACES)
    assert find_obstacles(record, {"prolog": ("/etc/slurm_colloc/hooks/*",)}, PLACES)
    assert not find_obstacles(record, {"prolog": ("/etc/slurm/prolog.sh",)}, PLACES)


@pytest.mark.parametrize("path", ["a/b", "/a b", "/a;b", "/a/../b", "/a'b", "/a$b", "/a\nb"])
def test_a_path_that_a_shell_would_read_is_refused(path: str) -> None:
    with pytest.raises(UsageProblem, match="cannot be used"):
        find_places({"SLURM_COLLOC_BASE": path})
    with pytest.raises(UsageProblem, match="cannot be used"):
        find_places({}, prefix=path)


def test_another_driver_reaches_no_real_installation() -> None:
    assert find_places({"SLURM_COLLOC_DRIVER": "/var/tmp/sim"}).driver == ""
    found = find_places({"SLURM_COLLOC_DRIVER": "/s", "SLURM_COLLOC_BASE": "/b"})
    assert found.driver == "/s"
