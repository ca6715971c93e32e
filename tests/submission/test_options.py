from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.errors import UsageProblem
from slurm_colloc.slurm.options import (
    COMMAND_LINE,
    OWN_OPTIONS,
    SBATCH_OPTIONS,
    SRUN_OPTIONS,
    Argument,
    Concern,
    Option,
    Options,
    find_option,
    merge_options,
    parse_command_line,
    parse_srun_line,
    read_environment,
    render_arguments,
)


def given_pairs(*argv: str) -> list[tuple[str, str | None]]:
    return [(given.option.name, given.value) for given in parse_command_line(argv).values]


def merged(
    *argv: str, environment: dict[str, str] | None = None, script: tuple[str, ...] = ()
) -> Options:
    return merge_options(
        directives=parse_command_line(script).values,
        environment=read_environment(environment or {}),
        command_line=parse_command_line(argv).values,
    )


@pytest.mark.parametrize(
    ("argv", "pairs"),
    [
        (["--time=5"], [("time", "5")]),
        (["--time", "5"], [("time", "5")]),
        (["--time="], [("time", "")]),
        (["--comment=a=b"], [("comment", "a=b")]),
        (["-t5"], [("time", "5")]),
        (["-t", "5"], [("time", "5")]),
        (["-t=5"], [("time", "=5")]),
        (["-J", "--hold"], [("job-name", "--hold")]),
        (["-HQ"], [("hold", None), ("quiet", None)]),
        (["-Hn4"], [("hold", None), ("ntasks", "4")]),
        (["-Hn", "4"], [("hold", None), ("ntasks", "4")]),
        (["-vvv"], [("verbose", None)] * 3),
        (["-k"], [("no-kill", None)]),
        (["-koff"], [("no-kill", "off")]),
        (["--nice"], [("nice", None)]),
        (["--nice=5"], [("nice", "5")]),
        (["--part=a"], [("partition", "a")]),
        (["--exclusi"], [("exclusive", None)]),
        (["--mem", "1G"], [("mem", "1G")]),
        (["--tasks-per-node=1"], [("ntasks-per-node", "1")]),
        (["--cluster=a"], [("clusters", "a")]),
        (["--gpu-mem=4G"], [("gpu-mem", "4G")]),
        (["--dry"], [("dry-run", None)]),
    ],
)
def test_options_are_read_by_the_rules_of_getopt(
    argv: list[str], pairs: list[tuple[str, str | None]]
) -> None:
    assert given_pairs(*argv) == pairs
    assert parse_command_line([*argv, "train.sh", "-n", "2"]).words == ("train.sh", "-n", "2")


def test_an_optional_value_is_never_taken_from_the_next_word() -> None:
    parsed = parse_command_line(["--nice", "5"])
    assert [given.value for given in parsed.values] == [None]
    assert parsed.words == ("5",)


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ()),
        (["--", "--hold"], ("--hold",)),
        (["-H", "--", "a", "--", "b"], ("a", "--", "b")),
        (["-"], ("-",)),
        (["a.sh", ":", "b"], ("a.sh", ":", "b")),
        ([""], ("",)),
    ],
)
def test_options_end_where_the_words_begin(argv: list[str], words: tuple[str, ...]) -> None:
    assert parse_command_line(argv).words == words


