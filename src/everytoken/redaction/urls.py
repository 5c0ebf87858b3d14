"""What is known of URLs: where a secret can be in one, how one is shown, and which name a public place.

A token may stand in front of the host, in the query or in the fragment, as it is, percent-encoded or in base64. What is
recorded, printed or published passes `redacted`; parameters with a secret are refused (`require_no_secret`), as they
are recorded, and the identity of a source must not depend on a token that is replaced every month.
"""

from __future__ import annotations

import base64
import ipaddress
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

HIDDEN = "***"

GIVE_IT_BY = (
    "Parameters are recorded and may be published, so give it where the library looks for it: for http(s) a header in "
    'the environment, FSSPEC_HTTPS=\'{"client_kwargs": {"headers": {"Authorization": "Bearer ..."}}}\' (also in '
    '~/.config/fsspec/conf.json; FSSPEC_HTTP for http), or a login in ~/.netrc with FSSPEC_HTTPS=\'{"client_kwargs": '
    '{"trust_env": true}}\'; for s3:// the variables AWS_*; for the Hugging Face hub HF_TOKEN'
)

# what the last word of a name says of a value; of the second kind if the value is no plain word
_SECRET_WORD = re.compile(
    r".*(password|passwd|passphrase|secret|apikey|accesskey|secretkey|authtoken|accesstoken|apitoken|connectionstring)s?"
    r"|(secrets|pwd|sas|sig|signature|authorization|cookies?|credentials?|jwt)"
)
_PERHAPS_SECRET_WORD = re.compile(r"token|pass|pat|auth")
_PERHAPS_SECRET_IN_QUERY = re.compile(r"code|key|policy|session")
_SECRET_PAIR = re.compile(
    r"(api|access|account|private|secret|shared|signing|subscription|storage|function|auth|ssh|encryption|master)_key"
    r"|connection_string"
)
_NO_SECRET_TOKEN = frozenset(
    {"eos", "bos", "pad", "unk", "mask", "sep", "cls", "end", "start", "stop", "special", "per"}
)
# users of these name a container, or an account that is logged into by a key
_NAMED_USERS = frozenset({"abfs", "abfss", "wasb", "wasbs", "ssh", "sftp", "git+ssh", "ftp", "hdfs", "webhdfs"})
_WEB = frozenset({"http", "https"})
_WEB_USERS = frozenset({"", *_WEB, "git+http", "git+https", "ws", "wss"})
_PUBLIC_SCHEMES = frozenset(
    {"https", "http", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "hf", "oss", "r2"}
)
_PRIVATE_NAMES = ("local", "localhost", "internal", "intranet", "lan", "home", "corp", "private", "test", "invalid")

_SHORTEST = 8  # characters of what is looked for by its value: a shorter one is part of too many words
_LONGEST_NAME = 16  # characters of a user from which it is taken for a token
_NO_PASSWORD = frozenset({"", "x", "x-oauth-basic", "x-token-auth", "oauth2", "token", "anonymous"})

_SCHEME = r"(?P<scheme>[A-Za-z][A-Za-z0-9+.\-]{0,30})"
_PORT = r"\d{1,5}(?:[/?#\s,;]|$)"
# a password may have what ends a host, in a text that is one URL also spaces and quotes, and ends at the last @
_USER = re.compile(
    rf"(?P<start>(?:{_SCHEME}:|(?<![\w+.\-:/]))//)"
    rf"(?P<user>[^\s/?#:'\"<>|\[\]]*)(?P<password>:(?!{_PORT})(?:(?!://)[^\s'\"<>|])*)?@"
)
_WHOLE = re.compile(rf"(?P<start>{_SCHEME}://)(?P<user>[^/?#:\[\]\n]*)(?P<password>:(?!{_PORT})\S(?:(?!://).)*)@")
_NEXT_OF_CHAIN = re.compile(r"::(?=[A-Za-z][A-Za-z0-9+.\-]*://)")
_QUERY = re.compile(r"(?P<start>[?&;#])(?P<name>[A-Za-z0-9%_.\-\[\]]{1,80})=(?P<value>[^\s&;#'\"<>|)\],]+)")
_HEADER = re.compile(r"\b(?P<kind>Basic|Bearer)\s+(?=\S*[0-9=])[A-Za-z0-9+/=._~\-]{8,}", re.I)
_KNOWN_TOKEN = re.compile(
    r"\b(hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w\-]{16,}|xox[abp]-[\w\-]{10,}"
    r"|sk-(?=[\w\-]*[0-9])(?:(?=[\w\-]*[A-Z])[\w\-]{20,}|[a-z0-9]{20,})|dapi[0-9a-f]{32}|pypi-[\w\-]{20,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}\b|AIza[\w\-]{30,}|eyJ[\w\-]{8,}\.eyJ[\w\-]{8,}(?:\.[\w\-]*)?|[sr]k_(?:live|test)_\w{16,}"
    r"|npm_[A-Za-z0-9]{30,}|glsa_\w{20,}|SG\.[\w\-]{16,}\.[\w\-]{16,}|whsec_[\w+/=]{16,}|ya29\.[\w\-]{16,})"
)

