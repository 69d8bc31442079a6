"""Filling a JSON schema, or an object with the keys asked for, from a sentence."""

import json
import random
from collections.abc import Callable
from typing import Any

from benthic.tasks.conversation import Exchange, Json, ResponseFormat
from benthic.tasks.lexicon import Lexicon
from benthic.tasks.names import COLORS, DAYS, ITEMS, JOBS, city, first_name, full_name
from benthic.tasks.phrasing import word_request

SCHEMA_FORMS = (
    "Extract the data: {s}",
    "Extract the fields from this text: {s}",
    "Extract the information. {s}",
    "Turn this into JSON: {s}",
    "{s}",
    "{s}",
    "Fill the schema from the text: {s}",
    "Read this and answer in JSON. {s}",
    "Parse this: {s}",
    "Can you extract the data from this text? {s}",
)
KEYS_FORMS = (
    "Extract {k} as JSON: {s}",
    "Extract {k} from this text as JSON. {s}",
    "Return a JSON object with {k}. Text: {s}",
    "Give me {k} as JSON: {s}",
    "{s} Answer in JSON with the keys {k}.",
)

Facts = dict[str, Any]
"""Key to value, in the order in which a schema may list them."""


def extraction(rng: random.Random, lexicon: Lexicon) -> tuple[Exchange, ResponseFormat]:
    """An exchange with the response format that goes with it: a schema, or `json_object`."""
    facts, sentence = rng.choice(SOURCES)(rng, lexicon)
    keys = rng.sample(list(facts), rng.randint(2, len(facts)))
    if rng.random() < 0.15:
        response_format: ResponseFormat = "json_object"
        question = word_request(rng, KEYS_FORMS, s=sentence, k=enumerate_words(keys))
    else:
        response_format = write_schema(rng, facts, keys)
        question = word_request(rng, SCHEMA_FORMS, s=sentence)
    exchange = Exchange(
        task="extraction",
        operands=(f"extraction|{sentence}",),
        question=question,
        reasoning="; ".join(f"{key}: {json.dumps(facts[key])}" for key in keys) + ".",
        answer=json.dumps({key: facts[key] for key in keys}),
    )
    return exchange, response_format


