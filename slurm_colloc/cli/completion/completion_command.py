"""`csub --install-completion`, `csub --show-completion`, and what the shells' scripts call."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.cli.completion.candidates import list_candidates
from slurm_colloc.errors import StateError, UsageProblem

COMPLETE = "--complete-words"
"""Prints what may stand in place of the last of the words that follow, a line each."""

_BASH = """\
# bash completion of csub, made by csub --install-completion.
_csub() {
    local IFS=$'\\n'
    COMPREPLY=($(csub --complete-words "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
    # A name that a value follows.
    [[ ${COMPREPLY[0]} != *= ]] || compopt -o nospace 2>/dev/null
}
complete -o default -o bashdefault -F _csub csub
"""
_ZSH = """\
#compdef csub
# zsh completion of csub, made by csub --install-completion.
_csub() {
    local -a found
    found=("${(@f)$(csub --complete-words "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    # A value follows a name that ends in =.
    if [[ -z $found[1] ]]; then _files
    elif [[ $found[1] == *= ]]; then compadd -S '' -a found
    else compadd -a found; fi
}
# As a file of fpath this is the body of the function, called for the first completion.
if [[ $funcstack[1] == _csub ]]; then _csub; else compdef _csub csub; fi
"""
_FISH = """\
# fish completion of csub, made by csub --install-completion.
function __csub_words
    set -l words (commandline -opc) (commandline -ct)
    csub --complete-words $words[2..-1] 2>/dev/null
end
complete -c csub -a '(__csub_words)'
"""
SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}

_PLACES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/csub"),
    "zsh": ("XDG_DATA_HOME", ".local/share", "zsh/site-functions/_csub"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/csub.fish"),
}


def run_completion(argv: Sequence[str]) -> int:
    """Do what one of the options of completion asks; the exit status."""
    option, *words = argv
    if option == COMPLETE:
        for text in list_candidates(words, _find_state()):
            sys.stdout.write(f"{text}\n")
        return 0
    shell = choose_shell(words)
    if option == "--show-completion":
        sys.stdout.write(SCRIPTS[shell])
        return 0
    path = install(shell)
    sys.stdout.write(f"The completion of csub for {shell} is in {path}; new shells have it.\n")
    if shell == "zsh":
        sys.stdout.write(f"~/.zshrc needs, before compinit: fpath=({path.parent} $fpath)\n")
    return 0


def choose_shell(words: Sequence[str]) -> str:
    """The shell that is named, or the user's.

    Raises:
        UsageProblem: It is none of those that csub completes in.
    """
    shell = words[0] if words else os.path.basename(os.environ.get("SHELL", ""))  # noqa: PTH119
    if shell not in SCRIPTS or len(words) > 1:
        raise UsageProblem(
            f"there is no completion for {shell or 'an unknown shell'}",
            hint=f"csub --install-completion {'|'.join(SCRIPTS)}",
        )
    return shell


def install(shell: str) -> Path:
    """Write the script of a shell to where it looks; the file.

    Raises:
        StateError: It cannot be written.
    """
    variable, usual, name = _PLACES[shell]
    path = Path(os.environ.get(variable) or Path.home() / usual, name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.tmp{os.getpid()}")
        temporary.write_text(SCRIPTS[shell], encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise StateError(f"cannot write {path}: {os.strerror(error.errno or 0)}") from error
    return path


def _find_state() -> Path | None:
    from slurm_colloc.settings_files import find_state_path

    try:
        return find_state_path(os.environ)
    except Exception:  # noqa: BLE001 - a shell wants candidates, whatever is wrong
        return None
