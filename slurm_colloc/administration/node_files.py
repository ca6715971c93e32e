"""The files that a node needs, put in place and taken away by root.

Also: which files a node needs; nothing is written here.

Every directory on the way is proven to be root's before anything is written, each file appears
whole, and what was written is remembered in a record next to the policy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from slurm_colloc import __version__
from slurm_colloc.administration.slurm_conf import HookPlan, Places
from slurm_colloc.errors import NodeError, StateError, failed_to
from slurm_colloc.host.system.directories import open_trusted
from slurm_colloc.model.late_definitions import dataclass
from slurm_colloc.resources import DataKind, data_path

# ---- Which files a node needs; nothing is written here -------------------------------------------


@dataclass(frozen=True)
class NodeFile:
    """One file, link or directory of a node.

    Args:
        path: As the node sees it.
        content: What it holds; None for a directory or link.
        mode: Its mode.
        target: What it leads to, for a link.
        is_kept: It is the site's to edit: one that is there is left as it is, also when the hooks
            are removed.
    """

    path: str
    content: str | None
    mode: int
    target: str = ""
    is_kept: bool = False

    @property
    def digest(self) -> str:
        """What tells this content from another."""
        return hashlib.sha256((self.content or "").encode()).hexdigest()


def build_node_files(places: Places, hooks: Sequence[HookPlan]) -> list[NodeFile]:
    """Say what a node needs, in the order in which it is written; reads the package's own files.

    Raises:
        NodeError: A hook has no place yet.
        StateError: slurm_colloc is not whole.
    """
    constants = build_constants(places)
    files = [
        NodeFile(places.etc_path, None, 0o755),
        NodeFile(os.path.dirname(places.run_path), None, 0o755),
        NodeFile(os.path.dirname(places.log_path), None, 0o750),
        _adapt(places, places.policy_path, "node.toml", is_kept=True),
        _adapt(places, places.logrotate_path, "logrotate"),
        _adapt(places, places.unit_path, "slurm_colloc-recover.service"),
        NodeFile(places.wants_path, None, 0o777, target=places.unit_path),
    ]
    # The epilog first: a prolog must never have run where nothing undoes it.
    for hook in sorted(hooks, key=lambda hook: hook.kind):
        if hook.problem:
            raise NodeError(hook.problem)
        directory = NodeFile(os.path.dirname(hook.path), None, 0o755)
        if directory not in files:
            files.append(directory)
        if hook.site_script:
            files.append(NodeFile(hook.site_link, None, 0o777, target=hook.site_script))
        text = render_hook(_read_data("hooks", f"{hook.kind}.sh"), constants)
        files.append(NodeFile(hook.path, text, 0o755))
    return files


def _adapt(places: Places, path: str, name: str, *, is_kept: bool = False) -> NodeFile:
    """A file of `site-config` as this node needs it."""
    text = replace_paths(_read_data("site-config", name), places)
    return NodeFile(path, text, 0o644, is_kept=is_kept)


def _read_data(kind: DataKind, name: str) -> str:
    return data_path(kind, name).read_text(encoding="utf-8")


_PLAIN_VALUE = re.compile(r"[A-Za-z0-9_./+@-]*")


def build_constants(places: Places) -> dict[str, str]:
    """What the constant lines of a hook say on this node."""
    return {
        "prefix": places.prefix_path,
        "run": places.run_path,
        "policy": places.policy_path,
        "driver": places.driver,
    }


def render_hook(text: str, constants: Mapping[str, str]) -> str:
    """Put constants into a hook script.

    Args:
        text: The script as it comes with slurm_colloc.
        constants: Values by name; each name has exactly one line `name=...` in the script.

    Raises:
        StateError: The script has no such line, or several.
        ValueError: A shell would read a value as something else.
    """
    for name, value in constants.items():
        if not _PLAIN_VALUE.fullmatch(value):
            raise ValueError(f"not a plain path: {value!r}")
        pattern = re.compile(rf"^{name}=.*$", re.MULTILINE)
        if len(pattern.findall(text)) != 1:
            raise StateError(
                f"the hook script has no single line {name}=...",
                hint="install slurm_colloc again",
            )
        text = pattern.sub(f"{name}={value}", text)
    return text


def read_constants(text: str) -> dict[str, str]:
    """The constants of an installed hook; without those that it lacks."""
    found = {}
    for name in ("prefix", "run", "policy", "driver"):
        match = re.search(rf"^{name}=(.*)$", text, re.MULTILINE)
        if match:
            found[name] = match[1]
    return found


def replace_paths(text: str, places: Places) -> str:
    """A file of `site-config` with this node's paths instead of the usual ones."""
    usual = Places()
    pairs = {
        usual.prefix_path: places.prefix_path,
        usual.policy_path: places.policy_path,
        usual.run_path: places.run_path,
        usual.log_path: places.log_path,
        usual.state_path: places.state_path,
    }
    pattern = re.compile("|".join(re.escape(path) for path in pairs))
    return pattern.sub(lambda match: pairs[match[0]], text)


