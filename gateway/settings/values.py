"""How the values of settings are spelt: durations, sizes, lanes, backends; and how they are shown without secrets."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, unique
from ipaddress import ip_network
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import parse_qs, urlsplit

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, AllowInfNan, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic_settings import NoDecode

from gateway.dialects.engines import AUTO, ENGINES
from gateway.settings.keys import KEY_FIELDS, KeySettings, parse_keys, show_keys

MASK: Final = "***"
_SHOWN: Final = 160  # characters of a wrong value that a fault shows

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*(ms|s|m|h|)")
_SECONDS: Final = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmg]?)(i?)(b?)", re.IGNORECASE)
_SECRET_NAME: Final = re.compile(r"key|token|secret|password|authorization|credential", re.IGNORECASE)
_LANE_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,31}")
_HOST: Final = re.compile(r"[A-Za-z0-9._:%-]+")
_SENTINEL: Final = re.compile(r"rediss?\+sentinel://")
_STORE_OPTIONS: Final = frozenset({"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"})


@dataclass(frozen=True, slots=True)
class Kind:
    """One way of spelling: what a fault says was expected, the unit values are held in, and how they are shown."""

    expected: str
    unit: str = ""
    show: Callable[[Any], str] = str
    secret: bool = False  # what is given must never be shown


# --------------------------------------------------------------------------------------------------------------
# Numbers with units
# --------------------------------------------------------------------------------------------------------------


def parse_duration(value: object) -> object:
    """``2``, ``500ms``, ``1.5s``, ``1m30s`` -> seconds.

    Raises:
        ValueError: it is a text and none of these.
    """
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    parts = _DURATION.findall(text)
    if not parts or _DURATION.sub("", text).strip() or (len(parts) > 1 and any(not unit for _, unit in parts)):
        raise ValueError
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def show_duration(seconds: float) -> str:
    """Seconds as ``parse_duration`` reads them."""
    return f"{seconds * 1000.0:.10g}ms" if 0.0 < seconds < 1.0 else f"{seconds:.10g}s"


def parse_size(value: object) -> object:
    """``1048576``, ``512KiB``, ``64MiB``, ``64MB`` -> bytes; units with an i are powers of 1024.

    Raises:
        ValueError: it is a text and none of these.
    """
    if not isinstance(value, str):
        return value
    match = _SIZE.fullmatch(value.strip())
    if match is None or (match[3] and not match[2]):
        raise ValueError
    return round(float(match[1]) * (1024 if match[3] else 1000) ** " kmg".index(match[2].lower() or " "))


def show_size(size: int) -> str:
    """Bytes as ``parse_size`` reads them."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size and size % 1024**power == 0:
            return f"{size // 1024**power}{unit}"
    return str(size)


def _number(value: float) -> str:
    return f"{value:.10g}"


def _flag(value: bool) -> str:
    return "true" if value else "false"


# --------------------------------------------------------------------------------------------------------------
# Lanes
# --------------------------------------------------------------------------------------------------------------


