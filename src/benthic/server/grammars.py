"""What a reply must conform to, made ready for the engine without holding up the event loop."""

import asyncio

from benthic.engine.grammar import Grammar
from benthic.text.grammar import GrammarSpec
from benthic.text.grammar_service import GrammarService


async def ready_grammar(grammars: GrammarService, spec: GrammarSpec | None) -> Grammar | None:
    """The grammar for the engine, once it has been tried; None where there is none. May be cancelled.

    Raises:
        BadSchema: it cannot be used; `param` is the field that it came from.
        CapacityError: too many wait to be tried.
    """
    if spec is None:
        return None
    ready = await asyncio.wrap_future(grammars.submit(spec))
    return Grammar(ready.key, ready.compiled, ready.starts_after, ready.prefix)
