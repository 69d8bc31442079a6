"""Routes for a trainer or an operator: pause, new weights, flush, abort, and a look inside.

They exist only when `--server.admin_key` is set, and ask for that key instead of the clients' one. Names are those
that trainers already call. Each answers when the engine has done it; while a pause lasts, requests are taken and wait.
"""

import time
from dataclasses import asdict
from typing import Any

from fastapi import FastAPI
from starlette.responses import PlainTextResponse, Response

from benthic import __version__
from benthic.engine.call_checks import MAX_WEIGHT_VERSION
from benthic.engine.messages import PauseMode
from benthic.errors import CheckpointError, RequestError
from benthic.server.answer_schemas import answer
from benthic.server.calls import add_control, done
from benthic.server.described import describe_get
from benthic.server.fields import Fields, refuse
from benthic.server.profile_routes import PROFILE_PATHS, add_profile_routes
from benthic.server.schema_kinds import choice, flag, integer, text
from benthic.server.service import Service
from benthic.server.summary import features_of_server
from benthic.server.weight_routes import WEIGHT_PATHS, add_weight_routes

_MODES: dict[str, PauseMode] = {"abort": "abort", "keep": "keep", "in_place": "keep", "retract": "retract"}
_OWN_PATHS = frozenset(
    {
        "/pause_generation",
        "/continue_generation",
        "/update_weights_from_disk",
        "/flush_cache",
        "/abort_request",
        "/abort",
        "/get_weight_version",
        "/server_info",
        "/dump_state",
    }
)
CONTROL_PATHS = _OWN_PATHS | PROFILE_PATHS | WEIGHT_PATHS
"""All routes that want the admin key."""


def add_control_routes(app: FastAPI, service: Service) -> None:
    """Adds the routes of CONTROL_PATHS; who may use them is the door's business."""
    add_control(app, service, "/pause_generation", _pause, mode=choice(list(_MODES), "keep if absent"))
    add_control(app, service, "/continue_generation", _continue)
    add_control(
        app,
        service,
        "/update_weights_from_disk",
        _update_weights,
        required=("model_path",),
        model_path=text("the folder of a checkpoint or a file of weights", shortest=1),
        weight_version=integer(0, MAX_WEIGHT_VERSION, "the next unused one if absent"),
        checksum=text("of the weights that must be found there"),
    )
    add_control(app, service, "/flush_cache", _flush)
    add_profile_routes(app, service)
    add_weight_routes(app, service)
    for name in ("/abort_request", "/abort"):
        add_control(app, service, name, _abort, rid=text("the id of a reply"), abort_all=flag("all of them"))

    @app.get("/get_weight_version", responses=describe_get(answer(weight_version={"type": "integer"})))
    async def weight_version() -> dict[str, Any]:
        return {"weight_version": service.channel.engine.stats.weight_version}

    @app.get("/server_info", responses=describe_get(answer(version={"type": "string"})))
    async def server_info() -> dict[str, Any]:
        return _info(service)

    @app.get("/dump_state", responses=describe_get(media_type="text/plain"), response_class=PlainTextResponse)
    async def dump_state() -> Response:
        return PlainTextResponse(await done(service.channel.engine.dump()))


async def _pause(service: Service, fields: Fields) -> dict[str, Any]:
    mode = fields.optional_text("mode") or "keep"
    if mode not in _MODES:
        refuse("mode", mode, "one of " + ", ".join(_MODES))
    service.count_unknown(fields)
    await done(service.channel.engine.pause(_MODES[mode]))
    return {"mode": _MODES[mode]}


async def _continue(service: Service, fields: Fields) -> dict[str, Any]:
    service.count_unknown(fields)
    await done(service.channel.engine.resume())
    return {}


async def _update_weights(service: Service, fields: Fields) -> dict[str, Any]:
    engine = service.channel.engine
    path = fields.text("model_path") or refuse("model_path", "", "the folder of a checkpoint or a file of weights")
    version = fields.integer("weight_version", 0, MAX_WEIGHT_VERSION)
    checksum = fields.optional_text("checksum")
    service.count_unknown(fields)
    began_at = time.monotonic()
    try:
        new_version = int(await done(engine.update_weights(path, version, checksum)))
    except CheckpointError as error:
        raise RequestError(str(error), param="model_path") from None
    except RequestError as error:  # what crossed a process has lost its field; only the version is judged over there
        raise RequestError(str(error), param=error.param or "weight_version") from None
    service.metrics.weight_load_s.set(time.monotonic() - began_at)
    return {"weight_version": new_version}


async def _flush(service: Service, fields: Fields) -> dict[str, Any]:
    service.count_unknown(fields)
    await done(service.channel.engine.flush())
    return {}


async def _abort(service: Service, fields: Fields) -> dict[str, Any]:
    request_id = fields.optional_text("rid")
    is_for_all = fields.boolean("abort_all")
    service.count_unknown(fields)
    if (request_id is None) is not is_for_all:
        refuse("rid", request_id, "the id of a reply, or absent beside abort_all: true")
    return {"num_aborted": service.channel.abort(None if is_for_all else request_id)}


def _info(service: Service) -> dict[str, Any]:
    engine, facts = service.channel.engine, service.facts
    return {
        "version": __version__,
        "model": service.name,
        "model_path": facts.folder,
        "state": service.channel.state,
        "num_restarts": engine.num_restarts,
        "context_len": facts.max_model_len,
        "vocab_size": facts.vocab_size,
        "budget": facts.budget,
        "engine": asdict(facts.config),
        "server": {name: value for name, value in asdict(service.config).items() if not _is_secret(name)},
        "start": asdict(facts.start) | {"features": [asdict(feature) for feature in features_of_server(service)]},
        "stats": asdict(engine.stats),
    }


def _is_secret(name: str) -> bool:
    return "key" in name or "secret" in name
