"""Responses objects and events of deepseek-recipe, corrected where they do not say what was asked or what happened.

- Settings of the request are repeated as they were (`reported_settings`), sampling values as they were used.
- Reasoning items carried a placeholder as `encrypted_content`: now the sealed reasoning where it was asked for.
- A call that nobody can carry out (arguments that are no object, an unknown function) is an item with the status
  "incomplete"; the protocol has no other word for it.
- Events that say nothing are dropped, so events are numbered here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from benthic.text.responses_fields import seal

Problem = Callable[[str, str], str | None]
"""What is wrong with a call of this name and these arguments."""

_DONE = "response.output_item.done"
_ITEM_EVENTS = ("response.output_item.added", _DONE)


class ResponsesEvents:
    """Corrects the events of one reply, in order.

    Args:
        reported: overrides of the response object's fields.
        is_sealed: whether reasoning items carry their text as `encrypted_content`, too.
        problem: judges calls.
    """

    def __init__(self, reported: Mapping[str, Any], *, is_sealed: bool, problem: Problem) -> None:
        self._reported = reported
        self._is_sealed = is_sealed
        self._problem = problem
        self._number = 0

    def correct(self, data: dict[str, Any]) -> None:
        """An event, in place."""
        data["sequence_number"] = self._number
        self._number += 1
        if "response" in data:
            self.correct_response(data["response"])
        elif data["type"] in _ITEM_EVENTS:
            self._correct_item(data["item"], is_whole=data["type"] == _DONE)

    def correct_response(self, response: dict[str, Any]) -> None:
        """A whole response object, in place."""
        response.update(self._reported)
        for item in response["output"]:
            self._correct_item(item, is_whole=True)

    def failed(self, response: dict[str, Any], message: str, code: str, kind: str) -> dict[str, Any]:
        """The event that ends a reply which broke off; `response` is what there is of it."""
        self.correct_response(response)
        error = {"code": code, "message": message, "type": kind}
        response |= {"status": "failed", "error": error, "completed_at": None, "incomplete_details": None}
        data = {"type": "response.failed", "response": response, "sequence_number": self._number}
        self._number += 1
        return data

    def _correct_item(self, item: dict[str, Any], *, is_whole: bool) -> None:
        if item["type"] == "reasoning":
            item.pop("encrypted_content", None)
            if self._is_sealed and is_whole:
                item["encrypted_content"] = seal("".join(part["text"] for part in item["content"]))
        elif item["type"] == "function_call" and is_whole and self._problem(item["name"], item["arguments"]):
            item["status"] = "incomplete"
