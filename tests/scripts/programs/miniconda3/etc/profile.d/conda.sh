# Stands in for conda's shell hook, which cannot be installed by pip or apt: as there, a function
# evaluates what `conda shell.posix activate` prints, and environments have hooks of their own.
export CONDA_EXE="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/bin/conda"
export _CE_M='' _CE_CONDA=''

__conda_exe() (
    "$CONDA_EXE" "$@"
)

__conda_activate() {
    if [ -n "${CONDA_PS1_BACKUP:+x}" ]; then
        PS1="$CONDA_PS1_BACKUP"
        \unset CONDA_PS1_BACKUP
    fi
    \local ask_conda
    ask_conda="$(PS1="${PS1:-}" __conda_exe shell.posix "$@")" || \return
    \eval "$ask_conda"
    \hash -r
}

conda() {
    \local cmd="${1-__missing__}"
    case "$cmd" in
        activate | deactivate) __conda_activate "$@" ;;
        *) __conda_exe "$@" ;;
    esac
}

if [ -z "${CONDA_SHLVL+x}" ]; then
    \export CONDA_SHLVL=0
    PATH="$(dirname "$(dirname "$CONDA_EXE")")/condabin${PATH:+":${PATH}"}"
    \export PATH
fi