def test_a_shortened_name_means_what_it_means_to_sbatch_even_if_it_fits_an_own_option() -> None:
    # --join and --json begin with it too.
    assert given_pairs("--jo=x") == [("job-name", "x")]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--tiem=5"], "--tiem is not an sbatch or csub option: did you mean --time?"),
        (["--policy=carma"], "--policy was removed: csub alone makes the packs now"),
        (["--xyzzy"], "--xyzzy is not an sbatch or csub option"),
        (["--exc=a"], "--exc is ambiguous: --exclude or --exclusive"),
        (["--unbuffered"], "--unbuffered is not an sbatch or csub option: it belongs to srun"),
        (["-y"], "-y is not an sbatch or csub option"),
        (["-Hy"], "-y (in -Hy) is not an sbatch or csub option"),
        (["--time"], "--time needs a value"),
        (["-t"], "-t needs a value"),
        (["--part"], "--partition needs a value"),
        (["--hold=1"], "--hold takes no value, but has '1'"),
        (["-N1", ":", "-N2"], "asks for a heterogeneous job"),
    ],
)
def test_a_wrong_command_line_is_told_in_one_sentence(argv: list[str], message: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_command_line(argv)
    assert message in str(caught.value)


def test_an_ambiguous_name_lists_every_candidate() -> None:
    with pytest.raises(UsageProblem) as caught:
        parse_command_line(["--gpus-per-=1"])
    assert caught.value.hint == "--gpus-per-node, --gpus-per-socket or --gpus-per-task"


def test_an_option_that_repeats_counts_each_time_within_one_place() -> None:
    script = ("--metric=loss", "--metric", "acc", "--time=5")
    assert merged(script=script).text("metric") == "loss\nacc"
    assert merged("--metric=f1", script=script).text("metric") == "f1"
    arguments = render_arguments(merged(script=script).givens)
    assert merged(*arguments).text("metric") == "loss\nacc"
    assert merged("--time=1", "--time=2").text("time") == "2"


def test_an_option_of_the_site_is_known_once_it_is_told() -> None:
    site = Option("container-image", None, Argument.REQUIRED, Concern.GROUP)
    argv = ["--container-image=a.sqsh", "train.sh"]
    parsed = parse_command_line(argv, site_options=[site])
    options = merge_options(command_line=parsed.values)
    assert options.text("container-image") == "a.sqsh"
    with pytest.raises(UsageProblem):
        parse_command_line(argv)


@given(
    st.lists(
        st.one_of(
            st.text(alphabet="-=abnNHtk:1 ", max_size=6),
            st.sampled_from([f"--{option.name}" for option in SBATCH_OPTIONS]),
            st.text(max_size=5),
        ),
        max_size=6,
    )
)
def test_no_command_line_raises_anything_but_a_usage_problem(argv: list[str]) -> None:
    for parse in (parse_command_line, parse_srun_line):
        try:
            parsed = parse(argv)
        except UsageProblem as problem:
            message = problem.message
            assert message.startswith(("-", "a ':'"))
        else:
            assert parsed.words == tuple(argv[len(argv) - len(parsed.words) :])


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [option for option in (*SBATCH_OPTIONS, *OWN_OPTIONS) if not option.alias_of]
            ),
            st.text(max_size=8),
        )
    ),
    st.lists(st.text(max_size=4), max_size=3),
)
def test_written_options_read_the_same(chosen: list[tuple[Option, str]], words: list[str]) -> None:
    argv: list[str] = []
    expected: list[tuple[str, str | None]] = []
    for option, value in chosen:
        if option.argument is Argument.NONE:
            argv.append(f"--{option.name}")
            expected.append((option.name, None))
        else:
            argv.append(f"--{option.name}={value}")
            expected.append((option.name, value))
    parsed = parse_command_line([*argv, "--", "x", *words])
    assert [(given.option.name, given.value) for given in parsed.values] == expected
    assert parsed.words == ("x", *words)
    assert parse_command_line(render_arguments(parsed.values)).values == parsed.values


def test_srun_lines_are_read_with_the_options_of_srun() -> None:
    parsed = parse_srun_line(["-n1", "--cpu_bind=none", "-W", "30", "-ul", "python", "-u", "a.py"])
    assert [(given.option.name, given.value) for given in parsed.values] == [
        ("ntasks", "1"),
        ("cpu-bind", "none"),
        ("wait", "30"),
        ("unbuffered", None),
        ("label", None),
    ]
    assert parsed.words == ("python", "-u", "a.py")


def test_srun_lines_refuse_what_only_sbatch_takes() -> None:
    with pytest.raises(UsageProblem, match="--array is not an srun option"):
        parse_srun_line(["--array=1"])