def _pairs(text: str) -> list[tuple[str, str]]:
    """``a=1, b`` -> [("a", "1"), ("b", "")]."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    return [(name.strip(), given.strip()) for name, _, given in (item.partition("=") for item in items)]


def parse_lanes(value: object) -> object:
    """``short=1000,long`` -> (("short", 1000), ("long", None)): lanes by ascending bound, the last without one.

    Raises:
        ValueError: with what is wrong.
    """
    if not isinstance(value, str):
        return value
    lanes: list[tuple[str, int | None]] = []
    for name, bound in _pairs(value):
        if not _LANE_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no lane name: small letters, digits, - and _")
        if bound and not (bound.isdecimal() and int(bound) > 0):
            raise ValueError(f"the bound of {name!r} is {bound!r}, not a number of tokens")
        lanes.append((name, int(bound) if bound else None))
    bounds = [bound for _, bound in lanes]
    if not lanes or bounds[-1] is not None or None in bounds[:-1]:
        raise ValueError("the last lane, and only that, has no bound")
    finite = [bound for bound in bounds if bound is not None]
    if finite != sorted(set(finite)) or len({name for name, _ in lanes}) < len(lanes):
        raise ValueError("bounds ascend and names differ")
    return tuple(lanes)


def _per_lane(parse: Callable[[object], object], value: object) -> object:
    """``short=1,long=8`` -> {"short": 1, "long": 8}; a bare value goes under the empty name."""
    if not isinstance(value, str):
        return value
    found: dict[str, object] = {}
    for name, given in _pairs(value):
        lane, text = (name, given) if given else ("", name)
        number = parse(text)
        if lane in found or not isinstance(number, float) or not number > 0.0:
            raise ValueError
        found[lane] = number
    if "" in found and len(found) > 1:
        raise ValueError
    return found


def parse_lane_durations(value: object) -> object:
    """Seconds for each lane: see ``_per_lane``."""
    return _per_lane(parse_duration, value)


def parse_lane_weights(value: object) -> object:
    """A number for each lane: see ``_per_lane``."""
    return _per_lane(lambda text: float(str(text)), value)


def parse_model_tokens(value: object) -> object:
    """``8000`` or ``qwen3-8b=30000, llama-3=8000`` -> tokens by model; a bare number, for the rest, goes under "".

    Raises:
        ValueError: it is none of these.
    """
    if not isinstance(value, str):
        return value
    found: dict[str, int] = {}
    for item in filter(None, (item.strip() for item in value.split(","))):
        model, _, tokens = item.rpartition("=")
        name = model.strip()
        if name in found or not tokens.strip().isdecimal() or int(tokens) < 1 or ("=" in item and not name):
            raise ValueError
        found[name] = int(tokens)
    return found


def _show_model_tokens(found: dict[str, int]) -> str:
    return ",".join(f"{model}={tokens}" if model else str(tokens) for model, tokens in found.items())


def _show_lanes(lanes: tuple[tuple[str, int | None], ...]) -> str:
    return ",".join(name if bound is None else f"{name}={bound}" for name, bound in lanes)


def _show_per_lane(show: Callable[[float], str]) -> Callable[[dict[str, float]], str]:
    return lambda found: ",".join(f"{lane}={show(value)}" if lane else show(value) for lane, value in found.items())


# --------------------------------------------------------------------------------------------------------------
# Backends
# --------------------------------------------------------------------------------------------------------------


def clean_url(url: str) -> str:
    """The root of an engine: without the slashes and the ``/v1`` that clients append to their base URL.

    Raises:
        ValueError: not an http(s) URL with a host, or it carries credentials, a query or a fragment.
    """
    parts = urlsplit(url.strip())
    if "@" in parts.netloc:
        raise ValueError("it carries credentials: give api_key in the JSON form instead")
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ValueError
    if re.search(r"\s", url.strip()) or not _HOST.fullmatch(parts.hostname) or parts.port == 0:  # .port may raise
        raise ValueError
    return url.strip().rstrip("/").removesuffix("/v1").rstrip("/")


KINDS: Final = (AUTO, *ENGINES)


def _kind(value: str) -> str:
    if value not in KINDS:
        raise ValueError
    return value


def _readable(value: str) -> str:
    try:
        with Path(value).open("rb"):
            return value
    except OSError as error:
        raise ValueError(error.strerror) from None


_Url = Annotated[str, AfterValidator(clean_url)]
_File = Annotated[str, AfterValidator(_readable)]


class BackendSettings(BaseModel):
    """One engine in GATEWAY_BACKENDS."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=100)]
    url: _Url
    kind: Annotated[str, AfterValidator(_kind)] = AUTO
    models: tuple[str, ...] = ()
    api_key: Annotated[SecretStr, Field(min_length=1)] | None = None
    limit: Annotated[int, Ge(1)] | None = None
    max_model_len: Annotated[int, Ge(1)] | None = None
    weight: Annotated[float, AllowInfNan(False), Gt(0)] = 1.0
    tier: Annotated[int, Ge(0), Le(9)] = 0
    management_url: _Url | None = None
    metrics_url: _Url | None = None
    tls_verify: bool | None = None
    tls_ca: _File | None = None
    tls_cert: _File | None = None
    tls_key: _File | None = None