_told: set[str] = set()


class SecretError(ValueError):
    """A value that is recorded has a secret in it; the message shows none of it."""


def is_url(place: str) -> bool:
    """Return whether ``place`` is for fsspec (chained URLs too) and not a path of this machine."""
    return "://" in place or "::" in place


def shown_url(url: str) -> str:
    """Return a URL without user, query and fragment: enough to know which is meant."""
    bare = re.sub(r"[?#][^:]*(?=::|$)", "", url) if is_url(url) else url
    return redacted(_USER.sub(lambda found: found["start"], bare) if "@" in bare else bare)


def secrets_in(text: str) -> list[str]:
    """Return the secrets in the URLs of a text, as they are written there."""
    found: list[str] = []
    _without_secrets(text, found)
    return found


def require_no_secret(what: str, text: str) -> None:
    """Check that a text has no URL with a secret.

    Raises:
        SecretError: it has one; the secret is hidden from all that is shown from now on.
    """
    if found := secrets_in(text):
        hide([*found, *_secrets_of_use(text)])
        raise SecretError(f"{what} has a password in its URL, or a token: {redacted(text)}. {GIVE_IT_BY}")


def require_bare_folder(what: str, root: str) -> None:
    """Check that the URL of a folder has no secret; of the web it may have no query and no fragment either.

    Raises:
        SecretError: it has what could be one.
    """
    if not is_url(root):
        return
    for one in root.split("::"):
        parts = _split(one)
        if parts is None or parts.scheme.lower() not in _WEB:
            continue
        if parts.username is not None or parts.query or parts.fragment:
            user = parts.netloc.rpartition("@")[0]
            hide([*_of_user(user), *_of_query(parts.query), *_of_query(parts.fragment)])
            raise SecretError(
                f"{what} has a password in its URL, or a token: there is a user, a query or a fragment around "
                f"{shown_url(root)}, and the URL of a folder has none. {GIVE_IT_BY}"
            )
    require_no_secret(what, root)


def require_no_secrets(parameters: Any, where: str = "") -> None:
    """Check that nested parameters hold no secret: no URL with one, and no key that is the name of one.

    Raises:
        SecretError: the first that does; names its key.
    """
    if isinstance(parameters, Mapping):
        for key, value in parameters.items():
            path = f"{where}.{key}" if where else str(key)
            require_no_secret(f"a key of {where or 'the parameters'}", str(key))
            if isinstance(value, str) and value and names_secret(str(key), value):
                hide([value])
                raise SecretError(f"{path} looks like a secret: {HIDDEN}. {GIVE_IT_BY}")
            require_no_secrets(value, path)
    elif isinstance(parameters, list | tuple):
        for number, value in enumerate(parameters):
            require_no_secrets(value, f"{where}.{number}")
    elif isinstance(parameters, str):
        if where.endswith(".root"):
            require_bare_folder(where, parameters)
        require_no_secret(where, parameters)


def hide(secrets: Iterable[str]) -> None:
    """Let `redacted` replace these in this process, wherever they are; a short one is part of too many words."""
    _told.update(secret for secret in secrets if len(secret) >= _SHORTEST)


def hide_secrets_of(url: str) -> None:
    """Let `redacted` replace the secrets of a URL that is used, as that of a database, in this process."""
    hide(_secrets_of_use(url))


def redacted(text: str) -> str:
    """Return a text as it may be shown, recorded and published: without the secrets of URLs and of the environment."""
    return Redaction().text(text)


