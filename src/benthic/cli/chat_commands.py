"""The /commands of `benthic chat`: a table of names, what they do, and what `/help` says of them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol

from benthic.cli.conversation import Conversation
from benthic.cli.options import check_sampling, require_unicode
from benthic.errors import ConfigError


class Chat(Protocol):
    """The session that commands act on."""

    conversation: Conversation

    def answer(self, question: str) -> None:
        """Ask, and show the answer."""
        ...

    def say(self, text: str) -> None:
        """Show something of the program's own."""
        ...

    def clear_screen(self) -> None: ...

    def stats(self) -> str:
        """What the session has taken so far, for people."""
        ...


class Command(NamedTuple):
    """`run` gets the conversation's loop and the rest of the line."""

    usage: str
    help: str
    run: Callable[[Chat, str], None]


def run_command(chat: Chat, line: str) -> None:
    """Do what a line that begins with a slash says.

    Raises:
        BenthicError: it cannot be done; the message says why.
    """
    name, _, rest = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise ConfigError(f"{name} is unknown; /help lists the commands")
    command.run(chat, rest.strip())


def _help(chat: Chat, _: str) -> None:
    width = max(len(command.usage) for command in COMMANDS.values())
    chat.say("\n".join(f"{command.usage.ljust(width)}  {command.help}" for command in COMMANDS.values()))
    chat.say('A line that ends in \\ goes on in the next; so does text between """ and """. Ctrl-C ends an answer.')


def _new(chat: Chat, _: str) -> None:
    chat.conversation.turns = []
    chat.say("A new conversation.")


def _clear(chat: Chat, _: str) -> None:
    _new(chat, "")
    chat.clear_screen()


def _system(chat: Chat, text: str) -> None:
    chat.conversation.system = require_unicode("the system prompt", text) or None
    chat.say("The system prompt is gone." if not text else "A new system prompt, from the next answer on.")


def _think(chat: Chat, word: str) -> None:
    states = {"on": True, "off": False, "auto": None}
    if word and word not in states:
        raise ConfigError(f"/think takes on, off or auto, not {word!r}")
    chat.conversation.thinking = states[word] if word else not chat.conversation.thinking
    shown = {True: "on", False: "off", None: "as the model has learnt"}[chat.conversation.thinking]
    chat.say(f"Thinking is {shown}.")


def _set(chat: Chat, rest: str) -> None:
    fields = chat.conversation.fields
    name, _, value = rest.partition(" ")
    if not name:
        chat.say("\n".join(f"{key} = {json.dumps(fields[key])}" for key in sorted(fields)) or "Nothing is set.")
        return
    changed = {key: kept for key, kept in fields.items() if key != name}
    if value.strip():
        changed[name] = _value(value.strip())
    check_sampling(changed)
    chat.conversation.fields = changed
    chat.say(f"{name} = {json.dumps(changed[name])}" if name in changed else f"{name} is not set.")


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _save(chat: Chat, path: str) -> None:
    chat.conversation.save(_path("/save", path))
    chat.say(f"Saved to {path}.")


def _load(chat: Chat, path: str) -> None:
    conversation = Conversation.load(_path("/load", path))
    check_sampling(conversation.fields)
    chat.conversation = conversation
    chat.say(f"{len(chat.conversation.turns)} turns from {path}.")


def _path(command: str, path: str) -> Path:
    if not path:
        raise ConfigError(f"{command} wants a file: {command} talk.json")
    return Path(path).expanduser()


def _retry(chat: Chat, _: str) -> None:
    question = chat.conversation.take_back()
    if question is None:
        raise ConfigError("there is no answer to try again")
    chat.answer(question)


def _stats(chat: Chat, _: str) -> None:
    chat.say(chat.stats())


def _quit(chat: Chat, _: str) -> None:
    raise EOFError


COMMANDS: dict[str, Command] = {
    "/help": Command("/help", "this list", _help),
    "/new": Command("/new", "start over, with the same settings", _new),
    "/clear": Command("/clear", "start over on an empty screen", _clear),
    "/retry": Command("/retry", "answer the last question again", _retry),
    "/system": Command("/system [TEXT]", "instructions for the model; none without a text", _system),
    "/think": Command("/think [on|off|auto]", "thinking before answers; the other way without a word", _think),
    "/set": Command("/set [NAME [VALUE]]", "a field of the requests, as in /set temperature 0.5", _set),
    "/save": Command("/save FILE", "write the conversation as JSON", _save),
    "/load": Command("/load FILE", "take one up again", _load),
    "/stats": Command("/stats", "tokens, time and cache so far", _stats),
    "/quit": Command("/quit", "leave; so does Ctrl-D", _quit),
}
