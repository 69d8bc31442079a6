"""What a request may ask to have beside the text, as JSON: token ids, routes, log-probabilities of the prompt, reports.

The places are those that clients know from other servers: `prompt_token_ids`, `token_ids`, `prompt_logprobs`,
`routed_experts`. `picks` and reports are our own; the latter stand in an object `benthic`.
"""

import base64
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benthic.engine.request import Extras, FinalOutput, TokenLogprobs
from benthic.server.text_choice import finite, token_text
from benthic.text.sampling_fields import Wishes
from benthic.text.tokenizer import Tokenizer


def choice_extras(wishes: Wishes, final: FinalOutput) -> dict[str, Any]:
    """Of one answer, for its choice."""
    extras: dict[str, Any] = {}
    if wishes.return_token_ids:
        extras["token_ids"] = list(final.token_ids)
    if wishes.return_routed_experts:
        routes = None if final.extras is None else final.extras.routes
        extras["routed_experts"] = None if routes is None else array_json(routes)
    if wishes.return_picks:
        picks = None if final.extras is None else final.extras.picks
        extras["picks"] = None if picks is None else array_json(picks)
    return extras


def prompt_extras(wishes: Wishes, tokenizer: Tokenizer, prompt: Sequence[int], final: FinalOutput) -> dict[str, Any]:
    """Of a prompt; `final` is that of its first answer."""
    extras: dict[str, Any] = {}
    if wishes.return_token_ids:
        extras["prompt_token_ids"] = list(prompt)
    if wishes.prompt_logprobs is not None:
        scores = final.prompt_logprobs or ()
        pairs = zip(prompt[1:], scores, strict=True)
        extras["prompt_logprobs"] = [None, *(_score_json(tokenizer, token, score) for token, score in pairs)]
    return extras


def reports_json(finals: Sequence[FinalOutput]) -> dict[str, Any]:
    """The `benthic` object: one report an answer, null where a request never reached an engine."""
    return {"reports": [None if final.report is None else asdict(final.report) for final in finals]}


def array_json(values: Extras) -> dict[str, Any]:
    """An array as {dtype, shape, data}; `data` is base64 of its rows end to end, little-endian."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    data = base64.b64encode(little.tobytes()).decode("ascii")
    return {"dtype": values.dtype.name, "shape": list(values.shape), "data": data}


def _score_json(tokenizer: Tokenizer, token: int, score: TokenLogprobs) -> dict[str, Any]:
    entries = {other: finite(value) for other, value in score.top}
    entries[token] = finite(score.chosen)
    return {
        str(other): {"logprob": value, "decoded_token": token_text(tokenizer, other)}
        for other, value in entries.items()
    }
