"""How many tokens of a reply were reasoning, counted as deepseek-recipe counts them for the other protocols.

It tells nothing for Messages. Neither `</think>` counts, nor the markup of a call that stands in the thinking, with the
empty lines before it.
"""


class ReasoningCount:
    """Counts the tokens of one reply as they are read.

    Args:
        is_thinking: whether the reply begins with reasoning.
    """

    def __init__(self, is_thinking: bool) -> None:
        self._is_counting = is_thinking
        self._num_empty = 0
        """Tokens at the end so far that are empty lines."""
        self.num_tokens = 0

    def take(self, text: str, num_tokens: int) -> None:
        """So many tokens that say this text."""
        if self._is_counting:
            self.num_tokens += num_tokens
            self._num_empty = 0 if text.strip("\n") else self._num_empty + num_tokens

    def end(self, *, begins_calls: bool) -> None:
        """The reasoning, if there is still some, ends here."""
        if self._is_counting and begins_calls:
            self.num_tokens -= self._num_empty
        self._is_counting = False
