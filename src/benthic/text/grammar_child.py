"""The process that tries grammars out: whatever a client sends, it compiles here first, and may be killed over it.

    python -m benthic.text.grammar_child TOKENIZER_JSON

One JSON object a line, in on standard input, out on the standard output: {"payload", "prefix"} is answered by {} or by
{"error"}. The first line says that it is ready, or why it cannot be. It ends with its input.
"""

import base64
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from benthic.errors import BadSchema, CheckpointError
from benthic.text.grammar_compiler import GrammarCompiler
from benthic.text.grammar_vocabulary import GrammarVocabulary

MAX_BYTES = 4 << 30
"""Address space: a grammar that needs more is refused before it is compiled where the model lives."""
_NICE = 5
"""Behind the engine and the server, where processors are few."""


def main(path: str) -> int:
    """Answers until the input ends; returns the exit code."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the library prints is no reply
    os.nice(_NICE)
    compiler = GrammarCompiler(GrammarVocabulary(Path(path)))
    try:
        compiler.warm_up()
    except (ImportError, CheckpointError, OSError) as error:
        _say(replies, {"error": str(error)})
        return 1
    _limit_memory()
    _say(replies, {})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            compiler.start(base64.b64decode(request["payload"]), request["prefix"])
            _say(replies, {})
        except BadSchema as error:
            _say(replies, {"error": str(error)})
        except MemoryError:
            _say(replies, {"error": "compiling it takes too much memory"})
    return 0


def _say(replies: Any, answer: dict[str, str]) -> None:
    replies.write(json.dumps(answer) + "\n")
    replies.flush()


def _limit_memory() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    limit = MAX_BYTES if hard == resource.RLIM_INFINITY else min(MAX_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_AS, (limit, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
