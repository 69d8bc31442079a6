"""Routes for a trainer on the same machine: what are the weights, and whose is the memory meanwhile.

For whoever has the admin key. New weights come by path (`control`): a body of gigabytes would travel through the loop
that streams every answer, and a file in /dev/shm costs memory and no disk.
"""

import json
from typing import Any

from fastapi import FastAPI

from benthic.errors import RequestError
from benthic.server.calls import add_control, done
from benthic.server.fields import Fields, refuse
from benthic.server.schema_kinds import choice, integer, strings, text
from benthic.server.service import Service

WEIGHT_PATHS = frozenset(
    {"/get_weights_by_name", "/weights_checker", "/release_memory_occupation", "/resume_memory_occupation"}
)
_MOST_VALUES = 100_000
_VALUES = 100
_TAG = "kv_cache"


def add_weight_routes(app: FastAPI, service: Service) -> None:
    """Adds the routes of WEIGHT_PATHS."""
    most = integer(1, _MOST_VALUES, f"{_VALUES} if absent")
    add_control(app, service, "/get_weights_by_name", _read, required=("name",), name=text(), truncate_size=most)
    action = choice(("checksum", "compare"), "checksum if absent")
    add_control(app, service, "/weights_checker", _check, action=action, checksum=text("to compare with"))
    tags = strings(8, f"{_TAG} or nothing")
    add_control(app, service, "/release_memory_occupation", _release, tags=tags)
    add_control(app, service, "/resume_memory_occupation", _resume, tags=tags)


async def _read(service: Service, fields: Fields) -> dict[str, Any]:
    name = fields.text("name")
    most = fields.integer("truncate_size", 1, _MOST_VALUES) or _VALUES
    service.count_unknown(fields)
    try:
        found: dict[str, Any] = json.loads(await done(service.channel.engine.read_weight(name, most)))
    except RequestError as error:  # what crossed a process has lost its field
        raise RequestError(str(error), param="name") from None
    return found


async def _check(service: Service, fields: Fields) -> dict[str, Any]:
    action = fields.optional_text("action") or "checksum"
    wanted = fields.optional_text("checksum")
    if action not in ("checksum", "compare"):
        refuse("action", action, "checksum or compare")
    if (action == "compare") != (wanted is not None):
        refuse("checksum", wanted, "given with the action compare, and with no other")
    service.count_unknown(fields)
    found = await done(service.channel.engine.checksum())
    same = {} if wanted is None else {"is_equal": found == wanted}
    return {"checksum": found, "weight_version": service.channel.engine.stats.weight_version, **same}


async def _release(service: Service, fields: Fields) -> dict[str, Any]:
    _check_tags(service, fields)
    await done(service.channel.engine.release_memory())
    return {"tags": [_TAG]}


async def _resume(service: Service, fields: Fields) -> dict[str, Any]:
    _check_tags(service, fields)
    await done(service.channel.engine.take_memory())
    return {"tags": [_TAG]}


def _check_tags(service: Service, fields: Fields) -> None:
    tags = fields.strings("tags", 8)
    service.count_unknown(fields)
    if set(tags) - {_TAG}:
        refuse("tags", list(tags), f"absent or ['{_TAG}']: weights stay where they are until others take their place")
