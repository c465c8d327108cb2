#!/usr/bin/env python3
"""Ask the server for one token, and exit with 1 if none comes: a liveness probe.

`/health` answers 200 even while the executor's thread is dead (hazard H3). This script needs nothing but Python.

    answers.py [URL] [SECONDS]
"""

import json
import sys
import urllib.request
from http.client import HTTPException
from typing import Any


def main(url: str = "http://127.0.0.1:8000", limit_s: str = "20") -> int:
    try:
        model = asked(f"{url}/v1/models", None, float(limit_s))["data"][0]["id"]
        answer = asked(f"{url}/v1/completions", {"model": model, "prompt": "1", "max_tokens": 1}, float(limit_s))
    except (OSError, HTTPException, ValueError, LookupError, TypeError) as error:
        print(f"no answer from {url} within {limit_s} s: {error!r}", file=sys.stderr)
        return 1
    if not (isinstance(answer, dict) and answer.get("choices")):
        print(f"{url} answers without a choice: {answer}", file=sys.stderr)
        return 1
    return 0


def asked(url: str, body: dict[str, Any] | None, limit_s: float) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=limit_s) as response:
        return json.load(response)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