# ---- The files that a node needs, put in place and taken away by root ----------------------------

SCHEMA = 1
_RECORD_DETAIL = "what was installed"


@dataclass(frozen=True)
class Step:
    """What happens to one file.

    Args:
        action: `write`, `replace`, `keep`, `same`, `link`, `directory` or `remove`.
        path: As the node sees it.
        detail: What it is, or why it is kept.
    """

    action: str
    path: str
    detail: str


def compare_files(places: Places, files: Sequence[NodeFile]) -> list[Step]:
    """Say what installing would do; changes nothing.

    Raises:
        NodeError: Something that is not a plain file stands in the way.
    """
    steps = []
    for file in files:
        here = places.here(file.path)
        try:
            status: os.stat_result | None = os.lstat(here)
        except FileNotFoundError:
            status = None
        except OSError as error:
            raise NodeError(f"cannot look at {here}: {os.strerror(error.errno or 0)}") from error
        steps.append(_compare(file, here, status))
    return steps


def _compare(file: NodeFile, here: str, status: os.stat_result | None) -> Step:
    if file.target:
        if status is None:
            return Step("link", file.path, file.target)
        if stat.S_ISLNK(status.st_mode) and os.readlink(here) == file.target:
            return Step("same", file.path, file.target)
        raise NodeError(f"{here} is there already and leads elsewhere", hint="move it away")
    if file.content is None:
        if status is None:
            return Step("directory", file.path, f"mode {file.mode:o}")
        if not stat.S_ISDIR(status.st_mode):
            raise NodeError(f"{here} is not a directory", hint="move it away")
        return Step("same", file.path, "directory")
    if status is None:
        return Step("write", file.path, f"mode {file.mode:o}")
    if not stat.S_ISREG(status.st_mode):
        raise NodeError(f"{here} is not a plain file", hint="move it away")
    if file.is_kept:
        return Step("keep", file.path, "the site's own")
    with open(here, "rb") as opened:
        same = opened.read() == file.content.encode()
    # Only root installs, and any user may ask what would be done.
    if same and stat.S_IMODE(status.st_mode) == file.mode and status.st_uid == 0:
        return Step("same", file.path, f"mode {file.mode:o}")
    return Step("replace", file.path, "it differs")


def compare_record(places: Places, files: Sequence[NodeFile], hooks: Sequence[HookPlan]) -> Step:
    """Say whether the record would be written anew; changes nothing.

    Raises:
        StateError: The one that is there cannot be read.
    """
    before = read_record(places)
    if before is None:
        return Step("write", places.record_path, _RECORD_DETAIL)
    record = _build_record(places, files, hooks, before, before.get("directories", ()))
    return Step("same" if record == before else "replace", places.record_path, _RECORD_DETAIL)


def install_files(places: Places, files: Sequence[NodeFile], hooks: Sequence[HookPlan]) -> None:
    """Put the files in place, and remember them; what is as it should be is not written again.

    Raises:
        NodeError: Another user could exchange what is written, or a file stands in the way.
        StateError: It cannot be written.
    """
    steps = compare_files(places, files)
    before = read_record(places)
    made = set((before or {}).get("directories", ()))
    for file, step in zip(files, steps, strict=True):
        with failed_to("change", places.here(file.path)):
            if step.action == "directory":
                made |= set(_make_directories(places, file))
            elif step.action == "link":
                made |= set(_make_directories(places, NodeFile(_parent(file), None, 0o755)))
                with opened_directory(places.here(_parent(file))) as parent:
                    os.symlink(file.target, os.path.basename(file.path), dir_fd=parent)
            elif step.action in ("write", "replace"):
                made |= set(_make_directories(places, NodeFile(_parent(file), None, 0o755)))
                write_whole(places.here(file.path), (file.content or "").encode(), file.mode)
    record = _build_record(places, files, hooks, before or {}, made)
    if record != before:
        with failed_to("change", places.here(places.record_path)):
            data = json.dumps(record, indent=2).encode() + b"\n"
            write_whole(places.here(places.record_path), data, 0o644)


