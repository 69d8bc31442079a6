"""Tools that conversations offer, and errands that need one of them.

Every kind of tool is a function from a random generator to a `Tool`: its definition (names, descriptions and parameters
vary) and a way to draw errands for it. What an errand's call must contain follows from the question and the definition.
"""

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benthic.tasks.conversation import Json
from benthic.tasks.lexicon import Lexicon, invented_word
from benthic.tasks.names import DAYS, city, first_name
from benthic.tasks.phrasing import word_request


@dataclass(frozen=True, slots=True)
class Errand:
    """One question for a tool: the call's arguments, the tool's result, the answer, and what thinking says."""

    subject: str
    """What the errand is about, with the kind of tool: the operand that decides where it belongs."""
    question: str
    arguments: Json
    result: str
    answer: str
    purpose: str
    """Ends the sentence "I need ..."."""
    finding: str
    """What the result says, in short."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A `function` object as a client sends it, and its errands."""

    kind: str
    """Its name in TOOLS."""
    definition: Json
    draw: Callable[[random.Random], Errand]

    @property
    def name(self) -> str:
        return str(self.definition["name"])


def define(name: str, description: str, properties: Json, optional: tuple[str, ...] = ()) -> Json:
    required = [key for key in properties if key not in optional]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "parameters": parameters}


def report(rng: random.Random, **values: Any) -> str:
    """A tool's result: JSON, or for a single value now and then the value alone."""
    if len(values) == 1 and rng.random() < 0.5:
        return str(next(iter(values.values())))
    return json.dumps(values)


def weather(rng: random.Random, lexicon: Lexicon) -> Tool:
    name = rng.choice(
        ("get_weather", "get_weather", "weather", "get_current_weather", "current_weather", "weather_lookup")
    )
    place = rng.choice(("location", "location", "city", "city", "place"))
    description = rng.choice(
        ("Get the current weather", "Get the weather for a city", "Returns the weather at a location")
    )
    properties: Json = {place: string_property(rng, "City name", "The city", "Name of the city")}
    has_unit = rng.random() < 0.4
    if has_unit:
        properties["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    forms = (
        "What is the weather in {c}{u}?",
        "What's the weather like in {c}{u}?",
        "How is the weather in {c}{u}?",
        "Tell me the weather in {c}{u}.",
        "Weather in {c}{u}?",
        "Is it cold in {c} today{u}?",
        "I am going to {c}. What is the weather like{u}?",
        "What is the temperature in {c}{u}?",
        "Can you check the weather in {c}{u}?",
        "Do I need a coat in {c}{u}?",
    )

    def draw(rng: random.Random) -> Errand:
        where = city(rng)
        unit = rng.choice(("celsius", "fahrenheit")) if has_unit and rng.random() < 0.5 else ""
        degrees = rng.randint(-15, 40)
        sky = rng.choice(("sunny", "cloudy", "rainy", "snowy", "windy", "foggy", "clear"))
        values: Json = {"temperature": degrees, "condition": sky}
        if unit:
            values["unit"] = unit
        return Errand(
            subject=f"weather|{where}",
            question=word_request(rng, forms, c=where, u=f" in {unit}" if unit else ""),
            arguments={place: where, **({"unit": unit} if unit else {})},
            result=f"{degrees} degrees, {sky}" if not unit and rng.random() < 0.3 else json.dumps(values),
            answer=f"It is {degrees} degrees{' ' + unit if unit else ''} and {sky} in {where}.",
            purpose=f"the weather in {where}",
            finding=f"{degrees} degrees, {sky}.",
        )

    return Tool("weather", define(name, description, properties, ("unit",)), draw)


def calculator(rng: random.Random, lexicon: Lexicon) -> Tool:
    name = rng.choice(("calculator", "calculator", "calculate", "calc", "evaluate"))
    argument = rng.choice(("expression", "expression", "expression", "formula"))
    description = rng.choice(("Evaluate an arithmetic expression", "A calculator", "Computes an expression"))
    forms = (
        "What is {a} {s} {b}?",
        "Calculate {a} {s} {b}.",
        "Use the calculator: {a} {s} {b}",
        "How much is {a} {w} {b}?",
        "What is {a} {w} {b}?",
        "Compute {a} {w} {b}.",
        "{a} {s} {b}",
    )
    signs = (("*", "times"), ("*", "multiplied by"), ("/", "divided by"), ("+", "plus"), ("-", "minus"))

    def draw(rng: random.Random) -> Errand:
        a, b = rng.randint(2, 9999), rng.randint(2, 999)
        sign, spoken = rng.choice(signs)
        expression = f"{a} {sign} {b}"
        value = {"*": a * b, "/": round(a / b, 2), "+": a + b, "-": a - b}[sign]
        return Errand(
            subject=f"calculator|{expression}",
            question=word_request(rng, forms, a=a, b=b, s=sign, w=spoken),
            arguments={argument: expression},
            result=report(rng, result=value),
            answer=f"{expression} = {value}",
            purpose=f"{expression}",
            finding=f"The result is {value}.",
        )

    return Tool("calculator", define(name, description, {argument: {"type": "string"}}), draw)