_HTTP_URL: Final = "an http:// or https:// URL with a host, without credentials, query or fragment"
BACKEND_FIELDS: Final = {
    "name": "a name of 1 to 100 characters (default: host:port)",
    "url": _HTTP_URL,
    "kind": f"one of {', '.join(KINDS)}",
    "models": "a list of model names",
    "api_key": "a text that is not empty",
    "limit": "a whole number of at least 1",
    "max_model_len": "a whole number of tokens",
    "weight": "a number above 0",
    "tier": "a whole number from 0 to 9",
    "management_url": _HTTP_URL,
    "metrics_url": _HTTP_URL,
    "tls_verify": "true or false",
    "tls_ca": "a file that can be read",
    "tls_cert": "a file that can be read",
    "tls_key": "a file that can be read",
}


@dataclass(frozen=True, slots=True)
class Discovered:
    """Where engines are found: by a name in DNS, or by a Service of Kubernetes."""

    @unique
    class How(Enum):
        """Who is asked."""

        DNS = "dns"
        KUBERNETES = "k8s"

    how: How
    scheme: str  # http | https
    host: str
    port: int

    def __str__(self) -> str:
        """As it is set."""
        return f"{self.how.value}+{self.scheme}://{self.host}:{self.port}"


def parse_discovered(value: object) -> object:
    """``dns+http://engines:8000, k8s+http://engines.prod:8000`` -> what they say.

    Raises:
        ValueError: one of them is of another form.
    """
    if not isinstance(value, str):
        return value
    return tuple(_discovered(item.strip()) for item in value.split(",") if item.strip())


def _discovered(text: str) -> Discovered:
    how, _, rest = text.partition("+")
    parts = urlsplit(rest)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port is None:
        raise ValueError(f"{text!r} has no scheme, host and port")
    if parts.username or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"{text!r} has more than scheme, host and port")
    found = Discovered(Discovered.How(how), parts.scheme, parts.hostname, parts.port)
    if found.how is Discovered.How.KUBERNETES and not re.fullmatch(r"[a-z0-9-]+\.[a-z0-9-]+", found.host):
        raise ValueError(f"{text!r} does not name SERVICE.NAMESPACE")
    return found


def _show_discovered(value: tuple[Discovered, ...]) -> str:
    return ",".join(map(str, value))


@dataclass(frozen=True, slots=True)
class Replicas:
    """How many gateways share the engines: ``count``, or as many of those at ``places`` as are ready."""

    count: int = 1
    places: tuple[tuple[bool, str, str, int], ...] = ()  # whether DNS is asked for every address, scheme, host, port

    def __str__(self) -> str:
        """As it is set."""
        return ",".join(map(_place, self.places)) or str(self.count)


def _place(place: tuple[bool, str, str, int]) -> str:
    asked, scheme, host, port = place
    return f"{'dns+' if asked else ''}{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def parse_replicas(value: object) -> object:
    """``3``, ``dns+http://gateways:8081`` or ``http://gw1:8081, http://gw2:8081`` -> what they say.

    Raises:
        ValueError: it is a text and none of these.
    """
    if not isinstance(value, str):
        return value
    if value.strip().isdecimal():
        return Replicas(count=int(value))
    places = tuple(_gateways(item.strip()) for item in value.split(",") if item.strip())
    return Replicas(sum(1 for asked, *_ in places if not asked) or 1, places)


def _gateways(text: str) -> tuple[bool, str, str, int]:
    asked = text.startswith("dns+")
    parts = urlsplit(text.removeprefix("dns+"))
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.port is None:
        raise ValueError(f"{text!r} has no scheme, host and port")
    if parts.username or parts.path.strip("/") or parts.query or parts.fragment:
        raise ValueError(f"{text!r} has more than scheme, host and port")
    return asked, parts.scheme, parts.hostname, parts.port


def parse_gateways(value: object) -> object:
    """``http://gw1:8081, http://gw2:8081`` -> these.

    Raises:
        ValueError: one of them is something else.
    """
    if not isinstance(value, str):
        return value
    places = [_gateways(item.strip()) for item in value.split(",") if item.strip()]
    if any(asked for asked, *_ in places):
        raise ValueError("each is named by itself, without dns+")
    return tuple(map(_place, places))


def _counted(value: Replicas) -> Replicas:
    if value.count < 1:
        raise ValueError("there is at least one, this one")
    return value


