"""What most commands begin with: settings, state, and one question to Slurm."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from slurm_colloc.errors import CollocError, NotFound, SlurmError, SlurmRefused, StateError
from slurm_colloc.model.late_definitions import dataclass, field
from slurm_colloc.model.member import ALL, LAST, Selection, SlurmJobState
from slurm_colloc.model.printable import escape_controls
from slurm_colloc.model.quantities import format_count
from slurm_colloc.ownership import build_refusal, give_rights_back, take_rights_of
from slurm_colloc.session.selection import Choice, is_of_job
from slurm_colloc.session.standard_streams import is_one_stream
from slurm_colloc.settings import Settings, load_settings
from slurm_colloc.slurm.choose_access import open_slurm
from slurm_colloc.slurm.slurm_commands import SlurmAccess, SlurmJob
from slurm_colloc.store.all_packs import State, StateReader, explain_unreadable, open_state

if TYPE_CHECKING:
    from slurm_colloc.report.member_views import (
        MemberView,
        PackView,
    )
    from slurm_colloc.submission.upkeep.sweep import OpenPack


_TOLD_MOST = 5


def say(text: str, *, styled: bool = False) -> None:
    """Write lines for people to standard output; line breaks in names are escaped already.

    Where they are styled they hold escape sequences of csub's own, and all else is harmless.
    """
    shown = text if styled else escape_controls(text, keep="\n")
    sys.stdout.write(shown if shown.endswith("\n") or not shown else f"{shown}\n")


def note(text: str, speaker: str = "csub") -> None:
    """Write one line to standard error, in the name of csub or of a command of Slurm's."""
    sys.stderr.write(f"{speaker}: {escape_controls(text)}\n")


