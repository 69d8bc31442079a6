"""From exceptions to HTTP answers: every refusal is one OpenAI error object.

The object is {"error": {"message", "type", "param", "code"}}; `param` names the offending request field.
"""

from typing import Any

from benthic.engine.request import ErrorKind
from benthic.errors import BenthicError, CapacityError, EngineError, PromptTooLong, RequestError, UnknownModel

_TIMEOUT = 408
_CONFLICT = 409


class ApiError(BenthicError):
    """One HTTP answer that says no.

    `status` is the HTTP status, `kind` the error object's `type`. `retry_after_s` becomes the retry-after headers.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        message = _writable(message)
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.code = code
        self.param = None if param is None else _writable(param)
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, Any]:
        """The OpenAI error object."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}

    def headers(self) -> dict[str, str]:
        """Headers that belong to the answer: both spellings of retry-after, where the client may try again."""
        if self.status == _TIMEOUT:  # the rest of the request may still come, and would be read as the next one
            return {"connection": "close"}
        if self.status == _CONFLICT:  # OpenAI's clients would send it again by themselves
            return {"x-should-retry": "false"}
        if self.retry_after_s is None:
            return {}
        seconds = max(1, round(self.retry_after_s))
        return {"retry-after": str(seconds), "retry-after-ms": str(round(self.retry_after_s * 1000))}


def _writable(text: str) -> str:
    """What of a request stands in a text may have no UTF-8 form; an answer needs one."""
    return text.encode("utf-8", "backslashreplace").decode()


def overloaded(message: str) -> ApiError:
    """No room for this request now; the same request may succeed shortly."""
    return ApiError(429, message, kind="rate_limit_error", code="server_overloaded", retry_after_s=1.0)


def shutting_down() -> ApiError:
    """The server finishes what runs and takes nothing new."""
    return _unavailable(
        "the server is shutting down and takes no new requests; send it to another server or try again later",
        "shutting_down",
    )


def needs_weights() -> ApiError:
    """The engine came back and could not have its weights again."""
    return _unavailable(
        "the engine lost its weights and takes no requests before an update brings new ones; send it to another server "
        "or try again later",
        "needs_weights",
    )


def cut_off() -> ApiError:
    """A reply that was running when the server had to stop."""
    return _unavailable(
        "this reply was cut off because the server is stopping; send the request again to another server or later",
        "shutting_down",
    )


def engine_gone() -> ApiError:
    """The engine has been given up; whoever runs the server must start it anew."""
    return _unavailable(
        "the engine has failed and is not started again; send the request to another server", "engine_unavailable"
    )


def too_slow(timeout_s: float) -> ApiError:
    """The client stopped sending in the middle of its request."""
    return ApiError(
        _TIMEOUT,
        f"the request body stopped arriving, or only trickled, for {timeout_s:g} seconds; send it without pauses",
        code="request_timeout",
    )


def internal_error() -> ApiError:
    """Something of ours failed; the details are in the server's log, not in the answer."""
    return ApiError(500, "the server failed to answer this request; its log has the reason", kind="server_error")


def aborted() -> ApiError:
    """Whoever runs the server has ended this request on purpose: nothing has failed, here or at the client's."""
    return ApiError(
        _CONFLICT,
        "this request was aborted by whoever runs the server; send it again only if it is still wanted",
        kind="conflict_error",
        code="cancelled",
    )


def unfinished(kind: ErrorKind | None, reason: str) -> ApiError:
    """The answer to a request that the engine took and ended with an error; `kind` None: it was cancelled there.

    What may go well when it is sent again says when.
    """
    message = f"the engine could not finish this request: {reason}"
    match kind:
        case "request":
            return ApiError(400, reason, code="invalid_value")
        case "capacity":
            return overloaded(reason)
        case "timeout":
            return ApiError(504, message, kind="server_error", code="request_timeout")
        case "engine":
            return _unavailable(message, "engine_failed", retry_after_s=2.0)
        case "numbers":
            return ApiError(500, message, kind="server_error", code="numbers_not_finite")
        case None:
            return aborted()


def api_error(error: Exception) -> ApiError:
    """The HTTP answer for any exception."""
    match error:
        case ApiError():
            return error
        case UnknownModel():
            return ApiError(404, str(error), code="model_not_found", param=error.param)
        case PromptTooLong():
            return ApiError(400, str(error), code="context_length_exceeded", param=error.param)
        case RequestError():
            return ApiError(400, str(error), code="invalid_value", param=error.param)
        case CapacityError():
            return overloaded(str(error))
        case EngineError():
            return _unavailable(str(error), "engine_unavailable")
        case BenthicError():
            return ApiError(500, str(error), kind="server_error")
        case _:
            return internal_error()


def _unavailable(message: str, code: str, retry_after_s: float = 5.0) -> ApiError:
    """Nothing is wrong with the request, but this server cannot answer it now."""
    return ApiError(503, message, kind="server_error", code=code, retry_after_s=retry_after_s)
