"""Reading far back: values looked up in long lists, and facts hidden in running text.

Lengths are given in characters: three and a half make a token in running text, one and a half in lists of names.
"""

import random

from benthic.tasks.conversation import Exchange
from benthic.tasks.lexicon import Lexicon, invented_word
from benthic.tasks.names import city, first_name

ROW_FORMS = ("{k}: {v}", "{k} = {v}", "{k}, {v}", "{k} has {v}", "- {k}: {v}")
LIST_OPENINGS = ("Here is a list:", "Remember these values:", "Here are some entries:", "Data:", "This is the table:")
LIST_QUESTIONS = (
    "What is the value of {k}?",
    "What does {k} have?",
    "Which value belongs to {k}?",
    "Look up {k}.",
    "{k}?",
    "Find {k} in the list.",
)
HIDDEN_FORMS = ("The code of {k} is {v}.", "Remember: the code of {k} is {v}.", "By the way, the code of {k} is {v}.")
TEXT_QUESTIONS = ("What is the code of {k}?", "Which code does {k} have?", "Tell me the code of {k}.")
TEXT_OPENINGS = ("Read this text.", "Here is a text:", "Please read:", "Text:")


def list_lookup(rng: random.Random, lexicon: Lexicon, length: int, questions: int) -> list[Exchange]:
    """A list of about `length` characters, then questions about its entries; the first one follows the list."""
    form = rng.choice(ROW_FORMS)
    draw_key = rng.choice((first_name, city, lambda r: r.choice(lexicon.words), invented_word))
    has_numbers = rng.random() < 0.7
    rows: dict[str, str] = {}
    size = 0
    while size < length:
        key = draw_key(rng)
        if len(rows) > 200 and key in rows:
            key = invented_word(rng)
        if key not in rows:
            rows[key] = str(rng.randint(100, 9999)) if has_numbers else rng.choice(lexicon.words)
            size += len(form) + len(key) + len(rows[key]) - 5
    body = "\n".join(form.format(k=key, v=value) for key, value in rows.items())
    asked = rng.sample(list(rows), min(questions, len(rows)))
    return ask(rng, rng.choice(LIST_OPENINGS) + "\n" + body, LIST_QUESTIONS, {key: rows[key] for key in asked})


def text_lookup(rng: random.Random, passages: list[str], length: int, questions: int) -> list[Exchange]:
    """Passages of about `length` characters with codes hidden between them, then questions about the codes."""
    start = rng.randrange(len(passages))
    pieces: list[str] = []
    while sum(map(len, pieces)) < length:
        pieces.append(passages[(start + len(pieces)) % len(passages)][:1200])
    codes = {city(rng): str(rng.randint(100, 9999)) for _ in range(questions)}
    for key, value in codes.items():
        pieces.insert(rng.randint(0, len(pieces)), rng.choice(HIDDEN_FORMS).format(k=key, v=value))
    return ask(rng, rng.choice(TEXT_OPENINGS) + "\n" + "\n".join(pieces), TEXT_QUESTIONS, codes)


def ask(rng: random.Random, body: str, forms: tuple[str, ...], values: dict[str, str]) -> list[Exchange]:
    exchanges = []
    for index, (key, value) in enumerate(values.items()):
        question = rng.choice(forms).format(k=key)
        exchanges.append(
            Exchange(
                task="lookup",
                operands=(f"lookup|{key}|{value}",),
                question=question if index else f"{body}\n{question}",
                reasoning=f"{key}: {value}.",
                answer=value,
            )
        )
    return exchanges