@dataclass
class Session:
    """One call of csub.

    Attributes:
        settings: The settings.
        state: The state directory; a `State` where it is the caller's own, else it is only read.
        slurm: Slurm; it tells of the jobs of whose state that is.
        unreachable: Why Slurm could not be asked; None if it answered or was not needed.
        damaged: What is wrong with packs that cannot be read.
        open_packs: The packs that were open when Slurm was asked last.
        tells_upkeep: What has become of packs is told; not where a program reads it as an answer.
    """

    settings: Settings
    state: StateReader
    slurm: SlurmAccess
    unreachable: SlurmError | None = None
    damaged: list[StateError] = field(default_factory=list)
    open_packs: Sequence[OpenPack] = ()
    tells_upkeep: bool = field(default_factory=lambda: not is_one_stream())
    _noted: set[str] = field(default_factory=set)

    @classmethod
    def open(cls, *, user: str | None = None, asks_often: bool = False) -> Session:
        """Read the settings and find the state, to read it.

        Args:
            user: Whose state; empty for what the environment and the settings lead to. Where it is
                given the call looks at a state alone, and root does it with the owner's rights:
                see `ownership.take_rights_of`.
            asks_often: This call follows jobs until they end.

        Raises:
            SlurmUnreachable: The settings demand pyslurm, and it cannot be used.
            StateError: The state directory of that user may not be read, or the caller's own could
                be changed by another user.
            UsageProblem: The settings are wrong, or there is no such user.
        """
        give_rights_back()
        settings = load_settings(warn=note)
        from slurm_colloc.submission.plan.target_nodes import find_cluster

        if user:
            from slurm_colloc.session.selection import open_state_of

            state = open_state_of(user, settings, find_cluster(settings.state_path))
        else:
            # The answer is kept in the state, which has to be looked at before.
            state = open_state(settings.state_path)
            state.cluster = find_cluster(settings.state_path)
        uid = None if isinstance(state, State) else state.owner_uid
        if uid is not None and user is not None:
            take_rights_of(uid)
        return cls(settings, state, open_slurm(settings, asks_often=asks_often, uid=uid))

    @classmethod
    def open_own(cls, *, asks_often: bool = False) -> Session:
        """The same for a call that changes something.

        Raises:
            StateError: The state is that of another user.
        """
        session = cls.open(asks_often=asks_often)
        _ = session.own_state
        return session

    @property
    def own_state(self) -> State:
        """The state, to change it.

        Raises:
            StateError: It is that of another user.
        """
        if isinstance(self.state, State):
            return self.state
        raise build_refusal(self.state.root, self.state.owner_name)

    def tell_notices(self) -> None:
        """Say, as sbatch would, what it said of jobs that it took."""
        for text in self.slurm.notices:
            note(text, "sbatch")
        self.slurm.notices.clear()

    def refresh(self, *, always_ask: bool = False) -> Mapping[str, SlurmJob] | None:
        """Ask Slurm once for all jobs, and bring the state up to date where it is the caller's own.

        Args:
            always_ask: Ask even if no pack is open.

        Returns:
            What squeue shows; None where Slurm was not asked or did not answer.
        """
        # Imported here, as in the methods below: a first submission needs none.
        from slurm_colloc.submission.upkeep.sweep import foresee, look_at_open_packs, sweep

        jobs: Mapping[str, SlurmJob] | None = None
        packs = self.open_packs = look_at_open_packs(self.state, self.damaged)
        if always_ask or any(pack.record and not pack.record.local for pack in packs):
            try:
                jobs = self.slurm.list_jobs()
            except SlurmError as error:
                self.unreachable = error
        if not isinstance(self.state, State):
            return None if jobs is None else self._check_seen(foresee(packs, jobs, self.slurm))
        if packs or self.state.list_making():
            for text in sweep(self.state, self.slurm, packs, jobs, self.settings):
                self._note_once(text)
            if jobs is not None and self._has_grown():
                with contextlib.suppress(SlurmError):
                    jobs = self.slurm.list_jobs()
        return jobs

    def _check_seen(self, jobs: Mapping[str, SlurmJob]) -> Mapping[str, SlurmJob] | None:
        """None where Slurm hides the jobs of others: that it shows none then says nothing."""
        asked = (pack.job_id for pack in self.open_packs if pack.record and not pack.record.local)
        states = (jobs[name].state for name in asked if name is not None)
        if SlurmJobState.ABSENT not in states or os.geteuid() in (
            0,
            self.state.owner_uid,
        ):
            return jobs
        with contextlib.suppress(SlurmError):
            if "jobs" not in self.slurm.read_config().get("PrivateData", "").split(","):
                return jobs
        self.unreachable = SlurmRefused("Slurm hides the jobs of other users (PrivateData)")
        return None

    def _has_grown(self) -> bool:
        """Packs have come since Slurm was asked: the sweep has submitted members again."""
        looked_at = {pack.pack_id for pack in self.open_packs}
        return not looked_at.issuperset(self.state.list_open())

    @contextlib.contextmanager
    def reading(self, view: PackView) -> Iterator[None]:
        """Read more of a pack; of another user's, what cannot be read is told at the end.

        Raises:
            StateError: It cannot be read, and is the caller's own.
        """
        try:
            yield
        except (OSError, StateError) as error:
            if isinstance(self.state, State):
                raise
            self.damaged.append(
                explain_unreadable(self.state.pack_path(view.record.pack_id), error)
            )

    def survey_open(self) -> list[PackView]:
        """All packs that were open when the call began."""
        jobs = self.refresh()
        return self._survey_packs(self.state.list_open(), jobs, self.damaged)

    def survey_all(self) -> list[PackView]:
        """All packs that are kept."""
        jobs = self.refresh()
        return self._survey_packs(self.state.list_all(), jobs, self.damaged)

    def survey_changed_since(self, since: float) -> list[PackView]:
        """Packs that are open, or in which a member can have ended since then."""
        from slurm_colloc.report.ended_members import list_changed_since

        jobs = self.refresh()
        return self._survey_packs(list_changed_since(self.state, since), jobs, self.damaged)

    def survey_kept(self, left_out: Collection[str]) -> list[PackView]:
        """All packs that are kept but some."""
        jobs = self.refresh()
        ids = [pack_id for pack_id in self.state.list_all() if pack_id not in left_out]
        return self._survey_packs(ids, jobs, self.damaged)

    def _survey_packs(
        self,
        pack_ids: Sequence[str],
        jobs: Mapping[str, SlurmJob] | None,
        damaged: list[StateError] | None = None,
    ) -> list[PackView]:
        from slurm_colloc.report.member_survey import (
            survey_packs,
        )

        known = {pack.pack_id: pack.record for pack in self.open_packs}
        return survey_packs(self.state, pack_ids, jobs, damaged, known)

    def survey(
        self, chosen: Choice | Sequence[Selection], *, follow_all: bool = True
    ) -> list[tuple[PackView, list[MemberView]]]:
        """The selected members, by pack.

        A member that was submitted again in another pack is found there, with a note.

        Args:
            chosen: What was named, with or without filters.
            follow_all: Follow every member that moved; otherwise only those named by number.

        Raises:
            NotFound: There is no such pack or member.
        """
        choice = chosen if isinstance(chosen, Choice) else Choice(tuple(chosen))
        jobs = self.refresh()
        picked: dict[str, tuple[PackView, dict[int, MemberView]]] = {}
        for selection in choice.selections:
            for view, members in self._find(selection, choice, jobs):
                for member in members:
                    where, found = view, member
                    if follow_all or selection.ranges is not None:
                        where, found = self._follow(view, member, jobs)
                    if choice.matches(found.state, found.name, found.parameters):
                        kept = picked.setdefault(where.record.pack_id, (where, {}))[1]
                        kept[found.place] = found
        if not picked and choice.is_filtered and not self._noted:
            note(f"no member matches {choice}")
            self._noted.add("")
        return [(view, [kept[n] for n in sorted(kept)]) for view, kept in picked.values()]

    def _find(
        self, selection: Selection, choice: Choice, jobs: Mapping[str, SlurmJob] | None
    ) -> list[tuple[PackView, list[MemberView]]]:
        """What one selector names, by pack."""
        if selection.job == ALL:
            ids = self.state.list_all() if choice.wants_ended else self.state.list_open()
            views = [
                view
                for view in self._survey_packs(ids, jobs, self.damaged)
                if not self.state.is_of_another(view.record)
            ]
            return [
                (view, [m for m in view.members if choice.wants_ended or not m.is_final])
                for view in views
            ]
        if selection.job == LAST:
            from slurm_colloc.report.member_survey import find_last

            last = find_last(self.state)
            selection = Selection(last.job, selection.ranges or last.ranges)
        selection = self.state.resolve(selection)
        # To change something takes all of them; to help another user, what can be read is shown.
        damaged = None if isinstance(self.state, State) else self.damaged
        views = self._survey_job(selection.job, jobs, damaged)
        if damaged and not views:
            raise damaged[0]
        takers = self.state.list_takers(selection.job)
        listed = [
            (view, [m for m in view.members if is_of_job(m, selection.job, view, takers)])
            for view in views
        ]
        packs = {
            view.record.index: view
            for view in views
            if view.is_numbered_pack and view.record.pack_id not in takers
        }
        for index, view in packs.items():
            if not view.members and selection.names(index):
                self._note_once(f"{view.job_id} has no members left: other packs took them over")
        known = {m.member.number for _, members in listed for m in members}
        for first, final in selection.ranges or ():
            is_pack = first == final and first in packs
            if not is_pack and not any(first <= number <= final for number in known):
                if damaged:
                    raise damaged[0]
                which = f"member {first}" if first == final else f"members {first}-{final}"
                raise NotFound(
                    f"job {selection.job} has no {which}",
                    hint=f"csub show {selection.job} lists its {len(known)} members",
                )
        named = [view.record.pack_id for index, view in packs.items() if selection.names(index)]
        # A pack in which csub has submitted joined jobs again has no others.
        has_own = any(not m.member.joined_as for _, members in listed for m in members)
        return [
            (
                view,
                [
                    m
                    for m in members
                    if selection.means(m.member) or view.record.pack_id in named or not has_own
                ],
            )
            for view, members in listed
        ]

    def _survey_job(
        self,
        job: str,
        jobs: Mapping[str, SlurmJob] | None,
        damaged: list[StateError] | None,
    ) -> list[PackView]:
        """The packs in which a job's members are; other members may be in them, too."""
        ids = self.state.find_packs(job)
        views = self._survey_packs(ids, jobs, damaged)
        if (now := self.state.find_packs(job)) != ids:
            # Another pack has just begun to take members over.
            views = self._survey_packs(now, jobs, damaged)
        return views

    def _note_once(self, text: str) -> None:
        if self.tells_upkeep and text not in self._noted:
            self._noted.add(text)
            note(text)

    def _follow(
        self, view: PackView, member: MemberView, jobs: Mapping[str, SlurmJob] | None
    ) -> tuple[PackView, MemberView]:
        """A member in the pack in which it was submitted again, or as it is."""
        from slurm_colloc.report.member_views import find_again, list_packs_to_follow

        while member.moved_to is not None:
            ids = list_packs_to_follow(self.state, member.moved_to)
            found = find_again(member, self._survey_packs(ids, jobs))
            if found is None:
                break
            self._note_once(f"{member.member} was submitted again as {found[1].member}")
            view, member = found
        return view, member


