"""What balancers and routers ask of a server to which they may send requests: is it ready, how loaded is it."""

import time
from typing import Any

from fastapi import FastAPI
from starlette.responses import JSONResponse, Response

from benthic.server.answer_schemas import HEALTH, LOADS
from benthic.server.described import describe_get
from benthic.server.service import Service

READY_PATH = "/ready"
_RETRY_S = 1


def add_status_routes(app: FastAPI, service: Service) -> None:
    """Adds /ready and /v1/loads; /health is the application's own."""

    @app.head(READY_PATH, include_in_schema=False)
    @app.get(READY_PATH, responses=describe_get(HEALTH))
    async def ready() -> Response:
        state = service.channel.readiness
        is_ready = state == "ready"
        body = {"status": state, "warmed": service.facts.start.warmed}
        headers = None if is_ready else {"retry-after": str(_RETRY_S)}
        return JSONResponse(body, status_code=200 if is_ready else 503, headers=headers)

    @app.head("/v1/loads", include_in_schema=False)
    @app.get("/v1/loads", responses=describe_get(LOADS))
    async def loads() -> dict[str, Any]:
        return {"timestamp": time.time(), "loads": [load_of(service)]}


def load_of(service: Service) -> dict[str, Any]:
    """Figures by which a router chooses among servers."""
    stats, channel = service.channel.engine.stats, service.channel
    page_size = service.facts.config.page_size
    return {
        "state": service.channel.readiness,
        "num_open_sequences": channel.num_open,
        "max_open_sequences": service.config.max_open_sequences,
        "num_running_reqs": stats.num_running,
        "num_waiting_reqs": stats.num_waiting,
        "num_used_tokens": stats.used_pages * page_size,
        "max_total_num_tokens": stats.total_pages * page_size,
        "token_usage": stats.used_pages / stats.total_pages if stats.total_pages else 0.0,
        "cache_hit_rate": stats.num_cached_tokens / stats.num_prompt_tokens if stats.num_prompt_tokens else 0.0,
        "weight_version": stats.weight_version,
    }
