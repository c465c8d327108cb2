"""The report as SARIF 2.1.0, which code hosts show beside the lines of a change."""

from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hostrace import __version__
from hostrace.races import Frame, Race, Stack
from hostrace.report import Report, remedy, title, where

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
RULES = {
    "race": ("error", "The host touches memory that the device has not finished with."),
    "unordered": ("error", "The host touches memory after a use that nothing had waited for: the outcome is luck."),
    "possible": ("note", "The host touches memory that the device may still use."),
}
ROOT = "SRCROOT"


def sarif(report: Report, root: Path) -> dict[str, Any]:
    """Files below `root` are named as seen from there, as code hosts want it."""
    found = [*report.races, *report.unordered, *report.possible]
    results = [_result(race, root) for race in found]
    known = [{**_result(race, root), "suppressions": [{"kind": "external"}]} for race in report.suppressed]
    notes = [{"level": "note", "message": {"text": note}} for note in report.notes]
    rules = [
        {"id": grade, "shortDescription": {"text": text}, "defaultConfiguration": {"level": level}}
        for grade, (level, text) in RULES.items()
    ]
    run = {
        "tool": {"driver": {"name": "hostrace", "version": __version__, "rules": rules}},
        "invocations": [
            {
                "executionSuccessful": not report.blind,
                "exitCode": report.status,
                "arguments": report.command,
                "toolExecutionNotifications": notes,
            }
        ],
        "originalUriBaseIds": {ROOT: {"uri": f"{root.resolve().as_uri()}/"}},
        "results": results + known,
        "properties": {"verdict": report.verdict, "numbers": report.numbers},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(race: Race, root: Path) -> dict[str, Any]:
    touched, enqueued = _places(race.touch_stack, root), _places(race.use_stack, root)
    return {
        "ruleId": race.grade,
        "level": RULES[race.grade][0],
        "message": {"text": f"{title(race)}: {where(race)}. {remedy(race)}"},
        "locations": touched,
        "relatedLocations": [{**at, "message": {"text": f"enqueued the {race.use}"}} for at in enqueued],
        "stacks": [_stack("touched", race.touch_stack, root), _stack("enqueued", race.use_stack, root)],
        "occurrenceCount": race.times,
        "partialFingerprints": {"hostrace/v1": sha256(repr(race.identity).encode()).hexdigest()},
    }


def _places(stack: Stack, root: Path) -> list[dict[str, Any]]:
    """One, or none where no line is known."""
    return [_location(at, root) for at in (stack.place,) if at is not None and at.line is not None]


def _stack(text: str, stack: Stack, root: Path) -> dict[str, Any]:
    return {
        "message": {"text": text},
        "frames": [{"location": {**_location(frame, root), "message": {"text": str(frame)}}} for frame in stack.frames],
    }


def _location(frame: Frame, root: Path) -> dict[str, Any]:
    if frame.line is None:
        return {}
    path = Path(frame.file)
    artifact: dict[str, Any] = {"uri": quote(bytes(path))}
    if path.is_absolute():
        inside = path.resolve().is_relative_to(root.resolve())
        artifact = (
            {"uri": quote(bytes(path.resolve().relative_to(root.resolve()))), "uriBaseId": ROOT}
            if inside
            else {"uri": path.as_uri()}
        )
    region = {"startLine": max(frame.line, 1)}
    return {
        "physicalLocation": {"artifactLocation": artifact, "region": region},
        "logicalLocations": [{"fullyQualifiedName": frame.function}] if frame.function else [],
    }
