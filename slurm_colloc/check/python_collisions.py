"""Finds in a Python program what would collide when it shares a GPU; pure.

Also: output files with a constant name, which several members would write at once.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType

from slurm_colloc.check.collisions import (
    OWN_NAME_IN_PYTHON,
    ScriptFinding,
    Severity,
    build_finding,
    port_finding,
)
from slurm_colloc.check.python_guards import find_python_guards
from slurm_colloc.check.python_strings import (
    PythonReader,
    check_memory_calls,
    check_memory_variable,
    environment_name,
    find_preallocation,
    name_of,
    render_part,
    show_parts,
)
from slurm_colloc.check.shell_reading import (
    TCP_ADDRESS,
    Assignment,
    Command,
    Kind,
    ShellScript,
    WordPart,
    find_clock,
    find_job_id,
    literal_of,
    pattern_of,
    tells_members_apart,
)
from slurm_colloc.model.late_definitions import late_pattern, replace

# ---- Output files with a constant name, which several members would write at once; pure ----------

SHARED_OUTPUT = "shared-output"

_SECOND = late_pattern(r"(^|\.)(torch\.save|joblib\.dump|safe_save_file|save_file)$")
"""What is saved comes first, where to second."""

_FIRST = late_pattern(
    r"(^|\.)((np|numpy)\.save(z|z_compressed|txt)?|to_csv|to_parquet|to_pickle|to_json|to_hdf"
    r"|savefig|save_pretrained|save_weights|save_checkpoint|save_model)$"
)
_OWNER = late_pattern(r"\.(write_text|write_bytes)$")
_PATH_KEYWORDS = ("f", "file", "filename", "fname", "path", "path_or_buf", "filepath", "file_path")
_CHANGES_DIRECTORY = late_pattern(r"(^|\.)chdir$")
_ELSEWHERE = late_pattern(r"^(/tmp|/var/tmp|/dev|/proc)(/|$)|://")
_TRUNCATING = frozenset({">", ">|", "&>"})


def find_python_outputs(tree: ast.AST, reader: PythonReader) -> Iterator[ScriptFinding]:
    """Files that a program writes under a constant name; none where it changes its directory.

    Args:
        tree: The program.
        reader: Has learned what the program assigns.
    """
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    # Hydra may give each run a directory.
    if "hydra" in reader.modules or any(_CHANGES_DIRECTORY.search(name_of(c.func)) for c in calls):
        return
    for call in calls:
        target = _find_target(call)
        if target is None:
            continue
        parts = reader.parts_of(target)
        if _is_constant_path(parts):
            yield build_finding(
                SHARED_OUTPUT, reader.file, parts[0].line, show_parts(parts), own=OWN_NAME_IN_PYTHON
            )


def _find_target(call: ast.Call) -> ast.expr | None:
    """The path that a call writes to; None for one that writes none, or appends."""
    name = name_of(call.func)
    keywords = {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    if name in ("open", "io.open"):
        mode = call.args[1] if len(call.args) > 1 else keywords.get("mode")
        writes = isinstance(mode, ast.Constant) and re.search("[wx]", str(mode.value))
        return (call.args[0] if call.args else keywords.get("file")) if writes else None
    if _OWNER.search(name) and isinstance(call.func, ast.Attribute):
        return call.func.value
    named = next((keywords[word] for word in _PATH_KEYWORDS if word in keywords), None)
    if _SECOND.search(name):
        return call.args[1] if len(call.args) > 1 else named
    if _FIRST.search(name):
        return call.args[0] if call.args else named
    return None


def _is_constant_path(parts: Sequence[WordPart]) -> bool:
    text = literal_of(parts)
    # `{}` of a format whose arguments are not known.
    is_known = text is not None and "\0" not in text and text not in ("", "None")
    return is_known and not _ELSEWHERE.search(text or "")


def find_shell_outputs(script: ShellScript, file: str) -> Iterator[ScriptFinding]:
    """Files that a script truncates under a constant name."""
    for step in script.steps:
        if not isinstance(step, Command):
            continue
        for redirect in step.redirects:
            text = redirect.target.literal
            is_file = text is not None and text != "-" and not text.isdigit()
            if redirect.operator in _TRUNCATING and is_file and not _ELSEWHERE.search(text or ""):
                yield build_finding(SHARED_OUTPUT, file, redirect.target.line, f"> {text}")


def changes_directory(script: ShellScript) -> bool:
    """A script may run its programs in a directory of each member's own."""
    for step in script.steps:
        if isinstance(step, Assignment) or not step.words:
            continue
        name, *others = step.words
        if name.literal in ("cd", "pushd") and any(word.literal is None for word in others):
            return True
    return False


