"""`hydra/launcher=csub`: a multirun of hydra is one submission of csub, which packs itself.

hydra finds launchers by this namespace. Nothing heavy is imported here: each program that uses
hydra loads it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.config_store import ConfigStore
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, filter_overrides, run_job, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict

from slurm_colloc.slurm.option_table import OWN_OPTIONS, SBATCH_OPTIONS

if TYPE_CHECKING:
    from slurm_colloc.executor.function_executor import Job

log = logging.getLogger(__name__)

_NOT_FOR_A_SWEEP = frozenset({"array", "wait", "wrap", "json", "parsable", "quiet"})


class CsubLauncher(Launcher):
    """Runs the jobs of a multirun as members of packs.

    Args:
        folder: Where calls, results and outputs are written.
        **options: csub's options with `_` for `-`, see slurm_colloc.Executor.
    """

    def __init__(self, folder: str, **options: Any) -> None:
        self.folder = folder
        self.options = {
            name: OmegaConf.to_container(value, resolve=True)
            if OmegaConf.is_config(value)
            else value
            for name, value in options.items()
        }
        self.config: DictConfig | None = None
        self.task_function: TaskFunction | None = None
        self.hydra_context: HydraContext | None = None

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Take what hydra has read; hydra calls it."""
        self.config, self.task_function, self.hydra_context = config, task_function, hydra_context

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        """Submit all jobs as one submission, and wait for them.

        Returns:
            What each has returned; of one that failed, its exception is raised where hydra looks
            at the value, which it does when all have ended.

        Raises:
            CollocError: Nothing was submitted.
        """
        from slurm_colloc.executor.function_executor import Executor

        assert self.config is not None
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        executor = Executor(self.folder, **self.options)
        shown = [list(filter_overrides(overrides)) for overrides in job_overrides]
        numbers = range(initial_job_idx, initial_job_idx + len(job_overrides))
        calls = [
            _SweepCall(self, list(overrides), number, Singleton.get_state())
            for overrides, number in zip(job_overrides, numbers, strict=True)
        ]
        jobs: list[Job[JobReturn]] = []
        with executor.batch():
            # What csub shows as a member's arguments are its overrides.
            jobs = [executor.submit(call, *words) for call, words in zip(calls, shown, strict=True)]
        submission = jobs[0].member.job
        log.info("csub has submitted %d jobs as %s", len(jobs), submission)
        for number, words in zip(numbers, shown, strict=True):
            log.info("\t#%d : %s", number, " ".join(words))
        executor.wait(jobs)
        _tell_failures(jobs)
        return [
            _collect(job, overrides) for job, overrides in zip(jobs, job_overrides, strict=True)
        ]

    def run(
        self, overrides: list[str], number: int, singletons: Mapping[type, Singleton]
    ) -> JobReturn:
        """One job, in its member.

        Raises:
            BaseException: What the task function has raised, so that its member fails, too.
        """
        from slurm_colloc.submitit.auto_executor import JobEnvironment

        assert self.hydra_context is not None
        assert self.config is not None
        assert self.task_function is not None
        Singleton.set_state(dict(singletons))
        setup_globals()
        config = self.hydra_context.config_loader.load_sweep_config(self.config, overrides)
        with open_dict(config.hydra.job) as job:
            job.id, job.num = JobEnvironment().job_id, number
        ended = run_job(
            hydra_context=self.hydra_context,
            task_function=self.task_function,
            config=config,
            job_dir_key="hydra.sweep.dir",
            job_subdir_key="hydra.sweep.subdir",
        )
        # Where it has failed this raises.
        _ = ended.return_value
        return ended


class _SweepCall:
    """One job of a multirun as the Executor calls it."""

    def __init__(
        self,
        launcher: CsubLauncher,
        overrides: list[str],
        number: int,
        singletons: Mapping[type, Singleton],
    ) -> None:
        self.launcher, self.overrides = launcher, overrides
        self.number, self.singletons = number, singletons
        assert launcher.config is not None
        # The job's name: a task function is that of each program.
        self.__name__ = str(launcher.config.hydra.job.name)
        self.__qualname__ = self.__name__

    def __call__(self, *_words: str) -> JobReturn:
        return self.launcher.run(self.overrides, self.number, self.singletons)


def _collect(job: Job[JobReturn], overrides: Sequence[str]) -> JobReturn:
    error = job.exception()
    if error is None:
        return job.result()
    failed = JobReturn(overrides=list(overrides), status=JobStatus.FAILED)
    failed.return_value = error
    return failed


def _tell_failures(jobs: Sequence[Job[JobReturn]]) -> None:
    failed = [job for job in jobs if job.exception() is not None]
    if failed:
        log.error("%d of %d jobs did not complete:", len(failed), len(jobs))
    for job in failed:
        error = job.exception()
        log.error("\t%s : %s: %s", job.member, type(error).__name__, error)


def _build_node() -> dict[str, Any]:
    """A key for each option, so that hydra refuses those that csub does not have."""
    names = [option.name for option in (*SBATCH_OPTIONS, *OWN_OPTIONS) if option.alias_of is None]
    node: dict[str, Any] = {
        name.replace("-", "_"): None for name in names if name not in _NOT_FOR_A_SWEEP
    }
    return {
        "_target_": "hydra_plugins.csub_launcher.CsubLauncher",
        **node,
        "folder": "${hydra.sweep.dir}/.csub",
        "job_name": "${hydra.job.name}",
        "python": None,
        "setup": [],
        "array_parallelism": 0,
    }


ConfigStore.instance().store(
    group="hydra/launcher", name="csub", node=_build_node(), provider="csub"
)