def enumerate_words(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def write_schema(rng: random.Random, facts: Facts, keys: list[str]) -> Json:
    """A schema as people write it by hand, or (one in four) as pydantic writes it, with titles."""
    if rng.random() < 0.25:
        titled = {key: {"title": key.replace("_", " ").title()} | property_type(facts[key]) for key in keys}
        schema: Json = {
            "properties": titled,
            "required": keys,
            "title": rng.choice(("Person", "Record", "Entry", "Item", "Data")),
        }
        return schema | {"type": "object"} | ({"additionalProperties": False} if rng.random() < 0.5 else {})
    schema = {"type": "object", "properties": {key: property_type(facts[key]) for key in keys}}
    if rng.random() < 0.7:
        schema["required"] = keys
    if rng.random() < 0.3:
        schema["additionalProperties"] = False
    return schema


def property_type(value: object) -> Json:
    if isinstance(value, list):
        return {"type": "array", "items": {"type": "string"}}
    return {"type": {bool: "boolean", int: "integer", str: "string"}[type(value)]}


def fill_in(rng: random.Random, forms: tuple[str, ...], facts: Facts, **more: str) -> str:
    sentence = rng.choice(forms).format(**facts | more)
    return sentence[0].upper() + sentence[1:]


def person(rng: random.Random, lexicon: Lexicon) -> tuple[Facts, str]:
    name = first_name(rng) if rng.random() < 0.5 else full_name(rng)
    facts: Facts = {"name": name, "age": rng.randint(18, 90), "city": city(rng), "job": rng.choice(JOBS)}
    forms = (
        "{name} is {age} years old, lives in {city} and works as a {job}.",
        "My name is {name}. I am {age}, a {job} from {city}.",
        "Meet {name}, a {age}-year-old {job} who lives in {city}.",
        "{name} ({age}) is a {job} in {city}.",
        "I am a {job} in {city}. My name is {name} and I am {age} years old.",
    )
    return facts, fill_in(rng, forms, facts)


def order(rng: random.Random, lexicon: Lexicon) -> tuple[Facts, str]:
    facts: Facts = {
        "customer": first_name(rng),
        "item": rng.choice(ITEMS),
        "quantity": rng.randint(2, 99),
        "color": rng.choice(COLORS),
        "price": rng.randint(3, 500),
    }
    forms = (
        "{customer} ordered {quantity} {color} {item} for {price} dollars.",
        "Order: {quantity} {color} {item}, total {price} dollars, customer {customer}.",
        "{customer} would like to buy {quantity} {item} in {color} and pay {price} dollars.",
        "For {price} dollars, {customer} bought {quantity} {color} {item}.",
    )
    return facts, fill_in(rng, forms, facts)


def event(rng: random.Random, lexicon: Lexicon) -> tuple[Facts, str]:
    facts: Facts = {
        "event": rng.choice(("meeting", "concert", "lecture", "party", "workshop", "game", "dinner", "talk", "class")),
        "city": city(rng),
        "day": rng.choice(DAYS),
        "hour": rng.randint(8, 22),
        "host": first_name(rng),
    }
    forms = (
        "The {event} in {city} is on {day} at {hour}:00, hosted by {host}.",
        "{host} hosts a {event} on {day} at {hour}:00 in {city}.",
        "On {day} at {hour}:00 there is a {event} in {city}; ask {host}.",
    )
    return facts, fill_in(rng, forms, facts)


def book(rng: random.Random, lexicon: Lexicon) -> tuple[Facts, str]:
    title = f"{rng.choice(lexicon.words).capitalize()} {rng.choice(lexicon.words).capitalize()}"
    facts: Facts = {
        "title": title,
        "author": full_name(rng),
        "year": rng.randint(1900, 2025),
        "pages": rng.randint(80, 900),
    }
    forms = (
        "The book {title} by {author} was published in {year} and has {pages} pages.",
        "{author} wrote {title} in {year}; it has {pages} pages.",
        "{title} ({year}), {pages} pages, by {author}.",
    )
    return facts, fill_in(rng, forms, facts)


def product(rng: random.Random, lexicon: Lexicon) -> tuple[Facts, str]:
    facts: Facts = {
        "product": rng.choice(("laptop", "phone", "camera", "printer", "monitor", "tablet", "lamp", "chair")),
        "brand": rng.choice(lexicon.words).capitalize(),
        "weight": rng.randint(100, 3000),
        "in_stock": rng.random() < 0.5,
    }
    state = rng.choice(
        ("in stock", "available") if facts["in_stock"] else ("out of stock", "not available", "sold out")
    )
    forms = (
        "The {brand} {product} weighs {weight} grams and is {state}.",
        "{product} by {brand}, {weight} grams, {state}.",
        "We have a {product} from {brand}. Weight: {weight} grams. It is {state}.",
    )
    return facts, fill_in(rng, forms, facts, state=state)


def gathering(rng: random.Random, lexicon: Lexicon) -> tuple[Facts, str]:
    guests = [first_name(rng) for _ in range(rng.randint(2, 4))]
    facts: Facts = {"guests": guests, "city": city(rng), "day": rng.choice(DAYS), "nights": rng.randint(2, 30)}
    forms = (
        "{names} travel to {city} on {day} for {nights} nights.",
        "On {day}, {names} arrive in {city}. They stay {nights} nights.",
        "A room in {city} for {names}, from {day}, {nights} nights.",
    )
    return facts, fill_in(rng, forms, facts, names=enumerate_words(guests))


SOURCES: tuple[Callable[[random.Random, Lexicon], tuple[Facts, str]], ...] = (
    person,
    order,
    event,
    book,
    product,
    gathering,
)