def settle_outputs(findings: Iterable[ScriptFinding], *, is_array: bool) -> list[ScriptFinding]:
    """How constant names count: jobs that are no array may differ in their directories."""
    if is_array:
        return list(findings)
    return [
        replace(
            finding,
            why="jobs that run in one directory would all write this file",
            level=Severity.NOTE,
        )
        if finding.kind == SHARED_OUTPUT
        else finding
        for finding in findings
    ]


# ---- Finds in a Python program what would collide when it shares a GPU; pure ---------------------

_NAMING = late_pattern(r"(?i)(dir|path|out|log|file|name|version|ckpt|checkpoint|prefix|root)")
_TALKERS = late_pattern(
    r"(^|\.)(print|debug|info|warning|warn|error|exception|critical|log|join|format|write|append"
    r"|get|getenv|add_argument|basicConfig|update|strftime|strptime|split|replace|set_description"
    r"|init|seed|manual_seed|run|call|check_call|check_output|system|Popen|getLogger)$"
)
_PATHS = late_pattern(r"(^|\.)(Path|PurePath|open|makedirs|mkdir|SummaryWriter|FileHandler)$")
_WRITERS = late_pattern(
    r"(^|\.)(makedirs|mkdir|save|savez|savetxt|dump|to_csv|to_parquet|savefig|write_text"
    r"|write_bytes|touch|FileHandler|SummaryWriter|FileLock|SoftFileLock|save_pretrained)$"
)
_SERVERS = late_pattern(r"(?i)(connect|client|session|request|mysql|psycopg|redis)")
# A base folder does not tell members apart; nearly everything else that varies may.
_BASE = late_pattern(r"(?i)(dir|path|root|out|base|log|folder|home|work|user|project|ckpt)")
_HERE = ("", "localhost", "127.0.0.1", "0.0.0.0", "::")
_SHARED = late_pattern(r"^(/tmp|/var/tmp|/dev/shm)/+[^/\0]")


def find_python_collisions(
    text: str,
    file: str,
    *,
    first_line: int = 1,
    arguments: tuple[str, ...] = (),
    environment: Mapping[str, str | None] = MappingProxyType({}),
) -> list[ScriptFinding]:
    """What in a program would collide.

    Args:
        text: The program.
        file: What the user calls it.
        first_line: The line of `file` where it begins.
        arguments: What it is called with, as far as it is known.
        environment: The variables that it is started with; None for a value that is not known.

    Raises:
        SyntaxError: It is no Python of this interpreter's.
    """
    tree = ast.parse(text)
    checker = _Checker(file, first_line - 1, arguments)
    for node in ast.walk(tree):
        checker.learn(node)
    found = [finding for node in ast.walk(tree) for finding in checker.check(node)]
    found += find_preallocation(tree, checker, environment)
    return [*found, *find_python_outputs(tree, checker), *find_python_guards(tree, checker)]


