"""Prompts of checkpoints before V4. The templates below write what the published ones do, in fewer words."""

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from benthic.errors import CheckpointError, ConfigError, RequestError
from benthic.text import (
    PromptEncoder,
    PromptSettings,
    ReplyStream,
    Tokenizer,
    read_prompt_settings,
    read_reply,
    render_conversation,
)
from benthic.text.template_v32 import V32_TEMPLATE

BOS, EOS, USER, ASSISTANT = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"

V2 = (
    "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{{ bos_token }}"
    "{% for message in messages %}{% if message['role'] == 'user' %}{{ 'User: ' + message['content'] + '\n\n' }}"
    "{% elif message['role'] == 'assistant' %}{{ 'Assistant: ' + message['content'] + eos_token }}"
    "{% elif message['role'] == 'system' %}{{ message['content'] + '\n\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def later(reply: str, ending: str) -> str:
    """A template of V3 and later: `reply` is an earlier answer, `ending` what follows the last `<｜Assistant｜>`."""
    return (
        "{% set ns = namespace(system='') %}{% for m in messages %}{% if m['role'] == 'system' %}"
        "{% set ns.system = ns.system + m['content'] %}{% endif %}{% endfor %}{{ bos_token }}{{ ns.system }}"
        "{% for m in messages %}{% if m['role'] == 'user' %}{{ '<｜User｜>' + m['content'] }}"
        "{% elif m['role'] == 'assistant' %}{{ '<｜Assistant｜>' }}" + reply + "{{ eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<｜Assistant｜>' }}" + ending + "{% endif %}"
    )


CUT = "{% set c = m['content'] %}{% if '</think>' in c %}{% set c = c.split('</think>')[-1] %}{% endif %}{{ c }}"
V3 = later("{{ m['content'] }}", "")
R1 = later(CUT, "{{ '<think>\\n' }}")
V31 = later("{{ '</think>' }}" + CUT, "{% if thinking %}{{ '<think>' }}{% else %}{{ '</think>' }}{% endif %}")
TEMPLATES = {"V2": V2, "V3": V3, "R1": R1, "V3.1": V31, "V3.2": V32_TEMPLATE}
TALK = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "yes"},
    {"role": "user", "content": "why"},
]


def encoder(tokenizer: Tokenizer, template: str, **settings: Any) -> PromptEncoder:
    given = {"prompt_dialect": "template", "chat_template": template, "default_thinking": False, **settings}
    return PromptEncoder(tokenizer, context_len=4096, settings=PromptSettings(**given))


@pytest.mark.parametrize(
    ("name", "fields", "expected"),
    [
        ("V2", {}, f"{BOS}Be kind.\n\nUser: hello\n\nAssistant: yes{EOS}User: why\n\nAssistant:"),
        ("V3", {}, f"{BOS}Be kind.{USER}hello{ASSISTANT}yes{EOS}{USER}why{ASSISTANT}"),
        ("R1", {}, f"{BOS}Be kind.{USER}hello{ASSISTANT}yes{EOS}{USER}why{ASSISTANT}<think>\n"),
        ("V3.1", {}, f"{BOS}Be kind.{USER}hello{ASSISTANT}</think>yes{EOS}{USER}why{ASSISTANT}</think>"),
        (
            "V3.1",
            {"thinking": True},
            f"{BOS}Be kind.{USER}hello{ASSISTANT}</think>yes{EOS}{USER}why{ASSISTANT}<think>",
        ),
        ("V3.2", {}, f"{BOS}Be kind.{USER}hello{ASSISTANT}</think>yes{EOS}{USER}why{ASSISTANT}</think>"),
        (
            "V3.2",
            {"thinking": True},
            f"{BOS}Be kind.{USER}hello{ASSISTANT}</think>yes{EOS}{USER}why{ASSISTANT}<think>",
        ),
    ],
)
def test_each_version_gets_its_own_prompt(
    tokenizer: Tokenizer, name: str, fields: dict[str, Any], expected: str
) -> None:
    body = {"messages": TALK, **fields}
    prompt = encoder(tokenizer, TEMPLATES[name]).encode("chat", body)
    assert prompt.token_ids == tokenizer.encode_markup(expected)
    assert prompt.thinking == expected.rstrip().endswith("<think>")