def test_the_command_line_wins_over_the_environment_and_it_over_the_script() -> None:
    environment = {"SBATCH_PARTITION": "env", "SBATCH_QOS": "env"}
    script = ("--partition=script", "--qos=script", "--account=script")
    options = merged("--partition=line", environment=environment, script=script)
    assert options.text("partition") == "line"
    assert options.origin("partition") == COMMAND_LINE
    assert options.text("qos") == "env"
    assert options.origin("qos") == "environment variable SBATCH_QOS"
    assert options.text("account") == "script"


def test_the_last_of_equal_options_wins_whatever_its_spelling() -> None:
    options = merged("--ntasks-per-node=1", "--tasks-per-node=2")
    assert options.text("ntasks-per-node") == "2"


@pytest.mark.parametrize("text", ["", "yes", "YES", "1", "-2"])
def test_a_flag_variable_can_set_the_flag(text: str) -> None:
    assert merged(environment={"SBATCH_OVERCOMMIT": text}).flag("overcommit")


@pytest.mark.parametrize("text", ["no", "0", "true", "1x"])
def test_a_flag_variable_can_take_back_what_the_script_says(text: str) -> None:
    environment = {"SBATCH_OVERCOMMIT": text}
    assert not merged(environment=environment, script=("--overcommit",)).flag("overcommit")
    assert merged("--overcommit", environment=environment).flag("overcommit")


def test_an_empty_variable_gives_an_optional_value_none_and_a_required_one_the_empty_text() -> None:
    options = merged(environment={"SBATCH_EXCLUSIVE": "", "SBATCH_PARTITION": ""})
    assert options.flag("exclusive")
    assert options.text("exclusive") is None
    assert options.text("partition") == ""


def test_of_two_variables_for_one_option_the_one_that_sbatch_reads_last_wins() -> None:
    options = merged(
        environment={
            "SBATCH_HINT": "a",
            "SLURM_HINT": "b",
            "SBATCH_CLUSTERS": "a",
            "SLURM_CLUSTERS": "b",
        }
    )
    assert options.text("hint") == "a"
    assert options.text("clusters") == "b"


def test_requeue_and_no_requeue_turn_each_other_off() -> None:
    options = merged("--requeue", script=("--no-requeue",))
    assert options.flag("requeue")
    assert not options.flag("no-requeue")
    options = merged(environment={"SBATCH_NO_REQUEUE": "1"}, script=("--requeue",))
    assert options.flag("no-requeue")
    assert not options.flag("requeue")


def test_a_memory_option_turns_off_the_variables_of_the_others() -> None:
    options = merged(environment={"SBATCH_MEM_PER_NODE": "1G"}, script=("--mem-per-cpu=2G",))
    assert options.text("mem") is None
    assert options.text("mem-per-cpu") == "2G"


@pytest.mark.parametrize(
    ("argv", "environment", "script"),
    [
        (("--mem=1G", "--mem-per-cpu=1G"), {}, ()),
        (("--mem=1G",), {}, ("--mem-per-gpu=1G",)),
        ((), {"SBATCH_MEM_PER_NODE": "1G", "SBATCH_MEM_PER_GPU": "1G"}, ()),
    ],
)
def test_two_memory_options_exclude_each_other(
    argv: tuple[str, ...], environment: dict[str, str], script: tuple[str, ...]
) -> None:
    with pytest.raises(UsageProblem, match="exclude each other"):
        merged(*argv, environment=environment, script=script)


def test_what_sbatch_ignores_in_a_script_is_ignored() -> None:
    options = merged(script=("--wrap=x", "-v", "--quiet", "--hold"))
    assert [given.option.name for given in options.givens] == ["hold"]


def test_verbosity_is_counted_and_its_variable_is_a_number() -> None:
    assert merged("-vv", environment={"SBATCH_DEBUG": "1"}).givens[0].times == 2
    assert merged(environment={"SBATCH_DEBUG": "3"}).givens[0].times == 3
    assert not merged().flag("verbose")


