"""Who may talk to an agent: whoever has the fleet's own secret, or can open its unix socket."""

import hmac
import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from benthic.sandbox.fleet.headers import INCARNATION

_SAID = "an agent answers to the fleet's own token alone; clients ask the gateway"
_REFUSED = json.dumps({"error": "TokenRefused", "message": _SAID, "value": {"message": _SAID}}).encode()


class FleetAccess:
    """Lets requests with the fleet's token through, and writes the agent's incarnation on every response.

    Args:
        app: behind it.
        token: the secret; None lets everybody in, which only a unix socket may.
        incarnation: of this agent.
    """

    def __init__(self, app: ASGIApp, *, token: str | None, incarnation: str) -> None:
        self._app = app
        self._wanted = None if token is None else f"Bearer {token}".encode()
        self._stamp = (INCARNATION.encode(), incarnation.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection's request."""

        async def stamped(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], self._stamp]
            await send(message)

        if scope["type"] == "lifespan" or self._is_admitted(scope):
            await self._app(scope, receive, stamped)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json")]
            await stamped({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": _REFUSED})

    def _is_admitted(self, scope: Scope) -> bool:
        if self._wanted is None or (scope["type"] == "http" and scope["path"] == "/health"):
            return True
        given = dict(scope["headers"]).get(b"authorization", b"")
        return hmac.compare_digest(given, self._wanted)
