"""Config files of routers that want one. Knows their formats; starts nothing."""

from dataclasses import dataclass
from pathlib import Path

MODEL = "mock-model"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where one launch takes place: its ports, its replicas, its folder for config files and logs."""

    folder: Path
    port: int
    side_port: int
    replicas: tuple[str, ...]
    key: str
    tokenizer: Path | None


def nginx_conf(site: Site) -> str:
    servers = " ".join(f"server {_host(url)};" for url in site.replicas)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    folders = " ".join(f"{kind}_temp_path {site.folder}/{kind};" for kind in kinds)
    return f"""worker_processes 1;
daemon off;
pid {site.folder}/nginx.pid;
error_log stderr crit;
events {{ worker_connections 4096; }}
http {{
  access_log off;
  client_body_buffer_size 128k;
  client_max_body_size 64m;
  keepalive_requests 1000000;
  {folders}
  upstream replicas {{ {servers} keepalive 512; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{site.port};
    location / {{
      proxy_pass http://replicas;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""


def haproxy_cfg(site: Site) -> str:
    servers = "".join(f"  server s{i} {_host(url)} pool-max-conn 1024\n" for i, url in enumerate(site.replicas))
    return f"""global
  maxconn 8192
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option http-no-delay
  http-reuse always
frontend clients
  bind 127.0.0.1:{site.port}
  default_backend replicas
backend replicas
  balance roundrobin
{servers}"""


def envoy_yaml(site: Site) -> str:
    endpoints = ", ".join(f"{{endpoint: {{address: {_socket_address(_port(url))}}}}}" for url in site.replicas)
    manager = "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
    router = "envoy.extensions.filters.http.router.v3.Router"
    limits = "{max_connections: 8192, max_pending_requests: 8192, max_requests: 8192}"
    return f"""static_resources:
  listeners:
  - address: {_socket_address(site.port)}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/{manager}
          stat_prefix: clients
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: c, timeout: 0s}}}}]}}
          http_filters: [{{name: router, typed_config: {{"@type": type.googleapis.com/{router}}}}}]
  clusters:
  - name: c
    connect_timeout: 5s
    circuit_breakers: {{thresholds: [{limits}]}}
    load_assignment: {{cluster_name: c, endpoints: [{{lb_endpoints: [{endpoints}]}}]}}
"""


def litellm_yaml(site: Site) -> str:
    models = "".join(
        f"- model_name: {MODEL}\n  litellm_params: {{model: openai/{MODEL}, api_base: {url}/v1, api_key: x}}\n"
        for url in site.replicas
    )
    return (
        f"model_list:\n{models}litellm_settings: {{telemetry: false, drop_params: true}}\n"
        "router_settings: {routing_strategy: simple-shuffle, num_retries: 0}\n"
    )


def _host(url: str) -> str:
    return url.removeprefix("http://")


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _socket_address(port: int) -> str:
    return f"{{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}"