def _build_record(
    places: Places,
    files: Sequence[NodeFile],
    hooks: Sequence[HookPlan],
    before: Mapping[str, Any],
    made: Iterable[str],
) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "version": __version__,
        "prefix": places.prefix_path,
        "run": places.run_path,
        "policy": places.policy_path,
        "hooks": {hook.kind: hook.path for hook in hooks},
        "hooks_directory": places.hooks,
        "site_scripts": {hook.kind: hook.site_script for hook in hooks if hook.site_script}
        or before.get("site_scripts", {}),
        "files": {
            file.path: file.digest
            for file in files
            if file.content is not None and not file.is_kept
        },
        "links": {file.path: file.target for file in files if file.target},
        "directories": sorted(made),
    }


def read_record(places: Places) -> dict[str, Any] | None:
    """What was installed; None where nothing was.

    Raises:
        StateError: It cannot be read.
    """
    path = places.here(places.record_path)
    try:
        with open(path, "rb") as file:
            value = json.loads(file.read())
        if value["schema"] != SCHEMA:
            raise StateError(f"{path} is of another version", hint="use that one")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"cannot read {path}: {os.strerror(error.errno or 0)}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise StateError(f"{path} is damaged ({error})") from error
    return dict(value)


def plan_file_removal(places: Places, record: dict[str, Any]) -> list[Step]:
    """Say what removing takes away, prolog first: no job may get what nothing undoes."""
    hooks = [record["hooks"][kind] for kind in ("prolog", "epilog") if kind in record["hooks"]]
    rest = [path for path in record["files"] if path not in hooks]
    return [
        Step("remove", path, "link" if path in record["links"] else "file")
        for path in hooks + list(record["links"]) + rest
        if os.path.lexists(places.here(path))
    ]


def remove_files(places: Places, record: dict[str, Any]) -> None:
    """Take away what was installed; the policy and the log stay.

    Raises:
        StateError: A file cannot be removed.
    """
    for step in plan_file_removal(places, record):
        here = places.here(step.path)
        with failed_to("change", here), opened_directory(os.path.dirname(here)) as parent:
            os.unlink(os.path.basename(here), dir_fd=parent)
    with failed_to("change", places.here(places.record_path)):
        os.unlink(places.here(places.record_path))
    for path in sorted(record["directories"], key=len, reverse=True):
        # One that holds something (the policy, the log, a file of the site) stays.
        with contextlib.suppress(OSError):
            os.rmdir(places.here(path))


def _parent(file: NodeFile) -> str:
    return os.path.dirname(file.path)


def _make_directories(places: Places, file: NodeFile) -> list[str]:
    """Make a directory and its parents; those that were made, as the node sees them."""
    missing = []
    path = file.path
    while path not in ("", "/") and not os.path.isdir(places.here(path)):
        missing.append(path)
        path = os.path.dirname(path)
    made = []
    for missed in reversed(missing):
        here = places.here(missed)
        # The hooks look again whose the log's directory is, each time that they write there.
        is_log = missed == os.path.dirname(places.log_path)
        with opened_directory(os.path.dirname(here), may_be_a_groups=is_log) as parent:
            name = os.path.basename(here)
            os.mkdir(name, 0o700, dir_fd=parent)
            os.chmod(name, file.mode if missed == file.path else 0o755, dir_fd=parent)
        made.append(missed)
    return made


# No pattern such as `*` matches it: slurmd may read a directory of hooks at any moment.
_TEMPORARY = ".slurm_colloc."


@contextlib.contextmanager
def opened_directory(directory: str, *, may_be_a_groups: bool = False) -> Iterator[int]:
    """A directory that no other user can exchange; what leads to it may be a link.

    Args:
        directory: Its path.
        may_be_a_groups: Its group may write in it, as in Ubuntu's /var/log.

    Raises:
        NodeError: Someone else could.
        OSError: It cannot be opened.
    """
    descriptor = open_trusted(os.path.realpath(directory), last_may_be_a_groups=may_be_a_groups)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def write_whole(path: str, data: bytes, mode: int) -> None:
    """Write a file that is never seen half-written.

    Args:
        path: The file, in a directory that is there.
        data: What it is to hold.
        mode: Its mode, whatever the umask is.

    Raises:
        NodeError: Another user could exchange what is written.
        OSError: It cannot be written; the one before is still there.
    """
    name = os.path.basename(path)
    temporary = f"{_TEMPORARY}{name}.{os.getpid()}"
    with opened_directory(os.path.dirname(path)) as parent:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=parent)
        try:
            descriptor = os.open(temporary, flags, 0o600, dir_fd=parent)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(descriptor, mode)
                os.fsync(descriptor)
            os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary, dir_fd=parent)
            raise