class Redaction:
    """What is hidden in this process at one time: for many texts."""

    def __init__(self) -> None:
        forms = {form for secret in _known() for form in _forms(secret)}
        longest_first = sorted((form for form in forms if form), key=lambda form: (-len(form), form))
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def text(self, text: str) -> str:
        """Return ``text`` without secrets."""
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        return _without_secrets(text, [])

    def tree(self, value: Any) -> Any:
        """Return nested plain data without secrets, in keys and in values."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key) if isinstance(key, str) else key: self.tree(one) for key, one in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(one) for one in value]
        return value


def names_public_place(root: str) -> bool:
    """Return whether anybody can be told to read at ``root``: a URL of one protocol and of a public host.

    Nothing is asked: a host without a dot, or of a private domain or network, is a private one.
    """
    parts = _split(root)
    if parts is None or "::" in root or parts.scheme.lower() not in _PUBLIC_SCHEMES or not parts.netloc:
        return False
    return parts.scheme.lower() not in _WEB or is_public_host(parts.hostname or "")


def is_public_host(host: str) -> bool:
    """Return whether a host is neither a private name nor a private address; no name is looked up."""
    host = host.rstrip(".").lower()
    address = address_of(host)
    if address is not None:
        return is_public_address(address)
    return "." in host and host.rpartition(".")[2] not in _PRIVATE_NAMES and not host.endswith("home.arpa")


def address_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a host spells, also as the one number or the octal parts that C libraries take."""
    bare = host.strip("[]").partition("%")[0]
    try:
        return ipaddress.ip_address(bare)
    except ValueError:
        pass
    if not re.fullmatch(r"(0x[0-9a-f]*|[0-9]+)(\.(0x[0-9a-f]*|[0-9]+)){0,3}", bare, re.IGNORECASE):
        return None
    import socket

    try:
        return ipaddress.IPv4Address(socket.inet_aton(bare))
    except OSError:
        return None


