"""`benthic chat` with partners that answer by script: what is sent, what is shown, what is kept."""

import json
import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from benthic.cli.chat_partner import RemotePartner, ServerError
from benthic.cli.command import DEFECT, run
from benthic.cli.conversation import Conversation
from benthic.cli.line_editor import LineEditor, history_file
from benthic.cli.terminal_chat import TerminalChat
from benthic.errors import ConfigError
from tests.cli.test_command import SOURCE


class Echo:
    """Answers every question with its words, after a thought."""

    name = "echo"

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []

    def stream(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        self.bodies.append(json.loads(json.dumps(body)))
        if body["messages"][-1]["content"] == "fail":
            raise ConfigError("it fails")
        yield {"choices": [{"delta": {"reasoning_content": "hm"}}]}
        yield {"choices": [{"delta": {"content": body["messages"][-1]["content"].upper()}}]}
        usage = {"prompt_tokens": 8, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}
        yield {"choices": [], "usage": usage}


def talk(monkeypatch: pytest.MonkeyPatch, text: str) -> tuple[Echo, TerminalChat]:
    lines = iter(text.splitlines())

    def read(prompt: str = "") -> str:
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("builtins.input", read)
    partner = Echo()
    chat = TerminalChat(partner, Conversation())
    chat.run()
    return partner, chat


def test_a_conversation_grows_and_a_question_that_fails_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    partner, chat = talk(monkeypatch, "one\nfail\ntwo")
    asked = [message["content"] for message in partner.bodies[-1]["messages"]]
    assert asked == ["one", "ONE", "two"]
    assert chat.conversation.turns[1]["reasoning_content"] == "hm"


def test_messages_of_several_lines_are_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    partner, _ = talk(monkeypatch, 'a \\\nb\n"""first\n\n/quit\nlast"""\n"""one line"""')
    assert [body["messages"][-1]["content"] for body in partner.bodies] == ["a \nb", "first\n\n/quit\nlast", "one line"]


def test_commands_change_what_is_sent(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    text = "/system be brief\n/think on\n/set temperature 0.5\n/set temperature 9\nq\n/set temperature\n/think auto\nr"
    partner, _ = talk(monkeypatch, text)
    first, second = partner.bodies
    assert first["messages"][0] == {"role": "system", "content": "be brief"}
    assert (first["thinking"], first["temperature"]) == ({"type": "enabled"}, 0.5)
    assert "thinking" not in second
    assert "temperature" not in second
    assert "temperature is 9" in capsys.readouterr().out


def test_retry_asks_the_last_question_again_and_stats_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    partner, _ = talk(monkeypatch, "/retry\none\n/retry\n/stats")
    assert partner.bodies[0]["messages"] == partner.bodies[1]["messages"]
    shown = " ".join(capsys.readouterr().out.split())
    assert "there is no answer to try again" in shown
    assert "2 answers, 4 tokens" in shown
    assert "16 prompt tokens, 50% of them from the cache" in shown


def test_a_saved_conversation_goes_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    talk(monkeypatch, f"/system s\n/set top_p 0.5\none\n/save {file}")
    partner, _ = talk(monkeypatch, f"/load {file}\ntwo")
    assert [m["content"] for m in partner.bodies[0]["messages"]] == ["s", "one", "ONE", "two"]
    assert partner.bodies[0]["top_p"] == 0.5
    with pytest.raises(ConfigError, match="no conversation"):
        Conversation.load(Path(__file__))


def test_tab_completes_commands_at_the_beginning_alone() -> None:
    editor = LineEditor(["/save", "/set", "/stats"], input)
    assert [editor.complete("/s", number) for number in range(4)] == ["/save", "/set", "/stats", None]
    assert editor.complete("s", 0) is None


@pytest.fixture
def server() -> Iterator[tuple[str, list[bytes]]]:
    """A server whose answer breaks off where it is asked to, and what its clients sent."""
    heard: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None: ...

        def do_GET(self) -> None:
            self.send(b'{"data": [{"id": "m"}]}')

        def do_POST(self) -> None:
            heard.append(self.rfile.read(int(self.headers["content-length"])))
            chunk = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\n'
            end = {"break": b"", "error": b'data: {"error": {"message": "no room"}}\n\n'}
            question = json.loads(heard[-1])["messages"][-1]["content"]
            if question == "refuse":
                self.send(b'{"error": {"message": "too many"}}', 429)
            else:
                self.send(b": keep-alive\n\n" + chunk + end.get(question, b"data: [DONE]\n\n"))

        def send(self, body: bytes, status: int = 200) -> None:
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    http = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=http.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{http.server_port}", heard
    http.shutdown()
    http.server_close()


def ask(url: str, question: str) -> str:
    chunks = RemotePartner(url).stream({"messages": [{"role": "user", "content": question}]})
    return "".join(choice["delta"]["content"] for chunk in chunks for choice in chunk["choices"])


def test_a_server_answers_and_its_failures_are_told_apart(server: tuple[str, list[bytes]]) -> None:
    url, heard = server
    assert ask(url, "hello") == ask(url + "/v1/", "hello") == "hi"
    assert json.loads(heard[0])["model"] == "m"
    for question, reason in (("break", "broke off"), ("error", "no room"), ("refuse", "429: too many")):
        with pytest.raises(ServerError, match=reason):
            ask(url, question)
    with pytest.raises(ServerError, match="cannot be reached"):
        RemotePartner("http://127.0.0.1:9")
    with pytest.raises(ConfigError, match="it must be like"):
        RemotePartner("localhost:8000")


def test_a_person_at_a_terminal_gets_a_prompt_a_speed_and_a_history(
    server: tuple[str, list[bytes]], tmp_path: Path
) -> None:
    main, other = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}
    words = [sys.executable, "-m", "benthic", "chat", "--url", server[0]]
    process = subprocess.Popen(words, stdin=other, stdout=other, stderr=other, env=environment, close_fds=True)
    os.close(other)
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        end = time.monotonic() + 60
        while text not in seen and time.monotonic() < end:
            if select.select([main], [], [], 1)[0]:
                seen += os.read(main, 4096)
        assert text in seen, seen

    try:
        until(b"> ")
        os.write(main, b"hello\n")
        until(b"hi")
        os.write(main, b"/quit\n")
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(main)
    assert (tmp_path / "benthic" / "history").read_text().splitlines() == ["hello", "/quit"]


def test_the_history_lies_where_the_desktop_standard_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert history_file() == tmp_path / "benthic" / "history"


def test_a_defect_is_one_line_unless_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise TypeError("strange")

    monkeypatch.setattr("benthic.cli.chat_partner.RemotePartner.__init__", broken)
    words = ["chat", "--url", "http://127.0.0.1:9"]
    assert run(words) == DEFECT
    told = capsys.readouterr().err
    assert "a defect of Benthic: TypeError: strange" in told
    assert "Traceback" not in told
    with pytest.raises(TypeError, match="strange"):
        run(["--debug", *words])