def clock(rng: random.Random, lexicon: Lexicon) -> Tool:
    name = rng.choice(("get_time", "get_time", "current_time", "local_time", "get_local_time"))
    place = rng.choice(("city", "city", "location", "place"))
    description = rng.choice(("Get the local time of a city", "Current time", "Tells the time"))
    forms = ("What time is it in {c}?", "Tell me the time in {c}.", "Current time in {c}?", "What is the time in {c}?")

    def draw(rng: random.Random) -> Errand:
        where, time = city(rng), f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}"
        return Errand(
            subject=f"clock|{where}",
            question=word_request(rng, forms, c=where),
            arguments={place: where},
            result=report(rng, time=time),
            answer=f"It is {time} in {where}.",
            purpose=f"the time in {where}",
            finding=f"The time is {time}.",
        )

    return Tool("clock", define(name, description, {place: string_property(rng, "City name", "The city")}), draw)


def timer(rng: random.Random, lexicon: Lexicon) -> Tool:
    name = rng.choice(("set_timer", "set_timer", "start_timer", "timer"))
    unit = rng.choice(("minutes", "minutes", "seconds", "hours"))
    description = rng.choice(("Set a timer", "Start a countdown", "Starts a timer"))
    forms = (
        "Set a timer for {n} {u}.",
        "Start a timer of {n} {u}.",
        "Wake me in {n} {u}.",
        "I need a timer for {n} {u}.",
        "Timer: {n} {u}",
    )

    def draw(rng: random.Random) -> Errand:
        length = rng.randint(2, 600)
        return Errand(
            subject=f"timer|{length}",
            question=word_request(rng, forms, n=length, u=unit),
            arguments={unit: length},
            result=rng.choice(("ok", '{"status": "ok"}', "timer set")),
            answer=f"The timer is set for {length} {unit}.",
            purpose=f"a timer of {length} {unit}",
            finding="The timer is set.",
        )

    return Tool("timer", define(name, description, {unit: {"type": "integer"}}), draw)


def light(rng: random.Random, lexicon: Lexicon) -> Tool:
    name = rng.choice(("set_light", "switch_light", "light"))
    flag = rng.choice(("on", "state", "enabled"))
    description = rng.choice(("Switch a light on or off", "Control the lights", "Sets the light of a room"))
    forms = (
        "Turn {o} the light in the {r}.",
        "Switch the {r} light {o}.",
        "Light {o} in the {r}, please.",
        "Turn the light {o} in the {r}.",
    )
    rooms = (
        "kitchen",
        "bathroom",
        "bedroom",
        "office",
        "garage",
        "hall",
        "cellar",
        "attic",
        "garden",
        "library",
        "studio",
    )

    def draw(rng: random.Random) -> Errand:
        room = rng.choice(rooms) if rng.random() < 0.6 else rng.choice(lexicon.words)
        is_on = rng.random() < 0.5
        state = "on" if is_on else "off"
        return Errand(
            subject=f"light|{room}",
            question=word_request(rng, forms, r=room, o=state),
            arguments={"room": room, flag: is_on},
            result=rng.choice(("ok", '{"status": "ok"}', "done")),
            answer=f"The light in the {room} is {state}.",
            purpose=f"the light in the {room} {state}",
            finding=f"The light is {state}.",
        )

    return Tool("light", define(name, description, {"room": {"type": "string"}, flag: {"type": "boolean"}}), draw)