@pytest.mark.parametrize("name", TEMPLATES)
@given(text=st.text(min_size=1, max_size=20) | st.sampled_from([USER, "a</think>b", EOS, "<think>", "{{ 1 }}", " a\n"]))
def test_what_a_user_writes_stays_text(tokenizer: Tokenizer, name: str, text: str) -> None:
    """However it spells: the control tokens of the prompt are those of a harmless message, and the text is there."""
    try:
        tokenizer.encode(text)
    except RequestError:
        return
    made = encoder(tokenizer, TEMPLATES[name])
    turns = [*TALK[:3], {"role": "user", "content": text}]
    prompt = made.render("chat", {"messages": turns})
    controls = [piece for piece, is_control in prompt.segments if is_control]
    harmless = made.render("chat", {"messages": TALK})
    assert controls == [piece for piece, is_control in harmless.segments if is_control]
    assert text in prompt.text


def test_v3_2_writes_several_user_messages_as_its_encoder_does(tokenizer: Tokenizer) -> None:
    """encoding_dsv32.py closes thinking after each but the last, and drops reasoning of earlier turns."""
    turns = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c", "reasoning_content": "r"},
        {"role": "user", "content": "d"},
    ]
    prompt = encoder(tokenizer, V32_TEMPLATE).render("chat", {"messages": turns, "thinking": True})
    assert prompt.text == (f"{BOS}{USER}a{ASSISTANT}</think>{USER}b{ASSISTANT}</think>c{EOS}{USER}d{ASSISTANT}<think>")


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("fields", "message", "param"),
    [
        ({"tools": [TOOL]}, "tools is given; it must be absent", "tools"),
        ({"reasoning_effort": "high"}, "reasoning_effort is given; it must be absent", "reasoning_effort"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}},
            "response_format is given; it must be absent",
            "response_format",
        ),
        (
            {
                "messages": [
                    *TALK,
                    {"role": "assistant", "content": "", "tool_calls": [CALL]},
                    {"role": "tool", "content": "1", "tool_call_id": "1"},
                ]
            },
            "the conversation has tool calls",
            "messages",
        ),
        ({"messages": TALK[:3]}, "the last message is of role 'assistant'; it must be the user's", "messages"),
        (
            {"messages": [TALK[1], {"role": "assistant", "content": "r</think>x"}, TALK[3]]},
            "would change the text of a message",
            "messages",
        ),
    ],
)
def test_what_a_template_cannot_say_is_refused(
    tokenizer: Tokenizer, fields: dict[str, Any], message: str, param: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        encoder(tokenizer, V31).encode("chat", {"messages": TALK, **fields})
    assert caught.value.param == param


def test_what_the_other_protocols_ask_beyond_texts_is_refused_too(tokenizer: Tokenizer) -> None:
    made = encoder(tokenizer, V31)
    body: dict[str, Any] = {"max_tokens": 5, "messages": TALK[1:]}
    assert made.encode("messages", body).token_ids
    with pytest.raises(RequestError, match="no reply can be continued"):
        made.encode("messages", {**body, "messages": TALK[1:3]})
    schema = {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}}
    with pytest.raises(RequestError, match="response_format is given"):
        made.encode("messages", {**body, **schema})
    assert made.encode("responses", {"input": "hello"}).token_ids


@pytest.mark.parametrize(
    ("name", "thinking", "message"),
    [("V2", True, "thinking is on; .* has no thinking"), ("R1", False, "thinking is off; .* begins every reply with")],
)
def test_a_mode_of_thinking_that_the_template_has_not_is_refused(
    tokenizer: Tokenizer, name: str, thinking: bool, message: str
) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        encoder(tokenizer, TEMPLATES[name]).encode("chat", {"messages": TALK, "thinking": thinking})
    assert caught.value.param == "thinking"


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% if %}", "is no Jinja template"),
        ("{{ raise_exception('no') }}", "writes no prompt for one user message: .*refuses this conversation: no"),
        ("{{ messages[0].content | upper }}", "has no place for messages|would change the text"),
        ("{{ messages.__class__.__mro__ }}{{ messages[0].content }}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.popen('id').read() }}", "unsafe|undefined|no place"),
        ("{{ bos_token }}", "has no place for messages"),
    ],
)
def test_a_template_that_cannot_write_is_refused_when_it_is_loaded(
    tokenizer: Tokenizer, template: str, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        encoder(tokenizer, template)


def test_a_message_that_the_template_drops_is_refused(tokenizer: Tokenizer) -> None:
    template = "{{ messages[-1].content }}"
    assert encoder(tokenizer, template).render("chat", {"messages": [TALK[1]]}).text == "hello"
    with pytest.raises(RequestError, match=r"has no place for messages\[0\], of role 'system'"):
        encoder(tokenizer, template).render("chat", {"messages": TALK})


def test_an_empty_message_is_written_as_one(tokenizer: Tokenizer) -> None:
    turns = [{"role": "user", "content": ""}]
    assert encoder(tokenizer, V3).render("chat", {"messages": turns}).text == f"{BOS}{USER}{ASSISTANT}"


def folder_of(tmp_path: Path, **files: Any) -> Path:
    for name, value in files.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(value))
    return tmp_path


