"""The HTTP application: routes behind the door that every request passes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from benthic import __version__
from benthic.errors import BenthicError
from benthic.server.access_log import AccessLog
from benthic.server.answer_schemas import HEALTH, MODEL, MODELS, TOKENIZER
from benthic.server.completions import completions
from benthic.server.control import CONTROL_PATHS, add_control_routes
from benthic.server.described import describe, describe_get
from benthic.server.door import add_doors
from benthic.server.metrics import CONTENT_TYPE
from benthic.server.playground_page import add_playground
from benthic.server.protocol_routes import add_protocol_routes
from benthic.server.refusals import no_route, refuse_request
from benthic.server.service import Service
from benthic.server.status_routes import add_status_routes
from benthic.server.tokens import detokenize, tokenize, tokenizer_info
from benthic.server.unbuilt import add_switched_off_routes, add_unbuilt_routes

_RESTART_S = 5
"""About how long an engine takes to come back; a large model takes longer."""
_NO_CONTROL = "control routes exist only where the server was started with BENTHIC_ADMIN_KEY or --server.admin_key"


def create_app(service: Service) -> FastAPI:
    """The application that serves one model."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.channel.start()
        yield
        await service.channel.close()
        service.intake.close()
        await asyncio.to_thread(service.grammars.close)

    # No page at /docs: FastAPI's loads its scripts from the internet.
    # No redirect from a path with a slash at its end: behind a proxy it would lead out of TLS. The 404 names the path.
    app = FastAPI(
        title="Benthic",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    _add_routes(app, service)
    add_protocol_routes(app, service)
    add_status_routes(app, service)
    if service.config.playground:
        add_playground(app)
    if service.config.admin_key is not None:
        add_control_routes(app, service)
    else:
        add_switched_off_routes(app, CONTROL_PATHS, _NO_CONTROL)
    add_unbuilt_routes(app)  # the last: they catch whole families of paths
    for kind in (BenthicError, HTTPException, ClientDisconnect):
        app.add_exception_handler(kind, refuse_request)
    add_doors(app, service)
    app.add_middleware(AccessLog)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    described = partial(describe, name=service.name, vocab_size=service.tokenizer.vocab_size)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", responses=describe_get(HEALTH))
    async def health() -> Response:
        state = service.channel.state
        headers = {"retry-after": str(_RESTART_S)} if state in ("starting", "restarting") else None
        return JSONResponse({"status": state}, status_code=200 if state == "ok" else 503, headers=headers)

    @app.head("/metrics", include_in_schema=False)
    @app.get("/metrics", responses=describe_get(media_type="text/plain"), response_class=PlainTextResponse)
    async def metrics() -> Response:
        return Response(service.metrics.render(), media_type=CONTENT_TYPE)

    @app.head("/v1/models", include_in_schema=False)
    @app.get("/v1/models", responses=describe_get(MODELS))
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [service.model_card()], "has_more": False}

    @app.head("/v1/models/{model_id:path}", include_in_schema=False)
    @app.get("/v1/models/{model_id:path}", responses=describe_get(MODEL))
    async def model(request: Request, model_id: str) -> dict[str, Any]:
        if not model_id:
            raise no_route(request)
        service.check_model(model_id)
        return service.model_card()

    @app.post("/v1/completions", openapi_extra=described("/v1/completions"))
    async def complete(request: Request) -> Response:
        return await completions(service, request)

    @app.head("/tokenizer_info", include_in_schema=False)
    @app.get("/tokenizer_info", responses=describe_get(TOKENIZER))
    async def info() -> Response:
        return tokenizer_info(service)

    @app.post("/tokenize", openapi_extra=described("/tokenize"))
    async def to_ids(request: Request) -> Response:
        return await tokenize(service, request)

    @app.post("/detokenize", openapi_extra=described("/detokenize"))
    async def to_text(request: Request) -> Response:
        return await detokenize(service, request)
