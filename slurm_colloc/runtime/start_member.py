"""Starting members: what each finds in its environment, where it writes, and what runs it.

Also: members whose wrappers have come up: their start is written down, and their time runs.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from slurm_colloc.model.job_ids import REAL_ID
from slurm_colloc.model.job_values import (
    SET_VARIABLE,
    PatternValues,
    choose_output_paths,
    expand_pattern,
)
from slurm_colloc.model.late_definitions import asdict, dataclass
from slurm_colloc.model.member import MemberState
from slurm_colloc.runtime import member_environment as environments
from slurm_colloc.runtime import member_places
from slurm_colloc.runtime.allocation import find_user_name
from slurm_colloc.runtime.gpu_mode import GpuMode
from slurm_colloc.runtime.members import Member, PackPlace
from slurm_colloc.runtime.mps_clients import MpsClients
from slurm_colloc.runtime.pack_context import PackContext
from slurm_colloc.runtime.pack_monitor import PackMonitor
from slurm_colloc.runtime.path_shims import (
    SHIMMED,
    bind_shims,
    build_bash_variables,
    build_inside,
    find_shims,
    give_shims,
    render_bash_env,
    tell_later_start,
    write_shims,
)
from slurm_colloc.runtime.place_member import AS_PLANNED, GpuShare
from slurm_colloc.runtime.step_command import (
    Launch,
    build_srun_argv,
    build_wrapper_argv,
    start_process,
)
from slurm_colloc.runtime.stop_member import read_started
from slurm_colloc.runtime.write_states import StateWriter
from slurm_colloc.slurm.real_command import find_real_command, iterate_real_commands
from slurm_colloc.store.atomic_files import write_json
from slurm_colloc.store.inbox import format_number
from slurm_colloc.store.member_states import is_held
from slurm_colloc.store.pack_directory import parse_environment_block

PORTS = range(12000, 28000)
"""Where members' own ports lie: above the well-known, below the ephemeral ones of Linux."""

_OF_MPS = frozenset({"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"})
"""Who has one of them, from the user or by Slurm's gres/mps, is meant to find a daemon."""


