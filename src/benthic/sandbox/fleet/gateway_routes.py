"""The gateway's HTTP: the paths of an agent, each for whoever the sandbox belongs to, and those of the fleet itself."""

import asyncio
import contextlib
import hmac
import json
import uuid
from collections.abc import AsyncIterator
from typing import Literal

from fastapi import FastAPI, Response, WebSocket
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from benthic.errors import RequestError
from benthic.sandbox.errors import HostUnreachable, SandboxDied, TokenRefused
from benthic.sandbox.fleet import headers as names
from benthic.sandbox.fleet.forwarding import forward
from benthic.sandbox.fleet.gateway import Gateway
from benthic.sandbox.fleet.host_routes import count_of, creation_of, encoded, field_of
from benthic.sandbox.fleet.metrics import CONTENT_TYPE
from benthic.sandbox.fleet.once import Once
from benthic.sandbox.fleet.project_routes import project_router
from benthic.sandbox.fleet.projects import DEFAULT_PROJECT, Caller
from benthic.sandbox.fleet.rebuild import rebuild
from benthic.sandbox.fleet.responses import Answering, body_of, json_of, object_of, refuse_in_words
from benthic.sandbox.fleet.sandbox_rows import SandboxRow
from benthic.sandbox.fleet.status import HostStatus
from benthic.sandbox.fleet.terminal import terminal_router
from benthic.sandbox.fleet.watcher import Watcher
from benthic.sandbox.host import Host, Rebuilt, SandboxInfo
from benthic.sandbox.records import Reason, SnapshotRef, State
from benthic.sandbox.wire import decode, encode


def gateway_app(gateway: Gateway) -> FastAPI:
    """The HTTP application of a gateway."""
    once = Once()

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        watch = asyncio.create_task(Watcher(gateway).run())
        yield
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await once.aclose()
        await gateway.aclose()

    app = FastAPI(title="Benthic sandbox gateway", lifespan=lifespan)
    refuse_in_words(app)
    _add_fleet(app, gateway)
    app.include_router(project_router(gateway.projects, lambda http: _must_be_admin(gateway, http)))
    _add_sandboxes(app, gateway, Answering(once))
    app.include_router(terminal_router(lambda socket, sandbox_id: _host_for_terminal(gateway, socket, sandbox_id)))
    return app


def caller_of(gateway: Gateway, authorization: str | None) -> Caller:
    """Who sent a request.

    Raises:
        TokenRefused: nobody that is known.
    """
    token = (authorization or "").removeprefix("Bearer ").strip()
    if not token and gateway.config.is_open:
        return Caller(DEFAULT_PROJECT)
    if hmac.compare_digest(token.encode(), gateway.config.token.encode()):
        return Caller(DEFAULT_PROJECT, is_admin=True)
    caller = gateway.projects.caller(token) if token else None
    if caller is None:
        raise TokenRefused("the token is missing or opens nothing here; send `Authorization: Bearer TOKEN`")
    return caller


def _add_fleet(app: FastAPI, gateway: Gateway) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics(http: HttpRequest) -> Response:
        _must_be_admin(gateway, http)
        return Response(gateway.metrics.render(), media_type=CONTENT_TYPE)

    @app.get("/hosts")
    async def hosts(http: HttpRequest) -> Response:
        _must_be_admin(gateway, http)
        return JSONResponse([
            {**encode(entry.status), "sandboxes": len(entry.status.sandboxes), "state": entry.state}
            for entry in gateway.hosts.all()
        ])  # fmt: skip

    @app.post("/hosts/{name}/heartbeat")
    async def heartbeat(name: str, http: HttpRequest) -> Response:
        _must_be_admin(gateway, http)
        status = decode(HostStatus, await json_of(http))
        if status.name != name:
            raise RequestError(f"name ({status.name!r}) must be the one in the path, {name!r}", param="name")
        return JSONResponse({"close": await gateway.heartbeat(status)})

    @app.post("/hosts/{name}/drain")
    async def drain(name: str, http: HttpRequest) -> Response:
        _must_be_admin(gateway, http)
        gateway.hosts.drain(name, field_of(await json_of(http), "is_draining", bool, default=True))
        return JSONResponse(None)


