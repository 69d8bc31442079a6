"""What a model is shown of a result: bounded, readable, and honest about what was left out.

The bound is apart from the sandbox's own on output: a transport keeps a megabyte, a model reads some thousand tokens.
"""

from benthic.sandbox.records import Reason, Result

OBSERVATION_BYTES = 16 << 10
_REASONS = {
    Reason.TIMEOUT: "it took too long and was ended with everything it had started",
    Reason.QUIET: "it printed nothing for too long and was ended",
    Reason.OUT_OF_MEMORY: "it used more memory than there is and was ended",
    Reason.OUT_OF_PROCESSES: "it started more processes than it may have and was ended",
    Reason.KILLED: "it was ended from outside",
}


def shorten(text: str, num_bytes: int = OBSERVATION_BYTES) -> str:
    """The first and the last half of a text, with a line between them that says how much is missing.

    Cut where characters end; a text within the bound is returned as it is.
    """
    data = text.encode("utf-8", "replace")
    if len(data) <= num_bytes:
        return text
    half = num_bytes // 2
    head = data[:half].decode("utf-8", "ignore")
    tail = data[-half:].decode("utf-8", "ignore")
    return f"{head}\n[... {len(data) - 2 * half} bytes left out ...]\n{tail}"


def observe(result: Result, num_bytes: int = OBSERVATION_BYTES) -> str:
    """A command's result as text: stdout, stderr under a heading, and how it ended unless that was well."""
    parts = []
    stdout = _decoded(result.stdout, result.dropped_stdout_bytes)
    stderr = _decoded(result.stderr, result.dropped_stderr_bytes)
    if stdout:
        parts.append(shorten(stdout, num_bytes).rstrip("\n"))
    if stderr:
        parts.append(f"[stderr]\n{shorten(stderr, num_bytes // 2)}".rstrip("\n"))
    ending = _ending(result)
    if ending or not parts:
        parts.append(f"[{ending or 'no output'}]")
    return "\n".join(parts)


def _decoded(data: bytes, dropped: int) -> str:
    if not dropped:
        return data.decode("utf-8", "replace")
    half = (len(data) + 1) // 2
    head, tail = data[:half].decode("utf-8", "replace"), data[half:].decode("utf-8", "replace")
    return f"{head}\n[... {dropped} bytes were not kept ...]\n{tail}"


def _ending(result: Result) -> str:
    if result.reason in _REASONS:
        return _REASONS[result.reason]
    if result.returncode is None or result.returncode < 0:
        return f"ended by signal {-(result.returncode or 0)}" if result.returncode else "it did not end by itself"
    return f"exit code {result.returncode}" if result.returncode else ""
