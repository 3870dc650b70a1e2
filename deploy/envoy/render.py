"""Makes the configuration of a sidecar from mesh.yaml and the templates beside this file.

    render.py gateway --peer tokenizer=tokenizer --peer scheduler=s-0.s,s-1.s --out DIRECTORY

writes envoy.yaml, identity.yaml and trust.yaml; start `envoy -c DIRECTORY/envoy.yaml`.

A template is YAML. In its texts `${name}` stands for a value; a text that is nothing but one
`${name}` becomes the value itself, which may be a number, a list or a mapping. Nothing else is
special, and a name that has no value is an error.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
# libyaml's where it was built in: it is ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@cache
def _template(name: str) -> Any:
    return yaml.load((HERE / f"{name}.yaml").read_text(), _LOADER)


MESH = _template("mesh")
PARTS = _template("parts")
ROLES = ("client", *dict.fromkeys(endpoint["service"] for endpoint in MESH.values()))
REPLICA_PORT_STEP = 100
_ADMIN_PORT = 15000
_NAME = re.compile(r"\$\{(\w+)\}")


@dataclass(frozen=True)
class Sidecar:
    """What differs between two sidecars.

    Attributes:
        role: client, or a service of mesh.yaml.
        peers: Hosts of each service that the role calls: one name for all replicas where the
            sidecar chooses, one name a replica where the caller does.
        app_host: Address in the pod that only the pod reaches.
        bind: Address on which other pods reach the sidecar.
        certificates: Folder with tls.crt, tls.key and ca.crt.
        config_dir: Folder in which the sidecar finds what is written.
        tls_domain: What follows the roles in the names of certificates, as --tls-domain of the
            services: ROLE.TLS_DOMAIN; empty: ROLE.
        stream_idle_timeout: Of silent streams; 0s: none.
    """

    role: str
    peers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    app_host: str = "127.0.0.1"
    bind: str = "0.0.0.0"
    certificates: str = "/etc/mesh-certificates"
    config_dir: str = "/etc/envoy"
    tls_domain: str = ""
    stream_idle_timeout: str = "0s"

    def files(self) -> dict[str, str]:
        """Return the texts of the configuration's files, by name."""
        made = {
            "envoy.yaml": self._bootstrap(),
            "identity.yaml": _fill(_template("identity"), {"certificates": self.certificates}),
            "trust.yaml": _fill(_template("trust"), {"certificates": self.certificates}),
        }
        return {name: _dump(value) for name, value in made.items()}

    def _bootstrap(self) -> Any:
        links = [*self._ingresses(), *self._egresses()]
        status = self._status()
        return _fill(
            _template("sidecar"),
            {
                "role": self.role,
                "app_host": self.app_host,
                "admin_port": _ADMIN_PORT,
                "listeners": [*(link["listener"] for link in links), status["listener"]],
                "clusters": [*(link["cluster"] for link in links), *status["clusters"]],
            },
        )

    def _ingresses(self) -> Iterator[Any]:
        for name, endpoint in MESH.items():
            if endpoint["service"] != self.role:
                continue
            values = {
                "name": name,
                "bind": self.bind,
                "app_host": self.app_host,
                "app_port": endpoint["app_port"],
                "mesh_port": endpoint["mesh_port"],
                "tls": self._tls(endpoint["callers"]),
                "protocol": _part("speak_http2" if "grpc" in endpoint else "speak_http1"),
                "circuit_breakers": PARTS["circuit_breakers"],
                "connection_manager": self._connection_manager(
                    f"ingress-{name}", _routes(endpoint, f"app-{name}", may_retry=False), endpoint
                ),
            }
            yield _fill(_template("ingress"), values)

    def _egresses(self) -> Iterator[Any]:
        for name, endpoint in MESH.items():
            if self.role not in endpoint["callers"]:
                continue
            hosts = self.peers.get(endpoint["service"], ())
            if not hosts:
                raise ValueError(f"{self.role} calls {endpoint['service']}: say where it is")
            if endpoint["choice"] == "sidecar":
                yield self._egress(name, endpoint, endpoint["app_port"], hosts)
                continue
            for number, host in enumerate(hosts):
                port = endpoint["app_port"] + REPLICA_PORT_STEP * number
                yield self._egress(f"{name}-{number}", endpoint, port, [host])

    def _egress(self, name: str, endpoint: Any, port: int, hosts: Sequence[str]) -> Any:
        is_balanced = endpoint["choice"] == "sidecar"
        values = {
            "name": name,
            "port": port,
            "app_host": self.app_host,
            "endpoints": [_endpoint(host, endpoint["mesh_port"]) for host in hosts],
            "tls": self._tls([endpoint["service"]]),
            "protocol": _part("speak_http2"),
            "health_check": _health_check(endpoint),
            "circuit_breakers": PARTS["circuit_breakers"],
            "connection_manager": self._connection_manager(
                f"egress-{name}", _routes(endpoint, name, may_retry=True), endpoint
            ),
        }
        made = _fill(_template("egress"), values)
        if is_balanced:
            made["cluster"]["outlier_detection"] = PARTS["outlier_detection"]
        return made

    def _status(self) -> Any:
        ways, asked = {"/ready": "admin", "/stats/prometheus": "admin"}, {"admin": _ADMIN_PORT}
        for name, endpoint in MESH.items():
            if endpoint["service"] == self.role and "grpc" in endpoint:
                ways |= {"/grpc.health.v1.Health/Check": f"app-{name}", "/metrics": "metrics"}
                asked["metrics"] = endpoint["metrics_port"]
        routes = [
            _fill(PARTS["route"], {"match": {"path": path}, "cluster": cluster})
            for path, cluster in ways.items()
        ]
        manager = self._connection_manager("status", routes, {})
        del manager["typed_config"]["access_log"]
        template, values = _template("status"), {"bind": self.bind, "connection_manager": manager}
        clusters = [
            _fill(template["cluster"], {"name": name, "port": port, "app_host": self.app_host})
            for name, port in asked.items()
        ]
        return {"listener": _fill(template["listener"], values), "clusters": clusters}

    def _connection_manager(self, name: str, routes: Sequence[Any], endpoint: Any) -> Any:
        grpc = endpoint.get("grpc")
        methods = [] if grpc is None else [*grpc["retried"], *grpc["once"]]
        values = {
            "name": name,
            "routes": routes,
            "stream_idle_timeout": self.stream_idle_timeout,
            "http2": PARTS["http2"],
            "counted": [{"name": grpc["service"], "method_names": methods}] if grpc else [],
        }
        return _fill(_template("connection_manager"), values)

    def _tls(self, roles: Sequence[str]) -> Any:
        names = [f"{role}.{self.tls_domain}" if self.tls_domain else role for role in roles]
        peers = [{"san_type": "DNS", "matcher": {"exact": name}} for name in names]
        return _fill(PARTS["tls"], {"config_dir": self.config_dir, "peers": peers})


