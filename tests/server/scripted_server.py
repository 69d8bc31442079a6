"""A scripted model behind HTTP, to be looked at by hand or by a browser: see `scripted_engine`."""

import argparse

from benthic.engine.config import EngineConfig
from benthic.engine.messages import EngineFacts
from benthic.engine.worker import EngineWorker
from benthic.server.app import create_app
from benthic.server.build import build_service
from benthic.server.config import ServerConfig
from benthic.server.launch import DrainingServer
from benthic.server.listen import bind
from benthic.text.tokenizer import EOS, Tokenizer
from tests.server.scripted_engine import TINY, ScriptedEngine, answers_by_prompt


def main() -> None:
    """Serves until a signal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "answers", nargs="*", help="TEXT=MARKUP: the answer where a prompt holds TEXT; \\n is a newline"
    )
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--step-s", type=float, default=0.02, help="seconds between two tokens")
    options = parser.parse_args()
    pairs = [pair.replace("\\n", "\n").partition("=") for pair in options.answers]
    answers = {key: markup + EOS for key, _, markup in pairs} | {"": "Hello from the script." + EOS}
    tokenizer = Tokenizer(TINY)
    engine = ScriptedEngine(
        answers_by_prompt(tokenizer, answers), tokenizer=tokenizer, step_s=options.step_s, context_len=8192
    )
    config = ServerConfig(port=options.port, drain_s=1.0)
    facts = EngineFacts(engine.max_model_len, tokenizer.vocab_size, EngineConfig(keep_routes=True), str(TINY))
    service = build_service(EngineWorker(engine), facts, TINY, name="tiny", config=config)
    DrainingServer(
        create_app(service),
        service,
        listener=bind(config, next_free=False),
        ready=lambda url: print(f"scripted at {url}", flush=True),
    ).serve_until_stopped()


if __name__ == "__main__":
    main()