def is_public_address(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """Return whether an address belongs to the public internet, also inside the IPv6 forms that carry an IPv4 one."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour or (address.teredo[1] if address.teredo else None)
        if inner is None and address in ipaddress.IPv6Network("64:ff9b::/96"):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public_address(inner)
    return address.is_global and not address.is_multicast


def is_named_by(url: str, named: str) -> bool:
    """Return whether a URL is ``named`` or below it; chained ones and other protocols are compared as they are."""
    if ".." in unquote(url).replace("\\", "/").split("/"):
        return False
    one, other = _split(url), _split(named)
    if "::" in url or "::" in named or one is None or one.scheme.lower() not in _WEB:
        return url == named or url.startswith(f"{named.rstrip('/')}/")
    if other is None or _server(one) != _server(other):
        return False
    return f"{one.path}/".startswith(f"{other.path.rstrip('/')}/")


def _server(parts: Any) -> tuple[str, str, int]:
    scheme = parts.scheme.lower()
    return scheme, (parts.hostname or "").rstrip("."), parts.port or (443 if scheme == "https" else 80)


def is_web_link(url: str) -> bool:
    """Return whether a page may link to ``url``: http(s), with a host, and nothing that ends a link or a tag."""
    parts = _split(url)
    if parts is None or parts.scheme.lower() not in _WEB or not parts.hostname:
        return False
    return re.search(r"[\s<>\"'`\\^{}|\x00-\x1f\x7f]", url) is None


def _split(url: str) -> Any:
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port
        return parts
    except ValueError:  # a bracket that is never closed, a port that is no number
        return None


def _without_secrets(text: str, found: list[str]) -> str:
    """Return ``text`` with each secret of a URL replaced; add those to ``found``."""

    def user(match: re.Match[str]) -> str:
        scheme, name, password = (match["scheme"] or "").lower(), match["user"], (match["password"] or "")[1:]
        if password.partition("@")[0] == HIDDEN or (name in ("", HIDDEN) and not password):
            return match.group()
        if match["password"] is None and (not scheme or scheme in _NAMED_USERS):
            return match.group()
        secrets = [password or name] if scheme not in _WEB_USERS else _of_user(f"{name}:{password}")
        found.extend(secrets)
        return f"{match['start']}{HIDDEN}@" if name in secrets else f"{match['start']}{name}:{HIDDEN}@"

    def query(match: re.Match[str]) -> str:
        if match["value"] == HIDDEN or not names_secret(match["name"], match["value"], in_query=True):
            return match.group()
        found.append(match["value"])
        return f"{match['start']}{match['name']}={HIDDEN}"

    def token(match: re.Match[str]) -> str:
        found.append(match.group())
        return HIDDEN

    if "@" in text and "//" in text:
        text = "::".join(
            _WHOLE.sub(user, one, count=1) if _WHOLE.match(one) else one for one in _NEXT_OF_CHAIN.split(text)
        )
        text = _USER.sub(user, text)
    if "=" in text:
        text = _QUERY.sub(query, text)
    text = _HEADER.sub(lambda match: f"{match['kind']} {HIDDEN}", text)
    return _KNOWN_TOKEN.sub(token, text)


def names_secret(name: str, value: str | None = None, *, in_query: bool = False) -> bool:
    """Return whether a key, a variable or a parameter of a query is named as a secret is, and its value may be one.

    Args:
        name: in any case and with any separators.
        value: None: not known.
        in_query: the value is in the query of a URL, where names as ``key`` and ``code`` are for tokens too.
    """
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", unquote(name)).lower()
    words = re.split(r"[^a-z0-9]+", spaced.strip("[]_.-0123456789"))
    last, before = words[-1], words[-2] if len(words) > 1 else ""
    if _SECRET_WORD.fullmatch(last) or _SECRET_PAIR.fullmatch(f"{before}_{last}"):
        return True
    if last == "token" and before in _NO_SECRET_TOKEN:
        return False
    is_perhaps = _PERHAPS_SECRET_WORD.fullmatch(last) or (in_query and _PERHAPS_SECRET_IN_QUERY.fullmatch(last))
    return bool(is_perhaps) and (value is None or _may_be_token(unquote(value)))


def _may_be_token(value: str) -> bool:
    is_plain = all(re.fullmatch(r"[A-Za-z]?[a-z]*|[A-Z]+|[0-9]+", word) for word in re.split(r"[_.\- ]", value))
    return len(value) >= _SHORTEST and not is_plain and not re.search(r"[<>\[\]\s]", value.strip())


def _of_user(user: str) -> list[str]:
    """Return the secrets of what is before a host: a user that is alone, long, or without a password is a token."""
    name, _, password = user.partition(":")
    is_token = len(name) >= _LONGEST_NAME or password.lower() in _NO_PASSWORD
    return [one for one in ((name, password) if is_token else (password,)) if one]


def _of_query(query: str) -> list[str]:
    pairs = parse_qsl(query.lstrip("?#"), keep_blank_values=True)
    return [value for name, value in pairs if value] or ([query] if query else [])


def _secrets_of_use(text: str) -> list[str]:
    """Return the secrets of a variable or an argument with a URL in it, and what a library quotes of each."""
    found = secrets_in(text)
    for match in _WHOLE.finditer(text):
        password = match["password"][1:]
        found += [password, *(password[: at.start()] for at in re.finditer("@", password))]
        found += re.split(r"[/?#:,|<>\s'\"]", password.partition("@")[0])
    return [*found, *map(unquote, found)]


def _known() -> set[str]:
    """Return the secrets that this process was given: by its environment, its command line, and fsspec's settings."""
    known = set(_told)
    for name, value in os.environ.items():
        if names_secret(name) and not value.startswith(("/", "./", "~")):
            known.update({value, value.strip()})
        elif "://" in value:
            known.update(_secrets_of_use(value))
        elif name.startswith("FSSPEC_"):
            known.update(_leaves_with_secrets(_json(value)))
    for argument in sys.argv[1:]:
        if "://" in argument:
            known.update(_secrets_of_use(argument))
    settings = sys.modules.get("fsspec.config")
    if settings is not None:
        known.update(_leaves_with_secrets(settings.conf))
    return {one for one in known if len(one) >= _SHORTEST}


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _leaves_with_secrets(value: Any, name: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _leaves_with_secrets(one, str(key))
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _leaves_with_secrets(one, name)
    elif isinstance(value, str) and names_secret(name, in_query=True):
        yield value
        yield from value.split()[1:]  # Bearer ...


def _forms(secret: str) -> Iterator[str]:
    """Yield how a secret may be spelled: as it is, percent-encoded, in Python's and JSON's quotes, and in base64."""
    plain = unquote(secret)
    for one in {secret, plain}:
        yield from (one, quote(one, safe=""), quote(one), quote_plus(one), repr(one)[1:-1], json.dumps(one)[1:-1])
        if len(one) >= _SHORTEST:
            yield from _in_base64(one.encode("utf-8", "surrogatepass"))


def _in_base64(secret: bytes) -> Iterator[str]:
    """Yield what base64 of any bytes with ``secret`` in them has in it, whatever stands before and after."""
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + secret).decode().rstrip("=")
        first, last = (0, 2, 3)[before], len(encoded) - (0 if (before + len(secret)) % 3 == 0 else 1)
        inner = encoded[first:last]
        if len(inner) >= _SHORTEST:
            yield from (inner, inner.replace("+", "-").replace("/", "_"))