@dataclass(eq=False, kw_only=True)
class MemberStarter:
    """Starts the members of one attempt.

    Attributes:
        pack: The attempt of the pack.
        launcher: `srun`, `process`, or `auto` (steps first).
        kill_wait_s: From TERM to KILL.
        passes_on: Slurm signals the wrapper of a step alone, which passes it on to the script.
        lone: The only member, in an allocation that is exactly what it asked for: it runs as
            the batch script would, with the batch script's output.
        gpu_mode: How a member is put on the GPU, and the environment that does it.
        monitor: The environment by which a member's progress is followed.
        site_appends: Output is appended where the user has not said how (JobFileAppend).
    """

    pack: PackContext
    launcher: str
    kill_wait_s: float
    passes_on: bool
    lone: bool
    gpu_mode: GpuMode
    monitor: PackMonitor
    site_appends: bool = False

    def __post_init__(self) -> None:
        self._may_fall_back = self.launcher == "auto"
        self.launcher = "srun" if self.launcher == "auto" else self.launcher
        # With another --export nothing of what sbatch was given reaches the batch script.
        sent = (
            {}
            if "export" in dict(self.pack.record.group)
            else dict(self.pack.record.client_environment)
        )
        self._added = environments.compute_added_by_slurm(self.pack.allocation.environment, sent)
        self._has_shims = not self.lone and not self.pack.record.local
        if self._has_shims:
            write_shims(self.pack.path, sys.executable)
        self._real_id = self.pack.allocation.environment.get("SLURM_JOB_ID", "")
        self._ports: dict[int, int] = {}

    def start(self, member: Member, place: PackPlace, share: GpuShare = AS_PLANNED) -> bool:
        """Start a member in a place; False where it was held at the last moment.

        Args:
            member: The member.
            place: Where.
            share: What it is given of the GPU.

        Raises:
            OSError: It cannot be started.
        """
        job, plan = member.spec.job, member.spec.plan
        directory = self.pack.path / "members" / format_number(member.number)
        member.prefix = str(directory / f"run.{self.pack.attempt}.{member.record.starts + 1}")
        cpus = place.choose_cpus(plan.cpus)
        captured = environments.parse_pairs(
            parse_environment_block((directory / "env").read_bytes()).items()
        )
        name = member.name(self.pack.shown_id)
        added = self._added | _describe_submission(member, self._added)
        shared = not self.lone and self.pack.record.degree > 1
        job_id = self._choose_job_id(member)
        if self.lone and job_id != self._real_id and not self.pack.record.local:
            # Its commands know the id that it had in its first Slurm job.
            self._has_shims = True
            write_shims(self.pack.path, sys.executable)
        # It goes with the start, also with one that fails.
        member.tmpdir = self._make_tmpdir() if shared and "TMPDIR" not in captured else ""
        where = environments.MemberContext(
            # A batch script's own array may be another than the one its members are named after.
            array_id=(
                self.pack.allocation.job_id.partition("_")[0]
                if self.lone and not self._has_shims
                else name.job
            ),
            job_id=job_id,
            member=str(name),
            pack=str(self.pack.path),
            run=member.prefix,
            shims=find_shims(directory) if self._has_shims else "",
            cpus=cpus,
            starts=member.record.starts,
            tmpdir=member.tmpdir,
            port=self._choose_port(member.number) if shared else None,
            shared=not self.lone,
            started_at=int(time.time()),
        )
        alone = environments.compose_environment(captured, added, job, plan, where)
        composed = alone | environments.compute_own_resources(captured, added, alone, plan, where)
        member.gpu, on_gpu = self.gpu_mode.place(member, share)
        if member.gpu is not None and not self.lone and not composed.keys() & _OF_MPS:
            # Where there is none: CUDA looks for a daemon in a place that all users can write to.
            composed["CUDA_MPS_PIPE_DIRECTORY"] = f"{where.tmpdir or _name_directory('/tmp')}/mps"
        composed.update(on_gpu)
        output, error = (None, None) if self.lone else self._choose_outputs(member)
        written = self._find_own_outputs() if self.lone else (output, error)
        member.outputs = _measure_outputs(
            *(path and os.path.join(job.directory, path) for path in written),
            truncates=self._truncates(member) and not self.lone,
        )
        composed.update(self.monitor.place(member, composed))
        places = self._choose_places(member, where, (captured, added), composed)
        if self._has_shims:
            covered = member_places.list_covered(places) if places else []
            self._give_shims(member, where, alone, composed, (output, error), covered=covered)
        member.launcher = self.launcher
        is_step = member.launcher == "srun"
        launch = Launch(
            argv=(str(directory / "script"), *job.arguments),
            environment=sorted(composed.items()),
            directory=job.directory,
            cpus=cpus,
            input=self._choose_input(member),
            output=output,
            error=error,
            truncate=self._truncates(member),
            umask=member.spec.umask,
            prefix=member.prefix,
            runner_pid=os.getpid(),
            kill_wait_s=self.kill_wait_s,
            passes_on=self.passes_on and is_step,
            own_tmpdir=member.tmpdir,
            is_step=is_step,
            # It waits for no more than its pack has.
            together=min(
                job.start_together, self.pack.record.degree, len(self.pack.record.members)
            ),
            shares_cgroup=not is_step and not self.lone,
            places=places,
        )
        launch_file = f"{member.prefix}.launch"
        write_json(launch_file, asdict(launch))
        if is_held(self.pack.path, member.number):
            # See store.member_states: csub has held it before it could see this file.
            return False
        argv = build_wrapper_argv(sys.executable, launch_file)
        outer = self.pack.allocation.own_environment
        if is_step:
            argv = build_srun_argv(str(name), plan.host_memory_mb, argv)
            outer = environments.build_step_environment(outer)
        member.process = start_process(argv, outer, None if self.lone else f"{member.prefix}.log")
        return True

    def _choose_job_id(self, member: Member) -> str:
        """What SLURM_JOB_ID is in a member.

        A chain keeps the id of its first link, as a job that Slurm requeues does. One that runs
        alone has Slurm's, unless its call has printed another.
        """
        job = member.spec.job
        is_first = self.lone and not (self.pack.record.chain or job.has_joined)
        if job.job_id == REAL_ID or is_first:
            return self._real_id
        return job.own_id or member.name(self.pack.shown_id).job

    def begin_time(self, member: Member, at: float) -> dict[str, str]:
        """A running member's time begins only now.

        Args:
            member: The member.
            at: When, in seconds since the epoch.

        Returns:
            What is different in its environment.

        Raises:
            StateError: Its squeue and its scontrol cannot be told.
        """
        if self._has_shims:
            tell_later_start(self.pack.path / "members" / format_number(member.number), int(at))
        added = self._added | _describe_submission(member, self._added)
        return environments.compute_times(added, member.spec.plan, int(at))

    def _give_shims(
        self,
        member: Member,
        where: environments.MemberContext,
        alone: Mapping[str, str],
        composed: dict[str, str],
        outputs: tuple[str | None, str | None],
        *,
        covered: Sequence[str],
    ) -> None:
        """Lay out the member's shims, and complete its environment."""
        job, plan = member.spec.job, member.spec.plan
        submitted = self.pack.record if member.home is None else member.home
        folder = Path(where.run).parent
        bash_env = str(folder / "bash_env")
        composed.update(build_bash_variables(composed, where.shims, bash_env))
        composed[SET_VARIABLE] = environments.describe_own(alone, composed, job, where)
        real = (find_real_command(name, composed.get("PATH")) for name in SHIMMED)
        inside = build_inside(
            where,
            job,
            plan,
            real_id=self._real_id,
            submit_directory=member.spec.submit_directory or submitted.submit_directory,
            outputs=outputs,
        )
        if covered:
            inside["places"] = ":".join(covered)
        give_shims(
            folder,
            inside,
            render_bash_env(composed, where.job_id, where.shims, [*filter(None, real)]),
        )

    def _choose_outputs(self, member: Member) -> tuple[str, str | None]:
        job, values = member.spec.job, self._choose_pattern_values(member)
        return choose_output_paths(job.output, job.error, values, alone=member.spec.names_alone)

    def _truncates(self, member: Member) -> bool:
        """What lies in its output files goes; a later start of the same member keeps it."""
        job = member.spec.job
        if job.asks_open_mode:
            return job.truncate_output
        return not self.site_appends and member.record.starts == 0

    def _choose_input(self, member: Member) -> str | None:
        pattern = member.spec.job.input
        return pattern and expand_pattern(pattern, self._choose_pattern_values(member))

    def _choose_pattern_values(self, member: Member) -> PatternValues:
        job, name = member.spec.job, member.name(self.pack.shown_id)
        return PatternValues(
            job_id=member.spec.name_files_after(name.job),
            own_id=job.own_id or name.job,
            is_alone_in_it=job.is_alone_in_its_id,
            number=name.number,
            is_array=job.array_task is not None,
            name=job.name,
            node=self.pack.allocation.node.partition(".")[0] or socket.gethostname(),
            user=find_user_name(),
        )

    @staticmethod
    def _find_own_outputs() -> list[str]:
        """Where this process writes, which is where a lone member does."""
        found = []
        for descriptor in (1, 2):
            with contextlib.suppress(OSError):
                found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        return found

    def _make_tmpdir(self) -> str:
        """A new directory where Slurm or the site has temporary files.

        The name of a socket has 107 bytes at most, so it has few of its own.
        """
        while True:
            path = _name_directory(self._added.get("TMPDIR") or "/tmp")
            try:
                os.mkdir(path, 0o700)
            except FileExistsError:
                continue
            except OSError:
                # The wrapper tries it, too, and tells the member as slurmstepd does.
                pass
            return path

    def _choose_places(
        self,
        member: Member,
        where: environments.MemberContext,
        before: tuple[Mapping[str, str], ...],
        composed: Mapping[str, str],
    ) -> dict[str, Any] | None:
        """What is to be its own by its path, besides TMPDIR; None for nothing."""
        job, settings = member.spec.job, self.pack.settings
        choice = job.private_tmp or settings.private_tmp
        ids = (self.pack.allocation.environment.get("SLURM_JOB_ID", ""), where.job_id)
        patterns = settings.own_directories if ids[0] and not self.lone else ""
        has_tmp = member_places.wants_tmp(choice, self.pack.config, is_lone=self.lone)
        member.places = None
        if choice == "never" or not (has_tmp or patterns):
            return None
        own = where.tmpdir or self._make_tmpdir()
        directories = member_places.find_job_directories(patterns, find_user_name(), ids, own)
        member.tmpdir, member.places = own, tuple(source for _, _, source in directories)
        script = Path(where.run).with_name("script").read_bytes()
        used = [job.directory, *(os.path.dirname(path) for path, _ in member.outputs)]
        places = member_places.describe_places(
            own,
            directories,
            has_tmp=has_tmp,
            refused=member_places.find_obstacle(
                script, job.arguments, job.directory, has_tmp=has_tmp
            ),
            kept=[str(self.pack.state.root), *used],
            added=member_places.find_added(composed, *before),
        )
        if self._has_shims:
            path = composed.get("PATH")
            commands = member_places.find_commands(
                SHIMMED, partial(iterate_real_commands, path=path)
            )
            places |= bind_shims(self.pack.path, where.shims, sys.executable, commands)
        return places

    def _choose_port(self, number: int) -> int:
        """A port that is free now and belongs to no neighbour."""
        seed = "".join(filter(str.isdigit, self.pack.allocation.job_id))
        first = (int(seed or "0") * 97 + number) % len(PORTS)
        self._ports.pop(number, None)
        taken = set(self._ports.values())
        for offset in range(len(PORTS)):
            port = PORTS[(first + offset) % len(PORTS)]
            if port in taken:
                continue
            with socket.socket() as probe:
                try:
                    probe.bind(("", port))
                except OSError:
                    continue
            self._ports[number] = port
            if len(self._ports) > len(PORTS) // 2:
                # Those that were given first have long been bound, or are not wanted.
                del self._ports[next(iter(self._ports))]
            return port
        raise OSError("no free port between 12000 and 27999")

    def fall_back(self, member: Member, reason: str) -> bool:
        """Use plain processes from now on, if that is allowed; False if it is not."""
        if not self._may_fall_back or member.launcher != "srun":
            return False
        if self.launcher == "process":
            return True
        self.launcher = "process"
        self.pack.journal.write("fallback", wanted="srun", used="process", reason=reason)
        sys.stderr.write(
            f"csub: job steps do not work here ({reason}); members run as plain processes\n"
        )
        sys.stderr.flush()
        return True


