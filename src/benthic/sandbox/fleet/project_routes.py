"""Tokens and quotas over HTTP, for the fleet's own token or an administrator's."""

import re
from collections.abc import Callable

from fastapi import APIRouter, Response
from fastapi import Request as HttpRequest
from fastapi.responses import JSONResponse

from benthic.errors import RequestError, shown
from benthic.sandbox.fleet.host_routes import encoded, field_of
from benthic.sandbox.fleet.projects import Projects, Quota
from benthic.sandbox.fleet.responses import json_of
from benthic.sandbox.wire import decode

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def project_router(projects: Projects, must_be_admin: Callable[[HttpRequest], None]) -> APIRouter:
    """The routes; `must_be_admin` raises for everybody else."""
    router = APIRouter()

    @router.post("/tokens")
    async def add_token(http: HttpRequest) -> Response:
        must_be_admin(http)
        fields = await json_of(http)
        project, label = field_of(fields, "project", str), field_of(fields, "label", str, default="")
        if not _NAME.fullmatch(project):
            raise RequestError(
                f"project ({shown(project)}) must be letters, digits, dots and dashes, 63 at most", param="project"
            )
        is_admin = field_of(fields, "is_admin", bool, default=False)
        return JSONResponse({"token": projects.add_token(project, label=label, is_admin=is_admin)})

    @router.post("/tokens/remove")
    async def remove_token(http: HttpRequest) -> Response:
        must_be_admin(http)
        projects.remove_token(field_of(await json_of(http), "token", str))
        return JSONResponse(None)

    @router.put("/projects/{project}/quota")
    async def set_quota(project: str, http: HttpRequest) -> Response:
        must_be_admin(http)
        quota = decode(Quota, await json_of(http))
        projects.set_quota(project, quota)
        return encoded(quota)

    @router.get("/projects/{project}/quota")
    async def quota(project: str, http: HttpRequest) -> Response:
        must_be_admin(http)
        return encoded(projects.quota(project))

    return router
