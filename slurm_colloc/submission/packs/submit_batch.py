"""One Slurm job from its packs: write them, sbatch, write down the answer.

Also: the batch script of a pack, from templates/pack.sbatch.j2, and what travels with it.
"""

from __future__ import annotations

import contextlib
import io
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
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
from slurm_colloc.store.member_states import remove_environment
from slurm_colloc.store.pack_directory import NewPack, PackRecord
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


# ---- The batch script of a pack, from templates/pack.sbatch.j2, and what travels with it ---------

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


def render_batch_script(
    *,
    title: str,
    version: str,
    pack_path: str,
    is_array: bool,
    python: str,
    templates_dir: str,
    archive: str = "",
) -> str:
    """Render the batch script.

    Args:
        title: For the reader: what the pack is.
        version: Version of slurm_colloc.
        pack_path: Path of the submission's packs without their index.
        is_array: The packs are elements of a job array.
        python: Interpreter on the nodes.
        templates_dir: A site's own templates, looked at first; empty for none.
        archive: The packs themselves (`build_archive`), where no path is shared; else empty.

    Raises:
        UsageProblem: The site's template is wrong.
    """
    import jinja2

    environment = build_environment(templates_dir)
    try:
        template = environment.get_template(TEMPLATE)
        return template.render(
            title=title,
            version=version,
            pack_path=pack_path,
            is_array=is_array,
            python=python,
            archive=archive,
        )
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
        title: As for `render_batch_script`, like the others.
        version: See there.
        pack_path: See there.
        is_array: See there.
        python: See there.
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


SCRIPT_LIMIT_BYTES = 4 * 1024 * 1024
"""Slurm's default for SchedulerParameters=max_script_size; the archive must fit with room."""


CARRIED_PREFIX = "SLURM_COLLOC_CARRIED_"
"""Variables of the batch job that carry its members' environments: sbatch exports what begins with
SLURM_ whatever --export says, and Slurm keeps it as it keeps the environment of any job. The
template unsets them."""

_VARIABLE_BYTES = 96 * 1024
"""Of one variable: Linux takes 128 KiB (MAX_ARG_STRLEN, execve(2))."""

_ENVIRONMENTS_MOST_BYTES = 1024 * 1024
"""Of all of them: Linux takes a quarter of the stack limit, 2 MiB as a rule."""


def build_archive(packs: Path, pack_ids: Sequence[str]) -> str:
    """Pack directories as lines of base64, for a here-document; without members' environments.

    Args:
        packs: The directory that holds them.
        pack_ids: Their names.

    Raises:
        UsageProblem: They are too large for a batch script.
    """
    text = _archive(packs, pack_ids, lambda name: name != "env")
    if len(text) > SCRIPT_LIMIT_BYTES * 3 // 4:
        raise _build_refusal(text, "a batch script")
    return "\n".join(text[start : start + 120] for start in range(0, len(text), 120))


def build_carried_environment(packs: Path, pack_ids: Sequence[str]) -> dict[str, str]:
    """The members' environments as variables of the batch job, which holds no secret in its script.

    Args:
        packs: The directory that holds the packs.
        pack_ids: Their names.

    Raises:
        UsageProblem: They are too large for an environment.
    """
    text = _archive(packs, pack_ids, lambda name: name == "env")
    if len(text) > _ENVIRONMENTS_MOST_BYTES:
        raise _build_refusal(text, "the environment of a batch job")
    parts = range(0, len(text), _VARIABLE_BYTES)
    return {
        f"{CARRIED_PREFIX}{number:02d}": text[start : start + _VARIABLE_BYTES]
        for number, start in enumerate(parts)
    }


