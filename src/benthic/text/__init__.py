"""Words to tokens and back: tokenizer, prompt encoding, reading of replies. Knows no torch.

Start with `prompt.py` (a request becomes ids) and `stream.py` (ids become the reply).
"""

from benthic.text.conversation import Rendered, render_reply
from benthic.text.convert import render_conversation
from benthic.text.detokenize import Detokenizer, StopStrings
from benthic.text.prompt import Prompt, PromptEncoder, Sampling
from benthic.text.settings import PromptSettings, read_prompt_settings
from benthic.text.stream import Reply, ReplyStream, read_reply
from benthic.text.tokenizer import Tokenizer
from benthic.text.wire import Event

__all__ = [
    "Detokenizer",
    "Event",
    "Prompt",
    "PromptEncoder",
    "PromptSettings",
    "Rendered",
    "Reply",
    "ReplyStream",
    "Sampling",
    "StopStrings",
    "Tokenizer",
    "read_prompt_settings",
    "read_reply",
    "render_conversation",
    "render_reply",
]