def test_options_are_selected_by_what_they_concern() -> None:
    options = merged("-p", "a", "-J", "b", "-N1", "--degree=2", "--qos=c")
    assert [given.option.name for given in options.select(Concern.GROUP)] == [
        "degree",
        "partition",
        "qos",
    ]
    arguments = render_arguments(options.select(Concern.SHAPE, Concern.MEMBER))
    assert arguments == ["--job-name=b", "--nodes=1"]


@pytest.mark.parametrize("name", ["tiem", "tasks-per-node", "overlap"])
def test_asking_for_an_option_that_does_not_exist_is_an_error_of_the_program(name: str) -> None:
    with pytest.raises(KeyError):
        merged().text(name)


def test_names_and_letters_are_unique_within_each_table() -> None:
    for table in ((*SBATCH_OPTIONS, *OWN_OPTIONS), SRUN_OPTIONS):
        names = [option.name for option in table]
        letters = [option.short for option in table if option.short]
        assert len(names) == len(set(names))
        assert len(letters) == len(set(letters))


def test_every_reference_between_options_leads_somewhere() -> None:
    for option in SBATCH_OPTIONS:
        for other in filter(None, (option.alias_of, option.cancels)):
            assert find_option(other).argument in (
                option.argument,
                Argument.OPTIONAL,
                Argument.NONE,
            )


def test_whatever_is_refused_or_runs_alone_says_why() -> None:
    for option in SBATCH_OPTIONS:
        if option.concern in (Concern.REFUSED, Concern.ALONE):
            assert option.reason, option.name


# Flags at first, with an optional value since the release named in the table.
FLAGS_OF_OLD = {"get-user-env", "requeue", "pty", "external-launcher"}


def run_client(program: str, configuration: Path, *argv: str) -> str:
    """What a Slurm client says to arguments that do not suffice for a submission."""
    done = subprocess.run(
        [program, *argv],
        env={"PATH": "/usr/sbin:/usr/bin:/bin", "SLURM_CONF": str(configuration)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout + done.stderr


@pytest.mark.slurm
@pytest.mark.parametrize(("program", "table"), [("sbatch", SBATCH_OPTIONS), ("srun", SRUN_OPTIONS)])
def test_every_option_that_the_installed_slurm_lists_is_in_the_table(
    program: str, table: tuple[Option, ...], client_configuration: Path
) -> None:
    letters = {option.name: option.short for option in table}
    listed = run_client(program, client_configuration, "--help")
    matches = re.findall(r"^\s+(?:-(\w), )?--([\w-]+)", listed, re.MULTILINE)
    assert len(matches) > 60
    for letter, name in matches:
        assert name in letters
        assert letter in ("", letters[name])


@pytest.mark.slurm
@pytest.mark.parametrize(("program", "table"), [("sbatch", SBATCH_OPTIONS), ("srun", SRUN_OPTIONS)])
def test_the_installed_slurm_agrees_on_which_options_exist_and_take_a_value(
    program: str, table: tuple[Option, ...], client_configuration: Path
) -> None:
    version = run_client(program, client_configuration, "--version").split()[1]
    release = ".".join(version.split(".")[:2])
    for option in table:
        bare = run_client(program, client_configuration, f"--{option.name}")
        if "unrecognized option" in bare:
            # Some options came to srun later, or left it, without a column for that.
            newer = option.since is not None and option.since > release
            older = option.until is not None and option.until < release
            assert newer or older or option.name in ("uid", "gid", "parsable", "resv-ports")
        elif "requires an argument" in bare:
            assert option.argument is Argument.REQUIRED, option.name
        elif "doesn't allow an argument" in run_client(
            program, client_configuration, f"--{option.name}=x"
        ):
            assert option.argument is Argument.NONE or option.name in FLAGS_OF_OLD, option.name
        else:
            assert option.argument is Argument.OPTIONAL, option.name