def _archive(packs: Path, pack_ids: Sequence[str], takes: Callable[[str], bool]) -> str:
    import tarfile

    def choose(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return entry if entry.isdir() or takes(os.path.basename(entry.name)) else None

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for pack_id in pack_ids:
            archive.add(packs / pack_id, arcname=f"packs/{pack_id}", filter=choose)
    import base64

    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _build_refusal(text: str, where: str) -> UsageProblem:
    return UsageProblem(
        f"the jobs take {len(text) // 1024} KB, which is too much to travel in {where}",
        hint="submit fewer at a time, or set state_dir to a path that the nodes share",
    )


# ---- One Slurm job from its packs: write them, sbatch, write down the answer ---------------------


@dataclass(frozen=True)
class Submitted:
    """One Slurm job that came of a call.

    Attributes:
        job_id: Its id.
        records: Its packs.
        members: The members' numbers of each pack, in the same order.
    """

    job_id: str
    records: tuple[PackRecord, ...]
    members: tuple[tuple[int, ...], ...]


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
        _choose_log(batch, submission, settings, state),
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
        carried=not settings.state_shared,
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
        carried = not settings.state_shared
        # Slurm shows this path as the job's Command, so it stays as long as the pack; what travels
        # in the script stays nowhere else.
        folder = state.making if carried else state.pack_path(records[0].pack_id)
        script_path = folder / f"{submission}.sh"
        try:
            script = _render_script(batch, submission, records, settings, state)
            write_atomic(script_path, script.encode("utf-8", "surrogateescape"), 0o700)
            if held.came():
                raise Interrupted("interrupted; nothing was submitted")
            job_id = slurm.submit(
                str(script_path),
                options.words,
                environment={**environment, **_carry_environments(records, settings, state)},
                directory=directory,
                inherited=(lock,),
                held=held,
            )
        finally:
            if carried:
                with contextlib.suppress(OSError):
                    script_path.unlink()
    # From here on Slurm has the job: the packs stay, whatever happens to this process.
    _write_down(state, packs, job_id, carried=not settings.state_shared)
    if not held.came():
        records = shorten(slurm, state, job_id, batch, records)
    if held.came():
        _take_back(slurm, job_id)
    return Submitted(
        job_id,
        tuple(records),
        tuple(tuple(member.spec.job.number for member in pack.members) for pack in packs),
    )


def _choose_log(batch: Batch, submission: str, settings: Settings, state: State) -> str:
    """Where sbatch is to put what the batch script prints."""
    if not settings.state_shared:
        return "csub-%A_%a.log" if batch.is_array else "csub-%j.log"
    element = "%a" if batch.is_array else "0"
    # In a filename pattern of sbatch `%` stands for itself when doubled.
    path = str(state.packs / submission).replace("%", "%%")
    return f"{path}.{element}/pack.log"


def _render_script(
    batch: Batch,
    submission: str,
    records: Sequence[PackRecord],
    settings: Settings,
    state: State,
) -> str:
    archive = ""
    if not settings.state_shared:
        archive = build_archive(state.packs, [record.pack_id for record in records])
    count = format_count(sum(len(record.members) for record in records), "member")
    title = f"{batch.name}: {count}"
    pack_path = submission if archive else str(state.packs / submission)
    if archive or settings.templates_dir:
        return render_batch_script(
            title=title,
            version=__version__,
            pack_path=pack_path,
            is_array=batch.is_array,
            python=settings.python,
            templates_dir=settings.templates_dir,
            archive=archive,
        )
    return render_kept_script(
        state.root,
        title=title,
        version=__version__,
        pack_path=pack_path,
        is_array=batch.is_array,
        python=settings.python,
    )


def _carry_environments(
    records: Sequence[PackRecord], settings: Settings, state: State
) -> dict[str, str]:
    """What the batch job gets besides its own environment: those of members that travel."""
    if settings.state_shared:
        return {}
    return build_carried_environment(state.packs, [record.pack_id for record in records])


def _write_down(state: State, packs: Sequence[NewPack], job_id: str, *, carried: bool) -> None:
    """Write the job's id into its packs; remove what has travelled with them."""
    try:
        state.record_job([pack.record for pack in packs], job_id)
        if carried:
            for pack in packs:
                for member in pack.members:
                    # It has travelled; nothing on this side would remove it later.
                    remove_environment(state.pack_path(pack.record.pack_id), member.spec.job.number)
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
