"""One Slurm job from its packs: write them, sbatch, write down the answer.

Also: the batch script of a pack, from templates/pack.sbatch.j2.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slurm_colloc import __version__
from slurm_colloc.errors import Interrupted, SlurmError, StateError, UsageProblem
from slurm_colloc.model.job_values import remove_member_variables
from slurm_colloc.model.late_definitions import dataclass, late_pattern
from slurm_colloc.model.plan import Policy
from slurm_colloc.model.quantities import format_count
from slurm_colloc.resources import data_path
from slurm_colloc.settings import Settings
from slurm_colloc.slurm.run_command import HeldInterrupts, build_client_environment
from slurm_colloc.slurm.slurm_commands import SlurmAccess
from slurm_colloc.store.all_packs import State
from slurm_colloc.store.atomic_files import read_json, write_atomic, write_json
from slurm_colloc.store.pack_directory import PackRecord
from slurm_colloc.submission.packs.build_packs import build_options, build_packs, shorten
from slurm_colloc.submission.packs.call_batches import (
    MAX_ARRAY_SIZE,
    ONLY_ONE,
    Batch,
    HookChoice,
    PlaceInCall,
    group_into_batches,
    may_need_array,
    read_array_size,
)
from slurm_colloc.submission.packs.own_ids import OwnIds
from slurm_colloc.submission.plan.plan_call import CallPlan

if TYPE_CHECKING:
    from jinja2 import Environment


# ---- The batch script of a pack, from templates/pack.sbatch.j2 -----------------------------------

TEMPLATE = "pack.sbatch.j2"

# What differs between two calls stands in a kept script under these names, which a shell takes as
# they are; see render_kept_script.
_TITLE, _PACK_PATH = "@csub:title@", "@csub:pack_path@"
_HOLES = late_pattern(f"{_TITLE}|{_PACK_PATH}")


# What sbatch, and with it the batch script, gets of the user's environment; the members get the
# whole of theirs from the pack directory.
_CLIENT_VARIABLES = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "LD_LIBRARY_PATH", "KRB5CCNAME",
     "XDG_STATE_HOME", "XDG_CONFIG_HOME"}
)  # fmt: skip
_CLIENT_PREFIXES = ("LC_", "SLURM_COLLOC_")


def render_batch_script(*, templates_dir: str, **values: str | bool) -> str:
    """Render the batch script.

    Args:
        templates_dir: A site's own templates, looked at first; empty for none.
        values: What the template says that it takes (templates/pack.sbatch.j2).

    Raises:
        UsageProblem: The site's template is wrong.
    """
    import jinja2

    environment = build_environment(templates_dir)
    try:
        template = environment.get_template(TEMPLATE)
        return template.render(**values)
    except jinja2.TemplateError as error:
        where = os.path.join(templates_dir or str(data_path("templates")), TEMPLATE)
        line = getattr(error, "lineno", None)
        raise UsageProblem(
            f"{where}{f':{line}' if line else ''}: {error}",
            hint="templates_dir in the settings names the site's templates",
        ) from error


def render_kept_script(
    kept: Path, *, title: str, version: str, pack_path: str, is_array: bool, python: str
) -> str:
    """Render csub's own template, with jinja2 only where it was not kept from an earlier call.

    Importing jinja2 and compiling the template take a quarter of a submission. The answer is the
    same as that of `render_batch_script`.

    Args:
        kept: Directory for the rendered scripts; one that cannot be written does no harm.
        title: For the reader: what the pack is.
        version: Version of slurm_colloc.
        pack_path: Path of the submission's packs without their index.
        is_array: The packs are elements of a job array.
        python: Interpreter on the nodes.
    """
    template = (data_path("templates") / TEMPLATE).read_text(encoding="utf-8")
    path = kept / f"script.{'array' if is_array else 'single'}.json"
    key = [template, version, python]
    value = None
    with contextlib.suppress(StateError):
        value = read_json(path)
    if value is None or value.get("key") != key or not isinstance(value.get("text"), str):
        text = render_batch_script(
            title=_TITLE,
            version=version,
            pack_path=_PACK_PATH,
            is_array=is_array,
            python=python,
            templates_dir="",
        )
        value = {"key": key, "text": text}
        with contextlib.suppress(StateError):
            write_json(path, value)
    holes = {_TITLE: _one_line(title), _PACK_PATH: shlex.quote(pack_path)}
    return _HOLES.sub(lambda match: holes[match[0]], value["text"])


def build_environment(templates_dir: str) -> Environment:
    """What renders shell scripts; a site's own templates come first."""
    import jinja2

    folders = [templates_dir] if templates_dir else []
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, str(data_path("templates"))]),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        autoescape=False,  # a shell script: every value goes through `quote`
    )
    environment.filters["quote"] = shlex.quote
    environment.filters["comment"] = _one_line
    return environment


def _one_line(text: str) -> str:
    """Text that cannot leave a comment line."""
    return "".join(character if character.isprintable() else "?" for character in text)


def build_batch_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of sbatch and of the batch script: small and known.

    With `--export=ALL` Slurm passes it on as it is; everything else that the batch script finds
    was then added by Slurm or the site.
    """
    client = build_client_environment(remove_member_variables(environ))
    return {
        name: value
        for name, value in client.items()
        if name in _CLIENT_VARIABLES
        or name.startswith(_CLIENT_PREFIXES)
        or name in ("SLURM_CONF", "SLURM_CONF_SERVER")
    }


# ---- One Slurm job from its packs: write them, sbatch, write down the answer ---------------------


@dataclass(frozen=True)
class Submitted:
    """One Slurm job that came of a call.

    Attributes:
        job_id: Its id.
        records: Its packs.
    """

    job_id: str
    records: tuple[PackRecord, ...]

    @property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The members' numbers of each pack, in the same order."""
        return tuple(record.members for record in self.records)


