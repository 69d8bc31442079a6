"""From a grammar's source to xgrammar's automaton over one vocabulary: the same in the process that tries grammars out
and in the engine's, so that what compiles in the one does in the other.

Sources travel and not automata: a serialised automaton of a schema with 500 optional properties has 100 MB and takes
3 seconds to read, where compiling it takes 0.2 (measured; of 60 required objects 27 MB, 0.9 against 0.05).
"""

import json
import re
from functools import cached_property
from typing import Any, NamedTuple

from benthic.errors import BadSchema
from benthic.text.grammar_library import load_library
from benthic.text.grammar_vocabulary import GrammarVocabulary

CACHE_BYTES = 256 << 20
"""Of compiled grammars that are kept, the latest ones."""
MAX_WHITESPACE = 2
"""Blanks in a row between the parts of a JSON text: without a bound an answer may consist of them."""

_HALF = "\u00ed"
_LOW = frozenset(map(chr, range(0xA1, 0xC0))) - {"\u00ad"} | {"\u0142", "\u0143"}
"""Bytes ED, and A0 to BF, in the byte-level alphabet."""
_PLACE = re.compile(
    r"^(?:\[[\d:]+\] )?\S*\.(?:cc|h):\d+: (?:Check failed: .*? is false: )?(?:Invalid structural tag error: )?"
)


class _Compiler(NamedTuple):
    """xgrammar's compiler over one way of spelling the vocabulary, and the ids without a spelling."""

    library: Any
    barred: frozenset[int]
    half_ids: frozenset[int]
    """Ids that end in the first byte of what may be half of a surrogate pair, which is no character."""
    low_ids: tuple[int, ...]
    """Ids that would go on to such a half after them: the library takes it for a character."""


class GrammarCompiler:
    """Compiles payloads of `grammar.GrammarSpec` for one vocabulary, and keeps the latest. For one thread at a time."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = vocabulary
        self._compilers: dict[tuple[bool, bool], _Compiler] = {}

    @cached_property
    def library(self) -> Any:
        """xgrammar."""
        return load_library()

    @property
    def vocab_size(self) -> int:
        """Ids that masks have bits for."""
        return self._vocabulary.vocab_size

    def warm_up(self) -> None:
        """Does what the first grammar would have to wait for."""
        self._compiler(has_markup=False, is_json=True)

    def compile(self, payload: bytes) -> Any:
        """xgrammar's compiled grammar.

        Raises:
            BadSchema: the source is no grammar, or one that nothing can satisfy.
        """
        given = json.loads(payload)
        source, compiler = given["source"], self._of(given).library
        try:
            match given["kind"]:
                case "json_schema":
                    return compiler.compile_json_schema(source, max_whitespace_cnt=MAX_WHITESPACE)
                case "regex":
                    return compiler.compile_regex(source)
                case "ebnf":
                    return compiler.compile_grammar(source)
                case "structural_tag":
                    return compiler.compile_structural_tag(json.loads(source))
        except (RuntimeError, ValueError, TypeError) as error:
            raise BadSchema(_reason(error)) from error
        raise BadSchema(f"a grammar is of the kind {given['kind']!r}, which this compiler does not know")

    def start(self, payload: bytes, prefix: str) -> Any:
        """xgrammar's matcher, after a text that counts as written.

        Raises:
            BadSchema: see `compile`; or the grammar does not allow that text.
        """
        matcher = self.library.GrammarMatcher(self.compile(payload))
        if prefix and not matcher.accept_string(prefix):
            shown = prefix if len(prefix) <= 80 else f"...{prefix[-77:]}"
            raise BadSchema(f"the reply begins with {shown!r}, which the format does not allow")
        return matcher

    def vocabulary_of(self, payload: bytes) -> "_Compiler":
        """What a grammar's vocabulary is like."""
        return self._of(json.loads(payload))

    def _of(self, given: dict[str, Any]) -> "_Compiler":
        return self._compiler(given["has_markup"], given["kind"] == "json_schema")

    def _compiler(self, has_markup: bool, is_json: bool) -> "_Compiler":
        kind = has_markup, is_json
        if kind not in self._compilers:
            library, vocabulary = self.library, self._vocabulary
            spellings = vocabulary.spellings(has_markup=has_markup, is_json=is_json)
            info = library.TokenizerInfo(
                spellings,
                vocab_type=library.VocabType.BYTE_LEVEL,
                vocab_size=vocabulary.vocab_size,
                stop_token_ids=[vocabulary.eos_token_id],
                add_prefix_space=False,
            )
            compiler = library.GrammarCompiler(info, max_threads=1, cache_enabled=True, cache_limit_bytes=CACHE_BYTES)
            barred = frozenset(token_id for token_id, spelling in enumerate(spellings) if not spelling)
            half = frozenset(token_id for token_id, spelling in enumerate(spellings) if spelling.endswith(_HALF))
            low = tuple(token_id for token_id, spelling in enumerate(spellings) if spelling[:1] in _LOW)
            self._compilers[kind] = _Compiler(compiler, barred, half, low)
        return self._compilers[kind]


def _reason(error: Exception) -> str:
    """The library's own words, without the place in its source, the failed check and the stack."""
    text = _PLACE.sub("", str(error).strip().split("Stack trace")[0]).strip()
    return " ".join(text.split())[:500] or type(error).__name__