def parse_backends(value: object) -> object:
    """``http://a:8000, http://b:8000`` or a JSON list of objects -> a list of dicts, each with at least a name.

    Raises:
        ValueError: it begins like JSON and is none.
    """
    if not isinstance(value, str):
        return value
    text = value.strip()
    entries: object
    if text[:1] in {"[", "{", '"'}:
        try:
            entries = json.loads(text)
        except ValueError as error:
            where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
            raise ValueError(f"the JSON breaks{where}") from None
    elif "@" in text:
        raise ValueError("a URL carries credentials: give api_key in the JSON form instead")
    else:
        entries = [item.strip() for item in text.split(",") if item.strip()]
    return [_backend(entry) for entry in (entries if isinstance(entries, list) else [entries])]


def _backend(entry: object) -> object:
    if isinstance(entry, str):
        entry = {"url": entry}
    if isinstance(entry, dict) and isinstance(entry.get("url"), str) and "name" not in entry:
        entry = {"name": entry["url"].partition("://")[2].partition("/")[0] or entry["url"], **entry}
    if isinstance(entry, dict) and isinstance(entry.get("models"), str):
        entry = {**entry, "models": [model.strip() for model in entry["models"].split(",") if model.strip()]}
    return entry


def show_backends(backends: tuple[BackendSettings, ...]) -> str:
    """As ``parse_backends`` reads them, keys masked."""
    plain = all(backend == BackendSettings.model_validate(_backend(backend.url)) for backend in backends)
    if plain:
        return ",".join(backend.url for backend in backends)
    return json.dumps(
        [
            backend.model_dump(mode="json", exclude_defaults=True) | ({"api_key": MASK} if backend.api_key else {})
            for backend in backends
        ]
    )


# --------------------------------------------------------------------------------------------------------------
# Showing what was given
# --------------------------------------------------------------------------------------------------------------


def masked(text: str) -> str:
    """``text`` for a message: without credentials in URLs and without the secrets of a JSON value, and not too long."""
    stripped = text.strip()
    if stripped[:1] in {"[", "{"}:
        try:
            shown = json.dumps(_without_secrets(json.loads(stripped)), ensure_ascii=False)
        except ValueError:
            return f"a text of {len(text)} characters (not shown: it may hold keys)"
    else:
        shown = _without_credentials(text)
    return repr(shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "...")


def looks_secret(name: str) -> bool:
    """Whether a setting or a key of this name may hold a secret."""
    return _SECRET_NAME.search(name) is not None


def _without_secrets(value: object) -> object:
    if isinstance(value, dict):
        known = BACKEND_FIELDS.keys() - {"api_key"}
        return {key: _without_secrets(inner) if key in known else MASK for key, inner in value.items()}
    if isinstance(value, list):
        return [_without_secrets(inner) for inner in value]
    return _without_credentials(value) if isinstance(value, str) else value


def _without_credentials(text: str) -> str:
    """Mask all up to the last @, and what follows a question mark: rather too much than a part of a password."""
    text = re.sub(r"(//|^(?!.*//)).*@", r"\1" + MASK + "@", text, flags=re.DOTALL)
    return re.sub(r"\?.*", "?" + MASK, text, flags=re.DOTALL)


# --------------------------------------------------------------------------------------------------------------
# The types of the settings
# --------------------------------------------------------------------------------------------------------------


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError
    return value


def parse_networks(value: object) -> object:
    """``10.0.0.0/8, ::1`` -> ("10.0.0.0/8", "::1/128"); ``none`` -> ().

    Raises:
        ValueError: with the one that is wrong.
    """
    if not isinstance(value, str):
        return value
    items = [item.strip() for item in value.split(",") if item.strip()]
    return () if items == ["none"] else tuple(str(ip_network(item)) for item in items)


SESSION_SOURCES: Final = ("conversation", "user", "key")


def parse_sources(value: object) -> object:
    """``header:x-session-id, user`` -> ("header:x-session-id", "user"): what names a session, the first that is there.

    Raises:
        ValueError: with the one that is wrong.
    """
    if not isinstance(value, str):
        return value
    items = tuple(item.strip() for item in value.split(",") if item.strip())
    for item in items:
        if item not in SESSION_SOURCES and not re.fullmatch(r"header:[!#$%&'*+.^_`|~0-9A-Za-z-]+", item):
            raise ValueError(f"{item!r} names no session")
    return items


