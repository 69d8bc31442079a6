"""The `Host` protocol over HTTP: one route a method, spoken by `RemoteHost`, passed on unread by a gateway."""

from typing import Any, Protocol

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from benthic.errors import RequestError
from benthic.sandbox.fleet.frames import one_frame, request_of
from benthic.sandbox.fleet.once import Once
from benthic.sandbox.fleet.responses import Answering, answer_response, body_of, json_of, page_response
from benthic.sandbox.host import Answer, Host, Rebuilt, SandboxInfo
from benthic.sandbox.live import checked_count
from benthic.sandbox.records import SandboxSpec, SnapshotRef
from benthic.sandbox.wire import decode, encode, pack_result


class Door(Protocol):
    """What decides over sandboxes that come and go: these three of `Host` may be refused before it is asked."""

    async def create(
        self, spec: SandboxSpec, *, key: str | None = None, snapshot: SnapshotRef | None = None
    ) -> SandboxInfo: ...

    async def fork(self, sandbox_id: str, count: int, *, seq: int | None = None) -> list[SandboxInfo]: ...

    async def branch(self, sandbox_id: str, seq: int, *, key: str | None = None) -> SandboxInfo: ...

    async def rebuild(self, sandbox_id: str, *, may_rerun: bool = False) -> Rebuilt: ...

    async def close(self, sandbox_id: str) -> None: ...


def host_router(host: Host, door: Door, once: Once) -> APIRouter:
    """The routes of one host."""
    router = APIRouter()
    answering = Answering(once)
    _add_door(router, door, answering)
    _add_life(router, host, answering)
    _add_calls(router, host, answering)
    _add_jobs(router, host, answering)

    @router.get("/sandboxes/{sandbox_id}/incarnation")
    async def incarnation(sandbox_id: str) -> Response:
        return JSONResponse({"incarnation": once.incarnation})

    return router


def _add_door(router: APIRouter, door: Door, answering: Answering) -> None:
    @router.post("/sandboxes")
    async def create(http: HttpRequest) -> Response:
        spec, key, snapshot = creation_of(await json_of(http))
        return await answering.held(http, lambda: door.create(spec, key=key, snapshot=snapshot), encoded)

    @router.post("/sandboxes/{sandbox_id}/fork")
    async def fork(sandbox_id: str, http: HttpRequest) -> Response:
        fields = await json_of(http)
        count, seq = count_of(fields), field_of(fields, "seq", int, default=None)
        return await answering.held(http, lambda: door.fork(sandbox_id, count, seq=seq), encoded)

    @router.post("/sandboxes/{sandbox_id}/branch")
    async def branch(sandbox_id: str, http: HttpRequest) -> Response:
        fields = await json_of(http)
        seq, key = field_of(fields, "seq", int), field_of(fields, "key", str, default=None)
        return await answering.held(http, lambda: door.branch(sandbox_id, seq, key=key), encoded)

    @router.post("/sandboxes/{sandbox_id}/rebuild")
    async def rebuild(sandbox_id: str, http: HttpRequest) -> Response:
        may_rerun = field_of(await json_of(http), "may_rerun", bool, default=False)
        return await answering.held(http, lambda: door.rebuild(sandbox_id, may_rerun=may_rerun), encoded)

    @router.delete("/sandboxes/{sandbox_id}")
    async def close(sandbox_id: str, http: HttpRequest) -> Response:
        return await answering.held(http, lambda: door.close(sandbox_id))


def _add_life(router: APIRouter, host: Host, answering: Answering) -> None:
    @router.get("/sandboxes")
    async def sandboxes(http: HttpRequest) -> Response:
        return await answering.held(http, host.sandboxes, encoded, is_remembered=False)

    @router.get("/sandboxes/{sandbox_id}")
    async def info(sandbox_id: str, http: HttpRequest) -> Response:
        return await answering.held(http, lambda: host.info(sandbox_id), encoded, is_remembered=False)

    @router.get("/sandboxes/{sandbox_id}/log")
    async def log(sandbox_id: str, http: HttpRequest) -> Response:
        return await answering.held(http, lambda: host.log(sandbox_id), is_remembered=False)

    @router.post("/sandboxes/{sandbox_id}/pause")
    async def pause(sandbox_id: str, http: HttpRequest) -> Response:
        return await answering.held(http, lambda: host.pause(sandbox_id))

    @router.post("/sandboxes/{sandbox_id}/resume")
    async def resume(sandbox_id: str, http: HttpRequest) -> Response:
        return await answering.held(http, lambda: host.resume(sandbox_id))

    @router.post("/sandboxes/{sandbox_id}/renew")
    async def renew(sandbox_id: str, http: HttpRequest) -> Response:
        lease_s = field_of(await json_of(http), "lease_s", float)
        return await answering.held(http, lambda: host.renew(sandbox_id, lease_s))

    @router.post("/sandboxes/{sandbox_id}/snapshot")
    async def snapshot(sandbox_id: str, http: HttpRequest) -> Response:
        fields = await json_of(http)
        name, seq = field_of(fields, "name", str, default=None), field_of(fields, "seq", int, default=None)
        return await answering.held(http, lambda: host.snapshot(sandbox_id, name, seq=seq), encoded)

    @router.get("/sandboxes/{sandbox_id}/checkpoint")
    async def checkpoint(sandbox_id: str, http: HttpRequest, last_seq: int | None = None) -> Response:
        return await answering.held(http, lambda: host.checkpoint(sandbox_id, last_seq), is_remembered=False)

    @router.post("/sandboxes/{sandbox_id}/expose")
    async def expose(sandbox_id: str, http: HttpRequest) -> Response:
        port = field_of(await json_of(http), "port", int)
        return await answering.held(
            http, lambda: host.expose(sandbox_id, port), lambda path: JSONResponse({"path": path})
        )


