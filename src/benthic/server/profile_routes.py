"""Routes that record what the engine spends its time on, for whoever has the admin key."""

import tempfile
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from benthic.engine.profiling import MAX_STEPS, ProfileWish
from benthic.errors import RequestError
from benthic.server.calls import add_control, done
from benthic.server.fields import Fields
from benthic.server.schema_kinds import flag, integer, text
from benthic.server.service import Service

PROFILE_PATHS = frozenset({"/start_profile", "/stop_profile"})
_FOLDER = "benthic-profiles"


def add_profile_routes(app: FastAPI, service: Service) -> None:
    """Adds the routes of PROFILE_PATHS."""
    add_control(
        app,
        service,
        "/start_profile",
        _start,
        output_dir=text("where the trace goes"),
        num_steps=integer(1, MAX_STEPS, "passes to record"),
        with_stack=flag(),
        record_shapes=flag(),
    )
    add_control(app, service, "/stop_profile", _stop)


async def _start(service: Service, fields: Fields) -> dict[str, Any]:
    wish = ProfileWish(
        folder=fields.optional_text("output_dir") or str(Path(tempfile.gettempdir()) / _FOLDER),
        num_steps=fields.integer("num_steps", 1, MAX_STEPS) or ProfileWish(folder="").num_steps,
        with_stack=fields.boolean("with_stack"),
        record_shapes=fields.boolean("record_shapes"),
    )
    service.count_unknown(fields)
    try:
        path = await done(service.channel.engine.start_profile(wish))
    except RequestError as error:  # what crossed a process has lost its field
        raise RequestError(str(error), param="output_dir" if "output_dir" in str(error) else None) from None
    return {"path": path, "num_steps": wish.num_steps}


async def _stop(service: Service, fields: Fields) -> dict[str, Any]:
    service.count_unknown(fields)
    return {"path": await done(service.channel.engine.stop_profile())}