def _add_sandboxes(app: FastAPI, gateway: Gateway, answering: Answering) -> None:
    @app.post("/sandboxes")
    async def create(http: HttpRequest) -> Response:
        caller = _caller(gateway, http)
        fields = await json_of(http)
        spec, key, snapshot = creation_of(fields)
        can_rebuild = field_of(fields, "rebuild", bool, default=False)
        if snapshot is not None and gateway.sandboxes.home_of_snapshot(snapshot, caller.project) is None:
            raise RequestError(f"snapshot {snapshot.id!r} is unknown to project {caller.project!r}", param="snapshot")
        return await answering.held(
            http,
            lambda: gateway.create(caller, spec, key=key, snapshot=snapshot, can_rebuild=can_rebuild),
            encoded,
        )

    @app.get("/sandboxes")
    async def sandboxes(http: HttpRequest) -> Response:
        rows = gateway.sandboxes.alive(project=_caller(gateway, http).sees)
        return encoded([row.info() for row in rows])

    @app.get("/sandboxes/{sandbox_id}")
    async def info(sandbox_id: str, http: HttpRequest) -> Response:
        row = gateway.sandboxes.get(sandbox_id, _caller(gateway, http).sees)
        return await answering.held(http, lambda: gateway.info(row), encoded, is_remembered=False)

    @app.delete("/sandboxes/{sandbox_id}")
    async def close(sandbox_id: str, http: HttpRequest) -> Response:
        row = gateway.sandboxes.get(sandbox_id, _caller(gateway, http).sees)
        return await answering.held(http, lambda: gateway.close(row))

    @app.post("/sandboxes/{sandbox_id}/fork")
    async def fork(sandbox_id: str, http: HttpRequest) -> Response:
        return await _multiply(gateway, sandbox_id, "fork", http)

    @app.post("/sandboxes/{sandbox_id}/branch")
    async def branch(sandbox_id: str, http: HttpRequest) -> Response:
        return await _multiply(gateway, sandbox_id, "branch", http)

    @app.post("/sandboxes/{sandbox_id}/rebuild")
    async def rebuild_(sandbox_id: str, http: HttpRequest) -> Response:
        row = gateway.sandboxes.get(sandbox_id, _caller(gateway, http).sees)
        return await answering.held(http, lambda: _rebuild(gateway, row), encoded)

    @app.post("/sandboxes/{sandbox_id}/snapshot")
    async def snapshot(sandbox_id: str, http: HttpRequest) -> Response:
        row = gateway.sandboxes.get(sandbox_id, _caller(gateway, http).sees)
        response = await forward(gateway, row, "/snapshot", http)
        if response.status_code == 200:
            ref = decode(SnapshotRef, json.loads(bytes(response.body)))
            gateway.sandboxes.add_snapshot(ref, row.project, row.host)
        return response

    @app.api_route("/sandboxes/{sandbox_id}/{rest:path}", methods=["GET", "POST", "PUT", "DELETE"])
    async def rest(sandbox_id: str, rest: str, http: HttpRequest) -> Response:
        row = gateway.sandboxes.get(sandbox_id, _caller(gateway, http).sees)
        return await forward(gateway, row, f"/{rest}", http)


async def _rebuild(gateway: Gateway, row: SandboxRow) -> Rebuilt:
    """What its owner asks for, where the watcher has given up or was not asked to try."""
    if row.state is not State.DEAD:
        return await gateway.open_host(row).host.rebuild(row.id)
    if row.reason not in (Reason.CRASHED, Reason.HOST_LOST):
        row.must_live()
    gateway.sandboxes.revive(row.id)
    outcome = await rebuild(gateway, row)
    if outcome.rebuilt is not None:
        return outcome.rebuilt
    if outcome.word == "later":
        gateway.sandboxes.set_state(row.id, State.DEAD, row.reason, row.detail)
        raise HostUnreachable(f"no host can make sandbox {row.id} again now; ask again")
    raise SandboxDied(row.id, Reason.HOST_LOST, gateway.sandboxes.get(row.id, None).detail)


async def _multiply(gateway: Gateway, sandbox_id: str, what: Literal["fork", "branch"], http: HttpRequest) -> Response:
    """Quota is reserved first, and new sandboxes are written down before anybody is told of them."""
    row = gateway.sandboxes.get(sandbox_id, _caller(gateway, http).sees)
    body = await body_of(http)
    fields = object_of(body)
    count = count_of(fields) if what == "fork" else 1
    given = fields.get("seq") if what == "fork" else fields.get("key")
    name = http.headers.get(names.REQUEST_ID) or uuid.uuid4().hex if given is None else str(given)
    keys = [f"{what}/{row.id}/{name}/{index}" for index in range(count)]
    if what == "branch":  # hosts know the keys of all projects, and these must not meet
        body = json.dumps({**fields, "key": f"{row.project}/{keys[0]}"}).encode()
    gateway.creations.reserve_forks(row.project, keys, row.spec, row.host)
    response = await forward(gateway, row, f"/{what}", http, body)
    if response.status_code == 200:
        made = json.loads(bytes(response.body))
        gateway.add_forks(row, keys, [decode(SandboxInfo, item) for item in (made if what == "fork" else [made])])
    elif names.RETRY not in response.headers and response.status_code != 202:
        gateway.creations.drop_all(row.project, keys)
    return response


def _host_for_terminal(gateway: Gateway, socket: WebSocket, sandbox_id: str) -> Host:
    # browsers cannot set headers on a WebSocket, so a token may come in the query of this one path
    authorization = socket.headers.get("authorization") or f"Bearer {socket.query_params.get('token', '')}"
    row = gateway.sandboxes.get(sandbox_id, caller_of(gateway, authorization).sees)
    return gateway.open_host(row).host


def _caller(gateway: Gateway, http: HttpRequest) -> Caller:
    return caller_of(gateway, http.headers.get("authorization"))


def _must_be_admin(gateway: Gateway, http: HttpRequest) -> None:
    if not _caller(gateway, http).is_admin:
        raise TokenRefused("this is for the fleet's own token, or an administrator's")
