"""Sandboxes of many machines behind one door: an agent on each host, a gateway, and a client that speaks to both."""

from benthic.sandbox.fleet.client import RemoteHost
from benthic.sandbox.fleet.config import AgentConfig, GatewayConfig

__all__ = ["AgentConfig", "GatewayConfig", "RemoteHost"]
