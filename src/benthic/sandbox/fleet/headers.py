"""The headers and status codes that clients, gateway and agents understand, beside those of HTTP."""

from collections.abc import Mapping

from benthic.errors import BenthicError, CapacityError, RequestError
from benthic.sandbox.errors import (
    CommandTimeout,
    HostUnreachable,
    NotSupported,
    OutcomeUnknown,
    OutputLimit,
    PathError,
    QuotaExceeded,
    SandboxDied,
    TokenRefused,
    TrajectoryDiverged,
    UnknownSandbox,
)

REQUEST_ID = "benthic-request"
"""Names one request of a client through all its attempts: a host that has seen it joins or repeats its answer."""
INCARNATION = "benthic-incarnation"
"""In a response: one run of one agent. Its memory of requests ends with it."""
AGAIN = "benthic-again"
"""In a request that may have arrived before: the incarnation that would remember it. Another one must not run it."""
RETRY = "benthic-retry"
"""In a response: nothing was decided; the same request may succeed later."""
HOLD = "benthic-hold"
"""In a request: seconds after which a response 202 is welcome; the client then sends the same request again."""

STATUS: Mapping[type[BenthicError], int] = {
    RequestError: 400,
    TokenRefused: 401,
    UnknownSandbox: 404,
    QuotaExceeded: 429,
    PathError: 422,
    SandboxDied: 410,
    TrajectoryDiverged: 409,
    OutcomeUnknown: 409,
    CommandTimeout: 408,
    OutputLimit: 413,
    NotSupported: 501,
    CapacityError: 503,
    HostUnreachable: 503,
}


def status_of(error: BenthicError) -> int:
    """The status code of a response that carries this error."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), 500)
