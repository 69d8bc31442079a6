"""The sampling fields of /v1/completions, read and checked at the door (chat bodies are read by `text.prompt`)."""

import json
from dataclasses import asdict
from functools import partial

from benthic.engine.sampling import SamplingParams
from benthic.server.fields import Fields, refuse
from benthic.text.grammar import GrammarSpec
from benthic.text.grammar_fields import GRAMMAR_FIELDS, only_grammar, read_extension_grammar, read_format
from benthic.text.placement import known_fields
from benthic.text.protocol_fields import NEUTRAL_VALUES, is_neutral
from benthic.text.sampling_fields import RULE_FIELDS, WISH_FIELDS, Wishes, check_min_tokens, read_rules, read_wishes

MAX_STOP_STRINGS = 16
MAX_TOKEN_LIMIT = (1 << 31) - 1
_SEED_LIMIT = (1 << 63) - 1


def read_sampling(
    fields: Fields, *, max_tokens: int, logprobs: int | None, vocab_size: int, eos_token_id: int
) -> SamplingParams:
    """Read temperature, top_p, top_k, min_p, seed, stop, stop_token_ids, min_tokens, ignore_eos and the rules.

    Raises:
        RequestError: a field has the wrong type, is out of range, or asks for what the sampler does not do.
    """
    _refuse_unbuilt(fields)
    rules = fields.take(RULE_FIELDS, partial(read_rules, vocab_size=vocab_size))
    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=fields.number("temperature", 0, 2, default=1.0),
        top_p=fields.number("top_p", 0, 1, default=1.0, above=True),
        top_k=max(0, fields.integer("top_k", -1, vocab_size) or 0),
        min_p=fields.number("min_p", 0, 1, default=0.0),
        seed=fields.integer("seed", -_SEED_LIMIT - 1, _SEED_LIMIT),
        logprobs=logprobs,
        stop=fields.strings("stop", MAX_STOP_STRINGS),
        include_stop=fields.boolean("include_stop_str_in_output"),
        stop_in_reasoning=fields.boolean("stop_in_reasoning"),  # all is answer here
        stop_token_ids=fields.integers("stop_token_ids", 0, vocab_size - 1),
        ignore_eos=fields.boolean("ignore_eos"),
        min_tokens=fields.integer("min_tokens", 0, max_tokens) or 0,
        **asdict(rules),
    )
    ending = {*params.stop_token_ids, *(() if params.ignore_eos else (eos_token_id,))}
    check_min_tokens(params.min_tokens, ending, vocab_size)
    return params


def read_grammar(fields: Fields) -> GrammarSpec | None:
    """Read `response_format` and the extension fields that say what the text must conform to.

    Raises:
        BadSchema: a schema or grammar cannot be used; `param` is its place.
        RequestError: a field has a wrong type, or there are several.
    """
    form = read_format(fields.raw("response_format"), "response_format", inner="json_schema")
    return only_grammar([form, fields.take(GRAMMAR_FIELDS, read_extension_grammar)])


def read_extras(fields: Fields) -> Wishes:
    """Read priority, cache_salt, timeout_s, prompt_logprobs and the `return_` fields.

    Raises:
        RequestError: a field has the wrong type or is out of range.
    """
    return fields.take(WISH_FIELDS, read_wishes)


def read_include_usage(fields: Fields, *, stream: bool) -> bool:
    """`stream_options.include_usage`; the options belong to streams only."""
    options = fields.mapping("stream_options")
    if options and not stream:
        refuse("stream_options", options, "absent unless stream is true")
    return Fields({"stream_options.include_usage": options.get("include_usage")}).boolean(
        "stream_options.include_usage"
    )


def _refuse_unbuilt(fields: Fields) -> None:
    """Refuse what would change the answer if it were obeyed."""
    known = known_fields("completions")
    for name, neutral in NEUTRAL_VALUES.items():
        if name in known:  # some of these fields work here
            continue
        allowed = " or ".join(["absent", *map(json.dumps, neutral)])
        fields.only_default(name, partial(is_neutral, neutral=neutral), f"{allowed}: it is not supported")
    fields.only_default("max_completion_tokens", lambda value: False, "absent; max_tokens is the limit here")
