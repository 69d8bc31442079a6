"""A shell that remembers: its folder and exported variables go from one command to the next.

With `shell="bash"`, all variables, functions, aliases and options go on too.

No process waits between two commands. Each one reads what the one before left in a file of the sandbox, and leaves its
own; so a command that hangs is ended alone and the session goes on as it was before it, and a session survives crashes,
snapshots and forks like any other file.
"""

import re
from collections.abc import Awaitable, Callable
from typing import Any

from benthic.sandbox.records import Result

_NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")
SHELLS = ("sh", "bash")
# $1 is the file with the state, $2 the command. Variables that a shell forbids to set are left out.
_COMMON = """
_benthic_state=$1
[ ! -r "$_benthic_state" ] || . "$_benthic_state"
_benthic_keep() {
    _benthic_code=$?
    trap - EXIT
    mkdir -p "${_benthic_state%/*}"
    _benthic_dump >"$_benthic_state.$$" 2>/dev/null && mv -f "$_benthic_state.$$" "$_benthic_state"
    exit "$_benthic_code"
}
trap _benthic_keep EXIT
eval "$2"
"""
_DUMPS = {
    "sh": r"""
_benthic_dump() {
    export -p
    printf 'cd -- %s\n' "'$(pwd | sed "s/'/'\\\\''/g")'"
}
""",
    "bash": r"""
_benthic_dump() {
    declare -p | grep -Ev '^declare -[A-Za-z]*r|^declare [^ ]* (BASH|EUID|UID|PPID|SHELLOPTS|_benthic|FUNCNAME|_=)'
    declare -f | sed '/^_benthic_/,/^}/d'
    alias -p
    set +o
    printf 'cd -- %q\n' "$PWD"
}
""",
}


class Session:
    """One named shell of a sandbox."""

    def __init__(self, run: Callable[..., Awaitable[Result]], name: str = "main", *, shell: str = "sh") -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"a session's name is 1 to 32 letters, digits, _ and -, and not {name!r}")
        if shell not in SHELLS:
            raise ValueError(f"shell must be one of {', '.join(SHELLS)}, and is {shell!r}")
        self._run = run
        self.name = name
        self.shell = shell
        self.state_path = f"/tmp/.session/{name}.{shell}"

    async def exec(self, command: str, **options: Any) -> Result:
        """Runs a command where the one before left off; `options` are those of `Sandbox.exec`."""
        argv = (self.shell, "-c", _DUMPS[self.shell] + _COMMON, self.shell, self.state_path, command)
        return await self._run(argv, **options)
