"""The routes of the three conversation protocols, and of counting a prompt without running it."""

from functools import partial

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from benthic.server.body import read_object
from benthic.server.described import describe
from benthic.server.protocols import converse
from benthic.server.service import Service
from benthic.server.streams import unless_disconnected
from benthic.text.protocol_fields import Protocol


def add_protocol_routes(app: FastAPI, service: Service) -> None:
    """Chat completions, Responses and Messages; each reads and judges its own body."""
    described = partial(describe, name=service.name, vocab_size=service.tokenizer.vocab_size)

    @app.post("/v1/chat/completions", openapi_extra=described("/v1/chat/completions"))
    async def chat(request: Request) -> Response:
        return await converse(service, request, "chat")

    @app.post("/v1/responses", openapi_extra=described("/v1/responses"))
    async def responses(request: Request) -> Response:
        return await converse(service, request, "responses")

    @app.post("/v1/messages", openapi_extra=described("/v1/messages"))
    async def messages(request: Request) -> Response:
        return await converse(service, request, "messages")

    @app.post("/v1/responses/input_tokens", openapi_extra=described("/v1/responses/input_tokens"))
    async def count_input(request: Request) -> Response:
        num_tokens = await _count(service, request, "responses")
        return JSONResponse({"object": "response.input_tokens", "input_tokens": num_tokens})

    @app.post("/v1/messages/count_tokens", openapi_extra=described("/v1/messages/count_tokens"))
    async def count_messages(request: Request) -> Response:
        return JSONResponse({"input_tokens": await _count(service, request, "messages")})


async def _count(service: Service, request: Request, protocol: Protocol) -> int:
    """Prompt tokens of a body; nothing of it reaches the engine."""
    body = await read_object(request, service.config, service.intake)
    return await unless_disconnected(request, service.intake.run(body, service.prompts.count, protocol, body))
