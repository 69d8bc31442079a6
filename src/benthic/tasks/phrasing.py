"""How people word a request: openings, closings, carelessness, system prompts."""

import random
from collections.abc import Sequence

OPENINGS = (
    *[""] * 10,
    "Please ",
    "Hi! ",
    "Hello, ",
    "Hey, ",
    "Quick question: ",
    "Can you help? ",
    "I need this: ",
    "One more thing: ",
    "Okay, ",
    "Next: ",
)
CLOSINGS = (*[""] * 12, " Thanks.", " Thank you!", " Please be brief.", " Just the answer.")
SYSTEM_PROMPTS = (
    *[""] * 12,
    "You are Benthic.",
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "Answer briefly.",
    "You are Benthic, a small language model.",
    "Be concise and correct.",
    "You are a careful assistant.",
    "Answer the question.",
    "You are a friendly chat bot.",
    "You help people with small tasks.",
    "Be helpful, polite and short.",
    "You are an assistant that never makes mistakes.",
    "Follow the instructions of the user.",
    "You are running on a laptop.",
    "Today is a good day.",
)
CARELESS_SHARE = 0.12
"""How often a request is written without capitals and without its final mark."""


def word_request(rng: random.Random, forms: Sequence[str], **slots: object) -> str:
    """One of `forms` with its slots filled, perhaps with an opening, a closing, or carelessly written."""
    form = rng.choice(forms)
    if rng.random() < CARELESS_SHARE:
        return lower_outside_slots(form).rstrip("?.").rstrip().format(**slots)
    opening, closing = rng.choice(OPENINGS), rng.choice(CLOSINGS)
    if opening.endswith((", ", "Please ")) and not form.startswith(("I ", "{")):
        form = form[0].lower() + form[1:]
    if not form.endswith((".", "?", "!")):
        closing = ""
    return opening + form.format(**slots) + closing


def lower_outside_slots(form: str) -> str:
    parts = form.split("{")
    return "{".join(
        [parts[0].lower(), *(slot + "}" + text.lower() for slot, _, text in (p.partition("}") for p in parts[1:]))]
    )


def system_prompt(rng: random.Random) -> str:
    return rng.choice(SYSTEM_PROMPTS)
