"""Asks a running server for its KV events: trtllm-serve gives those since the last question, and forgets them."""

from http import HTTPStatus
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from pydantic_core import from_json

from trtllm_kvfix.errors import KvfixError, SettingsError

PATH = "/kv_cache_events"
ANSWER_S = 10.0  # older servers take two seconds to say that there is none
ANSWER_BYTES_MAX = 1 << 30


class Away(Exception):
    """The server does not answer now. It may come back."""


class NoEvents(KvfixError):
    """What answers is no server with KV events."""

    exit_code = 2


def endpoint_of(url: str) -> str:
    """The address of the events of a server, which may be given as `HOST:PORT`. Raises SettingsError."""
    whole = url if "://" in url else f"http://{url}"
    parts = urlsplit(whole)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError(f"the URL of the server is '{url}', expected http://HOST:PORT")
    return whole.rstrip("/").removesuffix(PATH) + PATH


def events_of(endpoint: str) -> list[object]:
    """The events since the last call. Raises Away or NoEvents."""
    try:
        with urlopen(Request(endpoint, method="POST"), timeout=ANSWER_S) as answer:
            text = answer.read(ANSWER_BYTES_MAX + 1)
    except HTTPError as error:
        if error.code >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise Away(f"{error.code} {error.reason}") from error
        raise NoEvents(
            f"{endpoint} answers {error.code} {error.reason}: expected trtllm-serve, whose KV events are there"
        ) from error
    except URLError as error:
        raise Away(str(getattr(error.reason, "strerror", None) or error.reason)) from error
    except (OSError, HTTPException) as error:
        raise Away(str(error) or type(error).__name__) from error
    return _listed(text, endpoint)


def _listed(text: bytes, endpoint: str) -> list[object]:
    if len(text) > ANSWER_BYTES_MAX:
        raise NoEvents(f"{endpoint} answers with more than {ANSWER_BYTES_MAX:,} bytes: ask more often (--every)")
    try:
        found = from_json(text)
    except ValueError as error:
        raise NoEvents(f"{endpoint} answers with something else than JSON: {error}") from error
    if not isinstance(found, list):
        raise NoEvents(f"{endpoint} answers with a JSON {type(found).__name__}, expected a list of events")
    return found