def _name_directory(base: str) -> str:
    """A name that others cannot know before."""
    return f"{base}/cs{os.urandom(3).hex()}"


def _describe_submission(member: Member, added: Mapping[str, str]) -> dict[str, str]:
    """What Slurm says of the submission of a member that is not the pack's own."""
    home = member.home
    values = {
        "SLURM_SUBMIT_DIR": member.spec.submit_directory or (home.submit_directory if home else ""),
        "SLURM_SUBMIT_HOST": home.submit_host if home else "",
    }
    return {variable: text for variable, text in values.items() if variable in added and text}


def _measure_outputs(*paths: str | None, truncates: bool) -> tuple[tuple[str, int], ...]:
    """A member's output files, each with its size now; what is behind that is the member's."""
    found: dict[str, int] = {}
    for path in paths:
        if path is not None:
            found[path] = 0
            with contextlib.suppress(OSError):
                found[path] = 0 if truncates else os.stat(path).st_size
    return tuple(found.items())


# ---- Members whose wrappers have come up: their start is written down, and their time runs -------


@dataclass(eq=False, kw_only=True)
class StartCollector:
    """Notes the starts of members.

    Attributes:
        pack: The attempt of the pack.
        states: Writes their states.
        keeps_time: The runner keeps the members' wall limits; Slurm does it for a lone member.
        clients: Follows those that run under MPS.
    """

    pack: PackContext
    states: StateWriter
    keeps_time: bool
    clients: MpsClients

    def collect(self) -> None:
        """Note the members whose wrappers have come up."""
        for member in self.pack.members.with_process():
            self.pack.steps.run(f"the start of member {member.number}", partial(self.note, member))

    def note(self, member: Member) -> None:
        """Note the start of a member, if its wrapper has come up since the last look."""
        started = read_started(member) if member.is_starting else None
        if started is None:
            return
        plan, is_chain = member.spec.plan, self.pack.record.chain > 0
        member.pid = started["pid"]
        member.wrapper_pid = started["wrapper_pid"]
        place = self.pack.members.place_of(member.number)
        bound = place.choose_cpus(plan.cpus) if place else ()
        step = started["step"]
        if self.keeps_time:
            member.begin_time(time.monotonic())
        self.states.write(
            member,
            MemberState.RUNNING,
            starts=member.record.starts + 1,
            started_at=started["at"],
            ended_at=None,
            exit_code=None,
            node=self.pack.allocation.node,
            gpus=self.pack.allocation.gpus,
            cpus=bound,
            step=None if step is None else f"{self.pack.allocation.job_id}.{step}",
            # Members of a chain end with their link, of which Slurm tells how long it has left.
            wall_limit_s=plan.wall_limit_s if self.keeps_time or not is_chain else None,
            reason="",
            gpu=member.gpu,
            cause="",
            at_door=member.is_at_door,
            no_places=started.get("no_places", ""),
        )
        if reason := started.get("no_places", ""):
            self.pack.journal.write("no_places", member=member.number, reason=reason)
        if member.gpu is not None and member.gpu.is_under_mps:
            self.clients.watch(member)
        use = None if member.gpu is None else asdict(member.gpu)
        self.pack.journal.write("start", member=member.number, step=step, cpus=bound, gpu=use)

    def note_clients(self) -> None:
        """Write down which members have become MPS clients."""
        while self.clients.news:
            number, is_client = self.clients.news.popitem()
            member = self.pack.members.by_number.get(number)
            if member is not None and member.process is not None and member.gpu is not None:
                member.note_mps_client(is_client=is_client)
                self.states.write(member, member.record.state, gpu=member.gpu)
