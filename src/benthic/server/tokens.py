"""/tokenize, /detokenize and /tokenizer_info: the served model's vocabulary over HTTP."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from benthic.server.body import read_object
from benthic.server.fields import Fields, check_token_ids, refuse
from benthic.server.service import Service
from benthic.server.streams import unless_disconnected
from benthic.server.text_choice import token_text
from benthic.text.tokenizer import BOS, EOS


async def tokenize(service: Service, request: Request) -> Response:
    """{"prompt": text, "add_special_tokens": bool} -> {"tokens", "count", "max_model_len"}.

    Control spellings in the text stay text. `add_special_tokens` puts the BOS token in front. With `messages` in place
    of `prompt` the body is that of a chat, and the tokens are its prompt. `return_token_strs` adds their spellings.
    """
    body = await read_object(request, service.config, service.intake)
    if "messages" in body:
        with_strings = Fields({"return_token_strs": body.pop("return_token_strs", None)}).boolean("return_token_strs")
        ids = await unless_disconnected(request, service.intake.run(body, _chat_ids, service, body))
    else:
        fields = Fields(body)
        with_strings = fields.boolean("return_token_strs")
        text = fields.text("prompt")
        is_begun = fields.boolean("add_special_tokens")
        service.check_model(fields.optional_text("model"))
        service.count_unknown(fields)
        ids = await unless_disconnected(request, service.intake.run(text, service.tokenizer.encode, text))
        if is_begun:
            ids = [service.tokenizer.bos_token_id, *ids]
    answer = {"tokens": ids, "count": len(ids), "max_model_len": service.context_len}
    if with_strings:
        answer["token_strs"] = [token_text(service.tokenizer, token_id) for token_id in ids]
    return JSONResponse(answer)


def _chat_ids(service: Service, body: dict[str, Any]) -> list[int]:
    return service.prompts.render("chat", body).encode(service.tokenizer)


async def detokenize(service: Service, request: Request) -> Response:
    """{"tokens": ids} -> {"prompt": text}."""
    fields = Fields(await read_object(request, service.config, service.intake))
    ids = fields.raw("tokens")
    size = service.tokenizer.vocab_size
    if not isinstance(ids, list):
        refuse("tokens", ids, f"a list of token ids in 0..{size - 1}")
    check_token_ids(ids, size, param="tokens")
    service.check_model(fields.optional_text("model"))
    service.count_unknown(fields)
    return JSONResponse({"prompt": await service.intake.run(ids, service.tokenizer.decode, ids)})


def tokenizer_info(service: Service) -> Response:
    """What evaluation harnesses ask before they tokenise over HTTP. Prompts have no Jinja template."""
    return JSONResponse(
        {
            "bos_token": BOS,
            "eos_token": EOS,
            "pad_token": None,
            "chat_template": None,
            "vocab_size": service.tokenizer.vocab_size,
            "model_max_length": service.context_len,
        }
    )