def parse_buckets(value: object) -> object:
    """``{"queue_wait_seconds": [0.1, 1, 10]}`` -> {"queue_wait_seconds": (0.1, 1.0, 10.0)}.

    Raises:
        ValueError: with what is wrong.
    """
    if not isinstance(value, str):
        return value
    found = json.loads(value)
    if not isinstance(found, dict):
        raise ValueError("no JSON object")  # noqa: TRY004 - what the model turns into a fault
    for name, edges in found.items():
        numbers = isinstance(edges, list) and all(type(edge) in {int, float} and edge > 0 for edge in edges)
        if not numbers or not edges or sorted(set(edges)) != edges:
            raise ValueError(f"the edges of {name!r} are not positive rising numbers")
    return {name: tuple(float(edge) for edge in edges) for name, edges in found.items()}


def _printable(value: SecretStr) -> SecretStr:
    if not re.fullmatch(r"[!-~]+", value.get_secret_value()):
        raise ValueError
    return value


def _sentinel_url(text: str) -> None:
    """Raises ValueError where one of the addresses would not do for a store, or there is no name."""
    scheme, _, rest = text.partition("+sentinel://")
    places, _, path = rest.partition("/")
    credentials, at, places = places.rpartition("@")
    path, mark, query = path.partition("?")
    name, _, database = path.partition("/")
    if not name:
        raise ValueError("no name of what the Sentinels watch")
    own = ("sentinel_password=", "sentinel_username=")
    others = "&".join(each for each in query.split("&") if not each.startswith(own))
    for place in places.split(","):
        _store_url(SecretStr(f"{scheme}://{credentials}{at}{place}/{database}{mark}{others}"))


def _store_url(value: SecretStr) -> SecretStr:
    """Raises ValueError where redis-py would not take it, without saying what was given: it may hold a password."""
    text = value.get_secret_value()
    if _SENTINEL.match(text):
        _sentinel_url(text)
        return value
    parts = urlsplit(text)
    if parts.scheme not in {"redis", "rediss", "unix"}:
        raise ValueError("another scheme than redis, rediss or unix")
    if parts.scheme == "unix" and not parts.path:
        raise ValueError("no path of a socket")
    if parts.scheme != "unix" and (not parts.hostname or not re.fullmatch(r"/?\d*", parts.path)):
        raise ValueError("no host, or a database that is no number")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("a port that is none") from None
    if port == 0:
        raise ValueError("a port that is none")
    query = parse_qs(parts.query, keep_blank_values=True)
    if query.keys() - _STORE_OPTIONS:
        raise ValueError(f"a query with other names than {', '.join(sorted(_STORE_OPTIONS))}")
    if not all(map(str.isdecimal, query.get("db", ()))):
        raise ValueError("a database that is no number")
    return value