def group_call(made: CallPlan, slurm: SlurmAccess | None) -> list[Batch]:
    """The Slurm jobs that a planned call becomes.

    Args:
        made: The call.
        slurm: Slurm, which is asked only where an array may be needed; None without Slurm.

    Raises:
        SlurmRefused: A task that runs alone has an index that Slurm does not take.
    """
    if slurm is None:
        # Nothing limits the numbers of tasks there.
        size = max(MAX_ARRAY_SIZE, 1 + max(job.number for job in made.jobs))
    else:
        config: Mapping[str, str] = {}
        if may_need_array(made.packs):
            # A Slurm that does not answer, or has less room, says so when it is asked for the job.
            with contextlib.suppress(SlurmError):
                config = slurm.read_config()
        size = read_array_size(config)
    return group_into_batches(made.packs, made.plan.packs_at_once, size)


def submit_batch(
    batch: Batch,
    submission: str,
    *,
    settings: Settings,
    state: State,
    slurm: SlurmAccess,
    directory: str,
    held: HeldInterrupts,
    policy: Policy | None,
    refusals: tuple[str, ...] = (),
    resubmissions: int = 0,
    place: PlaceInCall = ONLY_ONE,
) -> Submitted:
    """Submit packs as one Slurm job.

    Args:
        batch: The packs.
        submission: The submission's id.
        settings: The settings.
        state: The state directory.
        slurm: Slurm.
        directory: The submission directory.
        held: Interrupts that are held back meanwhile.
        policy: How far sharing may go in them later; None where no job may join them.
        refusals: Why the jobs did not join the packs that were there.
        resubmissions: How often they were submitted again.
        place: How this Slurm job stands to the others of its call.

    Raises:
        CollocError: Nothing was submitted, or what was is named in the message.
    """
    options = build_options(
        batch,
        submission,
        _choose_log(batch, submission, state),
        hooks=HookChoice.of(settings),
        shown_id=place.shown_id,
        after_job=place.after_job,
    )
    environment = build_batch_environment(os.environ)
    packs = build_packs(
        batch,
        submission,
        environment=environment,
        options=options,
        directory=directory,
        cluster=state.cluster,
        policy=policy,
        refusals=refusals,
        resubmissions=resubmissions,
        place=place,
        settings=settings.for_runner,
    )
    packs = OwnIds(state, settings, slurm).number_packs(packs)
    records = [pack.record for pack in packs]
    with state.writing(packs) as lock:
        # Slurm shows this path as the job's Command, so it stays as long as the pack.
        script_path = state.pack_path(records[0].pack_id) / f"{submission}.sh"
        script = _render_script(batch, submission, settings, state)
        write_atomic(script_path, script.encode("utf-8", "surrogateescape"), 0o700)
        if held.came():
            raise Interrupted("interrupted; nothing was submitted")
        job_id = slurm.submit(
            str(script_path),
            options.words,
            environment=environment,
            directory=directory,
            inherited=(lock,),
            held=held,
        )
    # From here on Slurm has the job: the packs stay, whatever happens to this process.
    _write_down(state, records, job_id)
    if not held.came():
        records = shorten(slurm, state, job_id, batch, records)
    if held.came():
        _take_back(slurm, job_id)
    return Submitted(job_id, tuple(records))


def _choose_log(batch: Batch, submission: str, state: State) -> str:
    """Where sbatch is to put what the batch script prints."""
    element = "%a" if batch.is_array else "0"
    # In a filename pattern of sbatch `%` stands for itself when doubled.
    path = str(state.packs / submission).replace("%", "%%")
    return f"{path}.{element}/pack.log"


def _render_script(batch: Batch, submission: str, settings: Settings, state: State) -> str:
    count = format_count(sum(len(pack.plan.members) for pack in batch.packs), "member")
    title = f"{batch.name}: {count}"
    pack_path = str(state.packs / submission)
    render = functools.partial(render_kept_script, state.root)
    if settings.templates_dir:
        render = functools.partial(render_batch_script, templates_dir=settings.templates_dir)
    return render(
        title=title,
        version=__version__,
        pack_path=pack_path,
        is_array=batch.is_array,
        python=settings.python,
    )


def _write_down(state: State, records: Sequence[PackRecord], job_id: str) -> None:
    """Write the job's id into its packs."""
    try:
        state.record_job(records, job_id)
    except StateError as error:
        error.message += f"; job {job_id} was submitted all the same"
        # Its runner writes its id, too: only that is missing, and no job is half there.
        error.hint = "make room, then csub queue shows it"
        raise


def _take_back(slurm: SlurmAccess, job_id: str) -> None:
    """Ctrl-C while sbatch ran, and it has submitted: cancel that job again."""
    try:
        slurm.cancel(job_id)
    except SlurmError as error:
        raise Interrupted(
            f"interrupted; job {job_id} was submitted and could not be cancelled",
            hint=f"csub cancel {job_id} ends it",
        ) from error
    raise Interrupted(f"interrupted; job {job_id} was submitted and has been cancelled")
