"""What a server offers and to whom, one line a feature, beside what the engine says of itself (`start_report`)."""

from benthic.engine.start_report import Feature
from benthic.server.config import ServerConfig
from benthic.server.service import Service

_LOCAL_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


def features_of_server(service: Service) -> tuple[Feature, ...]:
    """The engine's features, then those of the server around it."""
    config = service.config
    chat = (
        "chat completions, responses, messages" if service.prompts.has_chat else "the checkpoint has no prompt format"
    )
    return (
        *service.facts.start.features,
        Feature("conversations", service.prompts.has_chat, chat),
        _keys(config),
        Feature("private caches", config.salt_by_key, f"server.salt_by_key is {str(config.salt_by_key).lower()}"),
        Feature("control routes", config.admin_key is not None, _is_set("server.admin_key", config.admin_key)),
        Feature("playground", config.playground, f"server.playground is {str(config.playground).lower()}"),
        Feature("other origins", bool(config.cors_origins), ", ".join(config.cors_origins) or "no server.cors_origins"),
        _standby(config),
    )


def _keys(config: ServerConfig) -> Feature:
    count = len(config.all_api_keys)
    if count:
        return Feature("client keys", True, f"{count} set; a request needs one of them")
    who = "this machine" if config.host in _LOCAL_HOSTS else f"whatever network reaches {config.host}"
    return Feature("client keys", False, f"no server.api_key: everybody on {who} may send requests")


def _standby(config: ServerConfig) -> Feature:
    if config.engine_in_process:
        return Feature("standby", False, "server.engine_in_process is true: an engine that dies takes the server along")
    return Feature("standby", config.standby, f"server.standby is {str(config.standby).lower()}")


def _is_set(name: str, value: str | None) -> str:
    return f"{name} is {'not ' if value is None else ''}set"