def message(rng: random.Random, lexicon: Lexicon) -> Tool:
    name = rng.choice(("send_message", "send_message", "message", "send_sms", "send_email"))
    to, text = rng.choice((("to", "text"), ("recipient", "text"), ("recipient", "message"), ("to", "body")))
    description = rng.choice(("Send a message to a person", "Sends a message", "Message someone"))
    forms = (
        "Send a message to {n}: {t}",
        "Tell {n}: {t}",
        "Write to {n}: {t}",
        "Message {n}: {t}",
        "Let {n} know: {t}",
    )
    texts = (
        "see you at {h}",
        "I am late",
        "the meeting is on {d}",
        "call me on {d}",
        "bring the {w}",
        "where is the {w}?",
        "dinner at {h}",
    )

    def draw(rng: random.Random) -> Errand:
        person = first_name(rng)
        body = rng.choice(texts).format(h=rng.randint(2, 12), d=rng.choice(DAYS), w=rng.choice(lexicon.words))
        return Errand(
            subject=f"message|{person}",
            question=word_request(rng, forms, n=person, t=body),
            arguments={to: person, text: body},
            result=rng.choice(("sent", '{"status": "sent"}', "ok")),
            answer=f"I sent the message to {person}.",
            purpose=f"a message to {person}",
            finding="The message is sent.",
        )

    return Tool("message", define(name, description, {to: {"type": "string"}, text: {"type": "string"}}), draw)


def calendar(rng: random.Random, lexicon: Lexicon) -> Tool:
    name = rng.choice(("add_event", "create_event", "schedule_meeting", "add_meeting"))
    who = rng.choice(("person", "with", "attendee"))
    description = rng.choice(("Add a meeting to the calendar", "Schedule a meeting", "Creates a calendar entry"))
    forms = (
        "Schedule a meeting with {n} on {d} at {h}.",
        "Meet {n} on {d} at {h}.",
        "Plan a meeting on {d} at {h} with {n}.",
    )

    def draw(rng: random.Random) -> Errand:
        person, day, hour = first_name(rng), rng.choice(DAYS), rng.randint(1, 23)
        return Errand(
            subject=f"calendar|{person}",
            question=word_request(rng, forms, n=person, d=day, h=hour),
            arguments={who: person, "day": day, "hour": hour},
            result=rng.choice(("ok", '{"status": "created"}', "created")),
            answer=f"The meeting with {person} is on {day} at {hour}.",
            purpose=f"a meeting with {person} on {day} at {hour}",
            finding="The meeting is planned.",
        )

    properties = {who: {"type": "string"}, "day": {"type": "string"}, "hour": {"type": "integer"}}
    return Tool("calendar", define(name, description, properties), draw)


def attribute(rng: random.Random, lexicon: Lexicon) -> Tool:
    """A tool that the model has never seen: an invented or unusual attribute of an invented thing."""
    what = rng.choice(
        ("price", "status", "address", "phone", "age", "height", "owner", "size", "rank", "salary", "weight", "score")
    )
    if rng.random() < 0.4:
        what = rng.choice(lexicon.words) if rng.random() < 0.6 else invented_word(rng)
    argument = rng.choice(("name", "item", "id", "key", "query", "product", "user", "title", what + "_of", "symbol"))
    name = rng.choice(("get_{}", "lookup_{}", "find_{}", "fetch_{}", "{}_lookup", "query_{}")).format(what)
    description = rng.choice(("Get the {}", "Look up the {}", "Returns the {}", "Finds the {} of something")).format(
        what
    )
    forms = (
        "What is the {w} of {x}?",
        "Look up the {w} of {x}.",
        "Get the {w} of {x}.",
        "Find the {w} of {x}.",
        "Tell me the {w} of {x}.",
    )

    def draw(rng: random.Random) -> Errand:
        thing = rng.choice((first_name, city, lambda r: r.choice(lexicon.words)))(rng)
        value = rng.choice((str(rng.randint(1, 9999)), rng.choice(lexicon.words), first_name(rng)))
        return Errand(
            subject=f"attribute|{thing}",
            question=word_request(rng, forms, w=what, x=thing),
            arguments={argument: thing},
            result=report(rng, **{what: value}),
            answer=f"The {what} of {thing} is {value}.",
            purpose=f"the {what} of {thing}",
            finding=f"The {what} is {value}.",
        )

    return Tool("attribute", define(name, description, {argument: {"type": "string"}}), draw)


def string_property(rng: random.Random, *descriptions: str) -> Json:
    return {"type": "string"} | ({"description": rng.choice(descriptions)} if rng.random() < 0.6 else {})


TOOLS: dict[str, tuple[Callable[[random.Random, Lexicon], Tool], int]] = {
    "weather": (weather, 5),
    "calculator": (calculator, 4),
    "clock": (clock, 2),
    "timer": (timer, 2),
    "light": (light, 1),
    "message": (message, 2),
    "calendar": (calendar, 1),
    "attribute": (attribute, 4),
}
"""Kinds of tools with how often they are drawn."""
