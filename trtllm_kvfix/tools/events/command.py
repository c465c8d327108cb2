"""`trtllm-kvfix events`: the command line, and the loop that asks the server.

trtllm-serve gives the events since the last question, and forgets them.
"""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from types import FrameType
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import click
from pydantic_core import from_json

from trtllm_kvfix import usage
from trtllm_kvfix.errors import KvfixError, SettingsError
from trtllm_kvfix.plurals import number_of
from trtllm_kvfix.settings import Settings
from trtllm_kvfix.tools.events.recorder import EventCounts, EventRecorder

# ---- the server ----

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
    try:
        parts = urlsplit(whole)
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.path.isascii()
        is_address = is_address and parts.port != 0  # one above 65535 raises
    except ValueError:
        is_address = False
    if not is_address:
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


# ---- the command ----

KINDS_SHOWN = 5
EVERY_MAX_S = 86400.0  # the server forgets its oldest events long before


class NothingRecorded(KvfixError):
    exit_code = 2


@click.command()
@click.argument("url")
@click.option(
    "--record",
    "file",
    metavar="FILE",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the requests here, for `replay`.",
)
@click.option("--seconds", type=usage.Real(min=0, min_open=True), help="End after this time.")
@click.option(
    "--every",
    "every_s",
    metavar="SECONDS",
    type=usage.Real(0.01, EVERY_MAX_S),
    default=1.0,
    show_default=True,
    help="Ask the server this often.",
)
@click.pass_obj
def events(settings: Settings, url: str, file: Path, seconds: float | None, every_s: float) -> None:
    """Record the KV events of a running trtllm-serve at URL, for `trtllm-kvfix replay`.

    The server needs `event_buffer_max_size` in its kv_cache_config, and no part of this package. Ctrl-C ends the
    recording. A server that goes away is asked again until it is back. The exit code is 2 if there is no such server
    or nothing could be recorded.
    """
    endpoint = endpoint_of(url)
    recorder = EventRecorder(str(file), settings.record_bytes_max)
    with _stop_signals() as stop:
        try:
            click.echo(f"recording {endpoint} to {file}; Ctrl-C ends it", err=True)
            _record(endpoint, recorder, stop, seconds, every_s)
        finally:
            recorder.close()
    if not recorder.counts.requests:
        raise NothingRecorded(_why_nothing(endpoint, recorder.counts))
    click.echo(f"{number_of(recorder.counts.requests, 'request')} recorded in {file}")
    for note in _notes(recorder):
        click.echo(note)


def _record(
    endpoint: str, recorder: EventRecorder, stop: threading.Event, seconds: float | None, every_s: float
) -> None:
    end = None if seconds is None else time.monotonic() + seconds
    has_answered = is_away = False
    while True:
        try:
            found = events_of(endpoint)
        except Away as error:
            if not has_answered:
                raise NothingRecorded(f"{endpoint} cannot be reached: {error}") from error
            if not is_away:
                click.echo(f"the server is away ({error}), and is asked until it is back", err=True)
            is_away = True
        else:
            if is_away:
                click.echo("the server is back", err=True)
            has_answered, is_away = True, False
            recorder.add(found, 1000 * time.time())
        left = every_s if end is None else min(every_s, end - time.monotonic())
        if recorder.why_over or left <= 0 or stop.wait(left):
            return


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that what was asked for is still written. The second ends at once."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def ask_to_stop(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            signal.default_int_handler(number, frame)
        stop.set()

    before = {each: signal.signal(each, ask_to_stop) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _why_nothing(endpoint: str, counts: EventCounts) -> str:
    if not counts.events:
        return (
            f"no request was recorded: {endpoint} had no events. Is event_buffer_max_size set in the server's "
            "kv_cache_config, and does nobody else read them?"
        )
    unknown = f" ({_kinds(counts)})" if counts.unknown else ""
    return f"no request was recorded: none of {number_of(counts.events, 'event')} stored a block{unknown}"


def _notes(recorder: EventRecorder) -> Iterator[str]:
    """What is not as it should be, if anything."""
    counts = recorder.counts
    if recorder.why_over:
        yield f"the recording has ended early: {recorder.why_over}"
    if counts.restarts:
        times = number_of(counts.restarts, "time")
        yield f"the server has started again {times}, and a replay finds nothing of before"
    if counts.lost:
        yield (
            f"{number_of(counts.lost, 'event')} did not come: the server dropped them (raise event_buffer_max_size, "
            "or lower --every), or somebody else reads them"
        )
    if counts.cut:
        yield (
            f"{number_of(counts.cut, 'request')} lack the beginnings of their prompts, which were stored before the "
            "recording began"
        )
    if not counts.begun_blocks:
        yield (
            "no event told where an answer ends (enable_partial_reuse is off?): it is guessed, and wrong for prompts "
            "that were computed in chunks and for answers shorter than a block"
        )
    if counts.of_other_windows:
        yield f"{number_of(counts.of_other_windows, 'event')} of smaller attention windows left out"
    if counts.unknown:
        yield f"events that cannot be used: {_kinds(counts)}"


def _kinds(counts: EventCounts) -> str:
    most = counts.unknown.most_common(KINDS_SHOWN)
    return ", ".join(f"{count} {kind}" for kind, count in most)