Seconds = Annotated[
    float,
    BeforeValidator(parse_duration),
    AllowInfNan(False),
    Kind("a duration such as 2, 500ms, 1.5s or 1m", "seconds", show_duration),
]
Bytes = Annotated[int, BeforeValidator(parse_size), Kind("a size such as 1048576, 512KiB or 64MiB", "bytes", show_size)]
Whole = Annotated[int, Kind("a whole number")]
Tokens = Annotated[int, Kind("a whole number", "tokens")]
Number = Annotated[float, AllowInfNan(False), Kind("a number", "", _number)]
Ratio = Annotated[float, AllowInfNan(False), Kind("a number", "ratio", _number)]
Flag = Annotated[bool, Kind("true or false", "", _flag)]
Text = Annotated[str, Field(min_length=1), Kind("a text")]
File = Annotated[str, AfterValidator(_readable), Kind("a file that can be read")]
Url = Annotated[
    str, AfterValidator(clean_url), Kind("an http:// or https:// URL with a host, without credentials or query")
]
Header = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$"), Kind("the name of a header")]
Host = Annotated[str, AfterValidator(_host), Kind("an address to listen on, such as 0.0.0.0, 127.0.0.1 or ::")]
Port = Annotated[
    int,
    Ge(0),
    Le(65535),
    Kind("a port number (0: any free port)"),
]
SessionSources = Annotated[
    tuple[str, ...],
    NoDecode,
    BeforeValidator(parse_sources),
    Kind("header:NAME, conversation, user or key, or several separated by commas", "", ",".join),
]
Draws = Annotated[Literal["none", "session", "prefix"], Kind("none, session or prefix")]
Networks = Annotated[
    tuple[str, ...],
    NoDecode,
    BeforeValidator(parse_networks),
    Kind(
        "addresses and networks separated by commas, such as 10.0.0.0/8,::1, or none",
        "",
        lambda n: ",".join(n) or "none",
    ),
]
Secret = Annotated[
    SecretStr, AfterValidator(_printable), Kind("a text of printable ASCII without spaces", "", lambda _: MASK)
]
StoreUrl = Annotated[
    SecretStr,
    AfterValidator(_store_url),
    Kind(
        "redis://HOST:PORT/DB, rediss://HOST:PORT/DB (TLS), unix:///SOCKET or "
        "redis+sentinel://HOST:PORT,HOST:PORT/NAME/DB, with USER:PASSWORD@ where needed",
        "",
        lambda url: _without_credentials(url.get_secret_value()),
    ),
]
Prefix = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$"), Kind("up to 64 letters, digits and any of . _ : -")]
Lanes = Annotated[
    tuple[tuple[str, int | None], ...],
    NoDecode,
    BeforeValidator(parse_lanes),
    Kind("lanes with ascending bounds, the last without one, such as short=1000,long", "tokens", _show_lanes),
]
LaneSeconds = Annotated[
    dict[str, float],
    NoDecode,
    BeforeValidator(parse_lane_durations),
    Kind("a duration or one for each lane, such as 1 or short=1,long=8", "seconds", _show_per_lane(show_duration)),
]
LaneWeights = Annotated[
    dict[str, float],
    NoDecode,
    BeforeValidator(parse_lane_weights),
    Kind("a positive number for each lane, such as short=2,long=1", "ratio", _show_per_lane(_number)),
]
ModelTokens = Annotated[
    dict[str, int],
    NoDecode,
    BeforeValidator(parse_model_tokens),
    Kind(
        "a number of tokens, or one for each model, such as 8000 or qwen3-8b=30000,8000", "tokens", _show_model_tokens
    ),
]
Backends = Annotated[
    tuple[BackendSettings, ...],
    NoDecode,
    BeforeValidator(parse_backends),
    Kind(
        "URLs separated by commas, or a JSON list of objects with url and any of "
        + ", ".join(name for name in BACKEND_FIELDS if name != "url"),
        "",
        show_backends,
    ),
]
Discover = Annotated[
    tuple[Discovered, ...],
    NoDecode,
    BeforeValidator(parse_discovered),
    Kind(
        "URLs separated by commas, such as dns+http://engines:8000 or k8s+http://SERVICE.NAMESPACE:8000",
        "",
        _show_discovered,
    ),
]
SharedBy = Annotated[
    Replicas,
    NoDecode,
    BeforeValidator(parse_replicas),
    AfterValidator(_counted),
    Kind("a number, or URLs of admin ports separated by commas, such as dns+http://gateways:8081 or http://gw1:8081"),
]
Gateways = Annotated[
    tuple[str, ...],
    NoDecode,
    BeforeValidator(parse_gateways),
    Kind("URLs of admin ports separated by commas, such as http://gw1:8081,http://gw2:8081", "", ",".join),
]
ApiKeys = Annotated[
    tuple[KeySettings, ...],
    NoDecode,
    BeforeValidator(parse_keys),
    Kind(
        "keys or their hashes separated by commas, or a JSON list of objects with name, keys and any of "
        + ", ".join(name for name in KEY_FIELDS if name not in {"name", "keys"}),
        "",
        show_keys,
        secret=True,
    ),
]
Buckets = Annotated[
    dict[str, tuple[float, ...]],
    NoDecode,
    BeforeValidator(parse_buckets),
    Kind("a JSON object of metric names with lists of rising numbers", "seconds", json.dumps),
]
LogFormat = Annotated[Literal["plain", "json"], Kind("plain or json")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], Kind("debug, info, warning or error")]