def _add_calls(router: APIRouter, host: Host, answering: Answering) -> None:
    @router.post("/sandboxes/{sandbox_id}/calls/{seq}")
    async def call(sandbox_id: str, seq: int, http: HttpRequest) -> Response:
        request = request_of(one_frame(await body_of(http)))
        if request.verb in ("snapshot", "fork"):  # else they would pass by whoever counts sandboxes
            raise RequestError(
                f"{request.verb} has a path of its own; POST it to /sandboxes/{sandbox_id}/{request.verb}"
            )
        return await answering.held(
            http, lambda: host.call(sandbox_id, seq, request), answer_response, is_remembered=False
        )

    @router.get("/sandboxes/{sandbox_id}/calls")
    async def answers(sandbox_id: str, http: HttpRequest, first_seq: int = 0) -> Response:
        return await answering.held(
            http, lambda: host.answers(sandbox_id, first_seq), page_response, is_remembered=False
        )

    @router.post("/sandboxes/{sandbox_id}/streams/{seq}")
    async def stream(sandbox_id: str, seq: int, http: HttpRequest) -> Response:
        request = request_of(one_frame(await body_of(http)))
        return answering.streamed(host.stream(sandbox_id, seq, request))


def _add_jobs(router: APIRouter, host: Host, answering: Answering) -> None:
    @router.get("/sandboxes/{sandbox_id}/jobs/{seq}/output")
    async def output(sandbox_id: str, seq: int) -> Response:
        return answering.streamed(host.output(sandbox_id, seq))

    @router.post("/sandboxes/{sandbox_id}/jobs/{seq}/wait")
    async def wait(sandbox_id: str, seq: int, http: HttpRequest) -> Response:
        async def result() -> Answer:
            value, data = pack_result(await host.wait(sandbox_id, seq))
            return Answer(value=value, data=data, seq=seq)

        return await answering.held(http, result, answer_response, is_remembered=False)

    @router.post("/sandboxes/{sandbox_id}/jobs/{seq}/signal")
    async def signal(sandbox_id: str, seq: int, http: HttpRequest) -> Response:
        number = field_of(await json_of(http), "signal", int)
        return await answering.held(http, lambda: host.signal(sandbox_id, seq, number))

    @router.post("/sandboxes/{sandbox_id}/jobs/{seq}/input")
    async def feed(sandbox_id: str, seq: int, http: HttpRequest) -> Response:
        data = None if "end" in http.query_params else await body_of(http)
        return await answering.held(http, lambda: host.feed(sandbox_id, seq, data))

    @router.post("/sandboxes/{sandbox_id}/jobs/{seq}/resize")
    async def resize(sandbox_id: str, seq: int, http: HttpRequest) -> Response:
        fields = await json_of(http)
        rows, columns = field_of(fields, "rows", int), field_of(fields, "columns", int)
        return await answering.held(http, lambda: host.resize(sandbox_id, seq, rows, columns))


def creation_of(fields: dict[str, Any]) -> tuple[SandboxSpec, str | None, SnapshotRef | None]:
    """What a body asks to be made.

    Raises:
        RequestError: a field is wrong.
    """
    snapshot = fields.get("snapshot")
    return (
        decode(SandboxSpec, fields.get("spec", {}), "spec"),
        field_of(fields, "key", str, default=None),
        None if snapshot is None else decode(SnapshotRef, snapshot, "snapshot"),
    )


def count_of(fields: dict[str, Any]) -> int:
    """How many forks a body asks for.

    Raises:
        RequestError: none, or too many.
    """
    return checked_count(field_of(fields, "count", int, default=1))


def field_of(fields: dict[str, Any], name: str, kind: type, *, default: Any = ...) -> Any:
    """One field of a body.

    Raises:
        RequestError: it is missing or of another type.
    """
    if fields.get(name) is None and default is not ...:
        return default
    if name not in fields:
        raise RequestError(f"{name} is missing; this request needs it", param=name)
    return decode(kind, fields[name], name)


def encoded(value: Any) -> Response:
    """The response of a record or a list of them."""
    return JSONResponse(encode(value))
