"""The object around an error: Anthropic's under /v1/messages, OpenAI's everywhere else.

Anthropic's clients read `error.type` and choose an exception by it, so it has that protocol's words.
"""

from typing import Any

from benthic.server.errors import ApiError

_MESSAGES = "/v1/messages"
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    409: "conflict_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(path: str, error: ApiError, request_id: str) -> dict[str, Any]:
    """The JSON that a refusal at this path has; Anthropic's also says which request it was."""
    if not is_anthropic(path):
        return error.body()
    # `param` and `code` are not theirs; they say the same as elsewhere.
    inner = {"type": anthropic_type(error), "message": error.message, "param": error.param, "code": error.code}
    return {"type": "error", "error": inner, "request_id": request_id}


def is_anthropic(path: str) -> bool:
    """Whether clients of this path speak Anthropic's protocol."""
    return path == _MESSAGES or path.startswith(_MESSAGES + "/")


def anthropic_type(error: ApiError) -> str:
    """What Anthropic calls an error of this status."""
    return _TYPES.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