class _Checker(PythonReader):
    """Looks at each node of a program of which everything is known."""

    def check(self, node: ast.AST) -> Iterator[ScriptFinding]:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                name = environment_name(target) if isinstance(target, ast.Subscript) else None
                if name is not None:
                    yield from self.check_variable(name, node.value, self.line(target))
        elif isinstance(node, ast.Call):
            yield from self.check_update(node)
            yield from self.check_ports(node)
            yield from self.check_names(node)
            yield from self.check_commands(node)
            yield from check_lightning(self, node)
            yield from check_memory_calls(self, node)
        elif isinstance(node, ast.FunctionDef):
            yield from check_hydra(self, node)

    def check_update(self, node: ast.Call) -> Iterator[ScriptFinding]:
        """`os.environ.update({...})` and `os.putenv(...)`."""
        function = name_of(node.func)
        pairs: list[tuple[ast.expr | None, ast.expr]] = []
        if function in ("os.environ.update", "environ.update"):
            pairs += [(ast.Constant(k.arg), k.value) for k in node.keywords if k.arg]
            for argument in node.args:
                if isinstance(argument, ast.Dict):
                    pairs += zip(argument.keys, argument.values, strict=True)
        elif function == "os.putenv" and len(node.args) == 2:
            pairs.append((node.args[0], node.args[1]))
        for key, value in pairs:
            if isinstance(key, ast.Constant):
                yield from self.check_variable(str(key.value), value, self.line(node))

    def check_variable(self, name: str, value: ast.expr, line: int) -> Iterator[ScriptFinding]:
        """A variable of the environment is set."""
        parts = self.parts_of(value)
        what = f'os.environ["{name}"] = {ast.unparse(value)}'
        if name == "CUDA_VISIBLE_DEVICES":
            refers = any(part.text == name for part in parts)
            if not refers and literal_of(parts) not in ("", "-1"):
                yield build_finding("cuda-visible-devices", self.file, line, what)
        elif name in ("MASTER_PORT", "PET_MASTER_PORT"):
            yield from self.port(parts, what, line)
        else:
            yield from check_memory_variable(self.file, line, what, name, parts)

    def port(self, parts: tuple[WordPart, ...], what: str, line: int) -> Iterator[ScriptFinding]:
        if tells_members_apart(parts):
            return
        text = literal_of(parts)
        if text:
            if text.isdigit() and int(text):
                yield port_finding(self.file, line, what, of_job=False)
        elif find_job_id(parts) is not None:
            yield port_finding(self.file, line, what, of_job=True)

    def check_ports(self, node: ast.Call) -> Iterator[ScriptFinding]:
        name = name_of(node.func)
        line, what = self.line(node), ast.unparse(node)
        keywords = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        if name.endswith((".bind", "HTTPServer", "TCPServer")):
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Tuple) and len(first.elts) == 2:
                yield from self.port(self.parts_of(first.elts[1]), what, line)
        elif name.endswith("add_argument"):
            yield from self.check_argument(node, keywords)
        elif not _SERVERS.search(name) and not self.is_elsewhere(keywords):
            for keyword in ("port", "master_port", "server_port", "main_process_port"):
                if keyword in keywords:
                    yield from self.port(self.parts_of(keywords[keyword]), what, line)
        method = keywords.get("init_method")
        if method is not None:
            text = pattern_of(self.parts_of(method))
            if TCP_ADDRESS.match(text):
                yield port_finding(self.file, line, f"init_method={text}", of_job=False)

    def check_argument(
        self, node: ast.Call, keywords: dict[str, ast.expr]
    ) -> Iterator[ScriptFinding]:
        """A port as an option's default, unless the command line gives another."""
        flags = [a.value for a in node.args if isinstance(a, ast.Constant)]
        names = [str(flag) for flag in flags if re.fullmatch(r"-{0,2}(\w+[_-])*port", str(flag))]
        if "default" not in keywords or not flags:
            return
        given = any(
            argument.partition("=")[0] in [str(flag) for flag in flags]
            for argument in self.arguments
        )
        parts = self.parts_of(keywords["default"])
        if given:
            return
        if TCP_ADDRESS.match(show_parts(parts)):
            what = f"{flags[0]!s} defaults to {show_parts(parts)}"
            yield port_finding(self.file, self.line(node), what, of_job=False)
        elif names:
            yield from self.port(
                parts, f"{names[0]} defaults to {show_parts(parts)}", self.line(node)
            )

    def is_elsewhere(self, keywords: dict[str, ast.expr]) -> bool:
        """The call names another machine: it is a client's."""
        for name in ("host", "hostname", "address", "server"):
            value = keywords.get(name)
            if value is not None:
                return literal_of(self.parts_of(value)) not in _HERE
        return False

    def check_names(self, node: ast.Call) -> Iterator[ScriptFinding]:
        name = name_of(node.func)
        values: list[tuple[str, ast.expr]] = [("", argument) for argument in node.args]
        values += [(keyword.arg or "", keyword.value) for keyword in node.keywords]
        yield from self.check_temporary(node, name)
        if _TALKERS.search(name) and not _PATHS.search(name):
            return
        for keyword, value in values:
            parts = self.parts_of(value)
            pattern = pattern_of(parts)
            is_name = (
                "/" in pattern
                or bool(_PATHS.search(name) or _WRITERS.search(name))
                or bool(keyword and _NAMING.search(keyword))
                or re.search(r"\.(pt|pth|ckpt|txt|log|csv|json|npz|npy|pkl|db)$", pattern)
            )
            if not is_name or "://" in pattern:
                continue
            yield from self.name(parts)

    def name(self, parts: tuple[WordPart, ...]) -> Iterator[ScriptFinding]:
        if tells_members_apart(parts):
            return
        top = [part for part in parts if part.kind is not Kind.TEXT]
        job_id = find_job_id([part for part in top if part.kind is not Kind.SUM])
        clock = find_clock(top)
        if job_id is not None:
            yield build_finding(
                "job-id-path", self.file, job_id.line, show_parts(parts), own=OWN_NAME_IN_PYTHON
            )
        elif clock is not None:
            others = [p for p in top if p.kind is Kind.UNKNOWN and not find_clock([p])]
            if all(_BASE.search(part.text) for part in others):
                yield build_finding(
                    "timestamp-path",
                    self.file,
                    clock.line,
                    show_parts(parts),
                    own=OWN_NAME_IN_PYTHON,
                )

    def check_temporary(self, node: ast.Call, name: str) -> Iterator[ScriptFinding]:
        target: ast.expr | None = None
        if name in ("open", "io.open"):
            mode = node.args[1] if len(node.args) > 1 else None
            mode = next((k.value for k in node.keywords if k.arg == "mode"), mode)
            if isinstance(mode, ast.Constant) and re.search("[wax+]", str(mode.value)):
                target = node.args[0] if node.args else None
        elif _WRITERS.search(name) and isinstance(node.func, ast.Attribute):
            # The path is the owner (`Path(...).mkdir()`), or one of the arguments.
            candidates = [node.func.value, *node.args, *(k.value for k in node.keywords)]
            target = next((c for c in candidates if self.is_temporary(c)), None)
        elif _WRITERS.search(name):
            target = next((c for c in node.args if self.is_temporary(c)), None)
        elif name == "sqlite3.connect" and node.args:
            target = node.args[0]
        if target is not None and self.is_temporary(target):
            parts = self.parts_of(target)
            yield build_finding("fixed-temporary-file", self.file, parts[0].line, show_parts(parts))

    def is_temporary(self, node: ast.expr) -> bool:
        return bool(_SHARED.match(literal_of(self.parts_of(node)) or ""))

    def check_commands(self, node: ast.Call) -> Iterator[ScriptFinding]:
        """`subprocess.run(["scontrol", "requeue", ...])`, `os.system("pkill python")`."""
        name = name_of(node.func)
        if not re.search(r"(^|\.)(run|call|check_call|check_output|Popen|system)$", name):
            return
        if not node.args:
            return
        first = node.args[0]
        values = first.elts if isinstance(first, ast.List | ast.Tuple) else [first]
        texts = [
            "".join(render_part(part) for part in self.parts_of(value)) or "''" for value in values
        ]
        command = " ".join(texts)
        if re.match(r"^scontrol requeue \S", command) and find_job_id(self.parts_of(first)):
            yield self.find("own-job-command", node, command)
        elif texts[0] in ("bash", "sh") or " " not in command:
            return
        else:
            yield from self.check_shell(command, self.line(node))

    def check_shell(self, command: str, line: int) -> Iterator[ScriptFinding]:
        from slurm_colloc.check.shell_collisions import find_shell_collisions
        from slurm_colloc.check.shell_reading import parse_shell

        kinds = (
            "kill-by-name", "ends-daemons", "gpu-settings", "mps-control", "slurm-command-by-path",
        )  # fmt: skip
        for finding in find_shell_collisions(parse_shell(command), self.file):
            if finding.kind in kinds:
                yield replace(finding, line=line)


