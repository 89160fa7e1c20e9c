"""`tidemill completion`: prints the completion script of a shell.

The scripts are short. They pass the line up to the cursor to this command, which knows its verbs and options
(`candidates`). They offer the output, one word a line; for zsh and fish a description follows a tab. `:files` and
`:folders` mean the shell's own completion.
"""

from __future__ import annotations

import argparse
import re
import shlex

from tidemill.cli.completion.candidates import FromShell, candidates
from tidemill.cli.options import add_examples

_BASH = """\
# bash completion of tidemill; `source <(tidemill completion bash)`, or put it into
# ~/.local/share/bash-completion/completions/tidemill
_tidemill() {
    local IFS=$'\\n'
    COMPREPLY=($("$1" completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
    case ${COMPREPLY[0]} in
        :files) COMPREPLY=($(compgen -f -- "$2")); compopt -o filenames ;;
        :folders) COMPREPLY=($(compgen -d -- "$2")); compopt -o filenames ;;
    esac
}
complete -F _tidemill tidemill
"""

_ZSH = """\
#compdef tidemill
# zsh completion of tidemill; put it into a folder of $fpath as _tidemill
_tidemill() {
    local -a lines words_and_summaries
    lines=("${(@f)$("${words[1]}" completion zsh --line "${LBUFFER}" 2>/dev/null)}")
    case $lines[1] in
        :files) _files; return ;;
        :folders) _files -/; return ;;
        '') return 1 ;;
    esac
    words_and_summaries=("${(@)${(@)lines//:/\\\\:}//$'\\t'/:}")
    _describe 'tidemill' words_and_summaries
}
compdef _tidemill tidemill
"""

_FISH = """\
# fish completion of tidemill; put it into ~/.config/fish/completions/tidemill.fish
function __tidemill_candidates
    set -l lines (tidemill completion fish --line (commandline -cp) 2>/dev/null)
    switch "$lines[1]"
        case ':files'
            __fish_complete_path (commandline -ct)
        case ':folders'
            __fish_complete_directories (commandline -ct)
        case '*'
            printf '%s\\n' $lines
    end
end
complete -c tidemill -f -a '(__tidemill_candidates)'
"""

_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
# The characters at which bash starts a new word without a space (COMP_WORDBREAKS).
_BASH_BREAK = re.compile(r".*[:=]")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", metavar="SHELL", choices=tuple(_SCRIPTS), help="bash, zsh or fish")
    parser.add_argument("--line", help=argparse.SUPPRESS)
    parser.set_defaults(program=parser.prog)
    add_examples(
        parser,
        "source <(tidemill completion bash)\n"
        "tidemill completion bash > ~/.local/share/bash-completion/completions/tidemill\n"
        'tidemill completion zsh > "${fpath[1]}/_tidemill"\n'
        "tidemill completion fish > ~/.config/fish/completions/tidemill.fish",
    )


def run(arguments: argparse.Namespace) -> int:
    if arguments.line is None:
        print(_SCRIPTS[arguments.shell], end="")
        return 0
    # Imported here because that module imports this one.
    from tidemill.cli.main import make_parser

    words, current = _split(arguments.line)
    found = candidates(make_parser(words), words, current)
    if isinstance(found, FromShell):
        print(found.value)
        return 0
    hidden = _BASH_BREAK.match(current) if arguments.shell == "bash" else None
    for word, summary in sorted(found):
        if arguments.shell == "bash":
            print(word[hidden.end() :] if hidden else word)
        else:
            print(f"{word}\t{' '.join(summary.split())}")
    return 0


def _split(line: str) -> tuple[list[str], str]:
    """The words after the program's name, and the word at the cursor."""
    try:
        words = shlex.split(line)
    except ValueError:
        # A quote is still open: the text after it belongs to the current word.
        words = line.replace("'", " ").replace('"', " ").split()
    if not line or line[-1].isspace():
        words.append("")
    return words[1:-1], words[-1] if len(words) > 1 else ""
