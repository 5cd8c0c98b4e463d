"""Makes a completion script for bash 4.2 or later; it needs no other package, bash-completion neither.

For each command a table: which options and arguments it has, and what their values are. One function reads the words
of the line by that table. Names of files are left to bash itself, which knows how to quote them.
"""

from __future__ import annotations

import shlex
from typing import Iterator, List, Sequence

from ddl.tools.completion.commands import ShellCommand, ShellOption, ShellValue

__all__ = ["bash_script"]

_HEAD = "# Completes {names} in bash. Made from their parsers; `ddl completion bash` prints it.\n"
_CORE = r"""
# Offers what may stand for a value: $1 says what it is, $2 is what is typed of it.
_open_ddl_offer() {
  case $1 in
    file) return ;; # bash's own completion of files
    program)
      if [[ -n $2 ]]; then
        compopt -o filenames
        mapfile -t COMPREPLY < <(compgen -c -- "$2"; compgen -f -- "$2")
      fi
      return ;;
  esac
  compopt +o default +o bashdefault
  case $1 in
    folder) compopt -o dirnames ;;
    'choice '*) mapfile -t COMPREPLY < <(compgen -W "${1#choice }" -- "$2") ;;
  esac
}

_open_ddl_complete() {
  local command=${1##*/} line=${COMP_LINE:0:COMP_POINT} words=() places=() word spaces i last=-1
  # bash splits words at "=" and ":", too. Put together what stands together in the line.
  for ((i = 0; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    spaces=${line%%[![:space:]]*}
    line=${line#"$spaces"}
    ((i < COMP_CWORD)) || word=$line
    line=${line#"$word"}
    if [[ $i -gt 0 && -z $spaces ]]; then
      words[last]+=$word
    else
      words+=("$word") places+=("$i") last=$((last + 1))
    fi
  done
  local table=_open_ddl_table_${command//-/_} at=$command current=${words[last]} count=0 only_arguments='' expected=''
  local options='' tools='' starts_program='' arguments=() many='' values=() value=''
  COMPREPLY=()
  "$table" "$at" ''
  for ((i = 1; i < last; i++)); do
    word=${words[i]}
    if [[ $word == -- && -z $only_arguments ]]; then
      only_arguments=1
    elif [[ $word == -?* && -z $only_arguments ]]; then
      [[ $word == *=* ]] && continue
      "$table" "$at" "$word"
      if ((i + ${#values[@]} >= last)); then
        expected=${values[last - i - 1]}
        break
      fi
      ((i += ${#values[@]}))
    elif [[ -n $tools ]]; then
      at+=" $word"
      "$table" "$at" ''
    elif [[ -n $starts_program ]]; then # the rest is another command: let its own completion answer
      if declare -F _comp_command_offset >/dev/null; then
        _comp_command_offset "${places[i]}"
      elif declare -F _command_offset >/dev/null; then
        _command_offset "${places[i]}"
      fi
      return
    else
      count=$((count + 1))
    fi
  done
  if [[ -n $expected ]]; then
    _open_ddl_offer "$expected" "$current"
  elif [[ $current == -*=* && -z $only_arguments ]]; then
    "$table" "$at" "${current%%=*}"
    _open_ddl_offer "${value:-text}" "${current#*=}"
  elif [[ $current == -* && -z $only_arguments ]]; then
    _open_ddl_offer "choice $options" "$current"
  elif [[ -n $tools ]]; then
    _open_ddl_offer "choice $tools" "$current"
  else
    [[ -n $many && count -ge ${#arguments[@]} ]] && count=$((${#arguments[@]} - 1))
    _open_ddl_offer "${arguments[count]:-text}" "$current"
  fi
}
"""


def bash_script(commands: Sequence[ShellCommand]) -> str:
    """Return the script that completes these commands."""
    names = [command.name for command in commands]
    tables = ["\n".join(_table(command)) for command in commands]
    complete = f"complete -o default -o bashdefault -F _open_ddl_complete {' '.join(names)}\n"
    return "\n".join([_HEAD.format(names=", ".join(names)) + _CORE, *tables, complete])


def _table(command: ShellCommand) -> Iterator[str]:
    yield f"_open_ddl_table_{command.name.replace('-', '_')}() {{"
    yield "  values=() value=''"
    yield "  case $1:$2 in"
    for part in command.with_tools():
        yield from _part(part)
    yield "  esac"
    yield "}"


def _part(command: ShellCommand) -> Iterator[str]:
    names = " ".join(name for option in command.options for name in option.names)
    yield f"    {shlex.quote(command.name + ':')})"
    yield f"      options={shlex.quote(names)}"
    yield f"      tools={shlex.quote(' '.join(tool.words[-1] for tool in command.tools))}"
    yield f"      starts_program={'1' if command.starts_program else ''}"
    yield f"      many={'1' if any(value.many for value in command.arguments) else ''}"
    yield f"      arguments=({_words(command.arguments)}) ;;"
    for option in command.options:
        if option.values:
            yield f"    {_patterns(command, option)})"
            following = f"values=({_words(option.values)}) " if option.following else ""
            yield f"      {following}value={shlex.quote(_kind(option.values[0]))} ;;"


def _patterns(command: ShellCommand, option: ShellOption) -> str:
    return " | ".join(shlex.quote(f"{command.name}:{name}") for name in (*option.names, *option.also))


def _words(values: Sequence[ShellValue]) -> str:
    quoted: List[str] = [shlex.quote(_kind(value)) for value in values]
    return " ".join(quoted)


def _kind(value: ShellValue) -> str:
    return f"choice {' '.join(value.choices)}" if value.choices else value.kind
