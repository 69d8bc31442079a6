"""The OpenAI client against `benthic serve`: a streamed answer, a thought, and a tool that is really called.

pip install openai; benthic serve; python examples/openai_client.py
"""

import json
import sys

from openai import OpenAI

client = OpenAI(base_url=sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000/v1", api_key="none")
model = client.models.list().data[0].id

QUESTION = {"role": "user", "content": "What is 347 + 285?"}
ERRAND = {"role": "user", "content": "What is the weather in Paris?"}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def ask(thinking: bool) -> None:
    """Stream one answer; reasoning comes in a field of its own."""
    mode = {"thinking": {"type": "enabled" if thinking else "disabled"}}
    stream = client.chat.completions.create(
        model=model, messages=[QUESTION], stream=True, temperature=0, extra_body=mode
    )
    shown = ""
    for chunk in stream:
        for field in ("reasoning_content", "content"):
            text = getattr(chunk.choices[0].delta, field, None)
            if text:
                print(text if shown == field else f"\n{field}: {text}", end="", flush=True)
                shown = field
    print()


def call_a_tool() -> None:
    """Let the model call, answer the call, and let it speak."""
    mode = {"thinking": {"type": "disabled"}}
    messages = [ERRAND]
    reply = client.chat.completions.create(
        model=model, messages=messages, tools=[WEATHER], temperature=0, extra_body=mode
    ).choices[0]
    print(reply.finish_reason, reply.message.content or "")
    messages.append(reply.message.model_dump(exclude_none=True))
    for call in reply.message.tool_calls or []:
        print("call:", call.function.name, json.loads(call.function.arguments))
        messages.append(
            {"role": "tool", "tool_call_id": call.id, "content": '{"temperature": 21, "condition": "clear"}'}
        )
    final = client.chat.completions.create(
        model=model, messages=messages, tools=[WEATHER], temperature=0, extra_body=mode
    )
    print(final.choices[0].message.content)


ask(thinking=False)
ask(thinking=True)
call_a_tool()
