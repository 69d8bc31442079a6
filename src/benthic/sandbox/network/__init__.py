"""The way out of a sandbox that may reach something: through the host, by the sandbox's rules, and no other way."""

from benthic.sandbox.network.dialer import Dialer, Refused
from benthic.sandbox.network.egress import Egress
from benthic.sandbox.network.loopback import Loopback, NamespaceLoopback
from benthic.sandbox.network.proxy import serve_proxy
from benthic.sandbox.network.relay import relay
from benthic.sandbox.network.rules import Allowlist

__all__ = ["Allowlist", "Dialer", "Egress", "Loopback", "NamespaceLoopback", "Refused", "relay", "serve_proxy"]