def test_a_folder_of_an_earlier_family_brings_its_own_template(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, config={"model_type": "deepseek_v3"}, tokenizer_config={"chat_template": V3})
    assert read_prompt_settings(folder) == PromptSettings(
        prompt_dialect="template", chat_template=V3, default_thinking=False
    )
    (folder / "chat_template.jinja").write_text(R1)
    assert read_prompt_settings(folder).chat_template == R1, "the file of newer libraries comes first"


def test_of_several_templates_the_default_one_is_taken(tmp_path: Path) -> None:
    several = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": V2}]
    folder = folder_of(tmp_path, config={"model_type": "deepseek_v2"}, tokenizer_config={"chat_template": several})
    assert read_prompt_settings(folder).chat_template == V2
    folder_of(tmp_path, tokenizer_config={"chat_template": several[:1]})
    with pytest.raises(ConfigError, match='one has the name "default"'):
        read_prompt_settings(folder)


def test_v3_2_without_a_template_has_a_built_in_one_and_others_have_no_chat(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    folder = folder_of(tmp_path, config={"model_type": "deepseek_v32"})
    assert read_prompt_settings(folder).chat_template == V32_TEMPLATE
    settings = read_prompt_settings(folder_of(tmp_path, config={"model_type": "deepseek_v3"}))
    made = PromptEncoder(tokenizer, context_len=100, settings=settings)
    with pytest.raises(RequestError, match="this checkpoint has no chat template"):
        made.encode("chat", {"messages": TALK})


def test_training_prompts_of_a_template_need_a_tokenizer() -> None:
    with pytest.raises(ConfigError, match="use PromptEncoder.render"):
        render_conversation(TALK, settings=PromptSettings(prompt_dialect="template", chat_template=V3))


@pytest.fixture(scope="module")
def v2_tokenizer(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """A vocabulary without any token for roles, thinking or tools, as V2's."""
    settings = json.loads((small_folder / "tokenizer.json").read_text())
    settings["added_tokens"] = [t for t in settings["added_tokens"] if t["content"] in (BOS, EOS)]
    file = tmp_path_factory.mktemp("v2") / "tokenizer.json"
    file.write_text(json.dumps(settings))
    tokenizers.Tokenizer.from_file(str(file))
    return Tokenizer(file)


def test_a_vocabulary_without_v4s_control_tokens_reads_and_writes(v2_tokenizer: Tokenizer) -> None:
    made = encoder(v2_tokenizer, V2)
    prompt = made.encode("chat", {"messages": TALK, "logprobs": True, "top_logprobs": 1})
    assert prompt.token_ids[0] == v2_tokenizer.bos_token_id
    ids = [*v2_tokenizer.encode(" hello <think> 你好"), v2_tokenizer.eos_token_id]
    reply = read_reply(prompt, v2_tokenizer, ids)
    assert (reply.content, reply.reasoning, reply.finish_reason) == (" hello <think> 你好", "", "stop")
    stream = ReplyStream(prompt, v2_tokenizer, reply_id="x")
    events = stream.start()
    for token_id in ids:
        events += stream.push(0, [token_id], [(-0.5, [(token_id, -0.5)])])
    events += stream.finish(0, "stop")
    deltas = [json.loads(event.data)["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(deltas) == " hello <think> 你好"


@pytest.mark.parametrize("name", ["R1", "V3.1", "V3.2"])
def test_a_reply_is_read_in_the_mode_of_its_prompt(tokenizer: Tokenizer, name: str) -> None:
    prompt = encoder(tokenizer, TEMPLATES[name]).encode("chat", {"messages": TALK, "thinking": True})
    reply = read_reply(prompt, tokenizer, tokenizer.encode_markup(f"because</think>so{EOS}"))
    assert (reply.reasoning, reply.content) == ("because", "so")