def _routes(endpoint: Any, cluster: str, *, may_retry: bool) -> list[Any]:
    """Ways through a listener to what the endpoint serves."""
    retried = "retried_route" if may_retry else "route"
    if "http" in endpoint:
        return [_fill(PARTS[retried], {"match": {"prefix": "/"}, "cluster": cluster})]
    grpc = endpoint["grpc"]
    # The first that fits is taken.
    ways = [({"path": f"/{grpc['service']}/{method}"}, "route") for method in grpc["once"]]
    if grpc["retried"]:
        ways += [({"prefix": f"/{grpc['service']}/"}, retried)]
    ways += [({"prefix": "/grpc.health.v1.Health/"}, "route")]
    return [_fill(PARTS[part], {"match": match, "cluster": cluster}) for match, part in ways]


def _health_check(endpoint: Any) -> Any:
    """Readiness where the sidecar chooses; where the caller does, whether the process lives."""
    if "http" in endpoint:
        way = {"http_health_check": {"path": endpoint["http"], "codec_client_type": "HTTP2"}}
    elif endpoint["choice"] == "sidecar":
        way = {"grpc_health_check": {"service_name": endpoint["grpc"]["service"]}}
    else:
        way = {"grpc_health_check": {}}
    return {**PARTS["health_check"], **way}


def _endpoint(host: str, port: int) -> Any:
    return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": port}}}}


class _PlainDumper(_DUMPER):
    """Writes what several places share in each of them, for readers."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _dump(value: Any) -> str:
    return yaml.dump(value, Dumper=_PlainDumper, sort_keys=False, width=120)


def _part(name: str) -> Any:
    return _fill(PARTS[name], {"http2": PARTS["http2"]})


def _fill(template: Any, values: Mapping[str, Any]) -> Any:
    """Return the template with its names replaced; the rules are those of the module."""
    if isinstance(template, dict):
        return {key: _fill(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [_fill(value, values) for value in template]
    if not isinstance(template, str):
        return template
    if (whole := _NAME.fullmatch(template)) is not None:
        return values[whole[1]]
    return _NAME.sub(lambda found: str(values[found[1]]), template)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("role", choices=ROLES)
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="SERVICE=HOST[,...]",
        help="where a service is that the role calls; once for each of them",
    )
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    for name in ("app_host", "bind", "certificates", "config_dir", "tls_domain"):
        default = getattr(Sidecar, name)
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, default=default, help=f"default: {default or 'none'}")
    given = vars(parser.parse_args())
    out, peers = given.pop("out"), dict(each.split("=", 1) for each in given.pop("peer"))
    try:
        files = Sidecar(**given, peers={k: v.split(",") for k, v in peers.items()}).files()
    except ValueError as error:
        parser.error(f"--peer: {error}")
    out.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (out / name).write_text(text)


if __name__ == "__main__":
    main()