def freeze(found: Sequence[tuple[PackView, Sequence[MemberView]]]) -> list[Selection]:
    """Name these very members: what `all` means changes while one waits for them."""
    return Selection.of_each(member.member for _, members in found for member in members)


def tell_problems(session: Session) -> None:
    """Say what could not be asked or read; the exit status says so, too."""
    problems: list[CollocError] = []
    if session.unreachable is not None:
        note(f"error: states are as the packs last wrote them: {session.unreachable}")
        problems.append(session.unreachable)
    for text in describe_damaged(session):
        note(f"error: {text}")
    if problems := [*problems, *session.damaged]:
        sys.exit(problems[0].exit_code)


def tell_unreadable(session: Session) -> None:
    """The same for a command that is about named packs: of its own user's the others do not count.

    Those who help another user have to know what is left out.
    """
    if not isinstance(session.state, State):
        tell_problems(session)


def describe_damaged(session: Session) -> list[str]:
    """What is wrong with packs that cannot be read: a line each, of another user all in one."""
    texts = list(dict.fromkeys(map(str, session.damaged)))
    if isinstance(session.state, State) or not texts:
        return texts
    told = "; ".join(texts[:_TOLD_MOST])
    more = f"; and {len(texts) - _TOLD_MOST} more" if len(texts) > _TOLD_MOST else ""
    packs = format_count(len(texts), "pack")
    return [f"{packs} of {session.state.owner_name} cannot be read: {told}{more}"]