_LIGHTNING = ("lightning", "pytorch_lightning")


def check_lightning(reader: PythonReader, node: ast.Call) -> Iterator[ScriptFinding]:
    """Lightning numbers the folders of its runs by looking which are there."""
    if not reader.modules & set(_LIGHTNING):
        return
    name = name_of(node.func).rpartition(".")[2]
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if None in keywords:
        return
    advice = f"give it version={OWN_NAME_IN_PYTHON}"
    if name == "Trainer":
        logger = keywords.get("logger")
        has_own = logger is not None and not (
            isinstance(logger, ast.Constant) and logger.value is True
        )
        root = keywords.get("default_root_dir")
        if not has_own and (root is None or reader.is_fixed(root)):
            yield reader.find(
                "default-directory",
                node,
                "Trainer(...) writes lightning_logs/version_J of the job id J",
                advice="give it a default_root_dir of its own, or a logger with a version",
                by_job_id=True,
            )
    elif name in ("CSVLogger", "TensorBoardLogger"):
        path = next((keywords[k] for k in ("save_dir",) if k in keywords), None)
        path = path or (node.args[0] if node.args else None)
        has_own = "version" in keywords or "sub_dir" in keywords
        label = keywords.get("name") or (node.args[1] if len(node.args) > 1 else None)
        if not has_own and reader.is_fixed(path) and reader.is_fixed(label):
            what = f"{name}(...) writes version_N"
            yield reader.find("default-directory", node, what, advice=advice)


def check_hydra(reader: PythonReader, node: ast.FunctionDef) -> Iterator[ScriptFinding]:
    """Hydra names the folders of its runs by the second."""
    if "hydra" not in reader.modules:
        return
    for decorator in node.decorator_list:
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if name_of(call) not in ("hydra.main", "main"):
            continue
        is_sweep = any(text in ("-m", "--multirun") for text in reader.arguments)
        key, folder = ("sweep", "multirun") if is_sweep else ("run", "outputs")
        if any(text.startswith(f"hydra.{key}.dir=") for text in reader.arguments):
            continue
        yield reader.find(
            "default-directory",
            decorator,
            f"@hydra.main writes {folder}/DATE/TIME",
            advice=f"call it with 'hydra.{key}.dir={folder}/${{oc.env:SLURM_COLLOC_NAME}}'",
        )
