#!/usr/bin/env python3
"""Writes or updates the one comment with a pull request's measurements: comment.py FOLDER.

FOLDER holds the artifacts of the measuring run (see verdict.py). Which pull request it is comes from GitHub's API, by
the head that started the run, never from those files. Needs GITHUB_TOKEN, GITHUB_REPOSITORY, HEAD_OWNER, HEAD_BRANCH,
HEAD_SHA, FORK, RUN_URL; without a token it prints the comment.
"""

from __future__ import annotations

import json
import os
import re
import sys
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from verdict import Cell, read

MARK = "<!-- moelab measurements -->"
MOST_ROWS = 60
ORDER = ("slower", "broken", "undecided", "faster", "same")


def render(cells: list[Cell], *, sha: str, fork: bool, run_url: str) -> str:
    """The comment: worst first, one row per case and runner."""
    lines = [MARK, "### Measured against the base, interleaved", ""]
    if fork:
        lines += ["From a fork: these numbers were made by its code on GitHub's runners and prove nothing alone.", ""]
    counted = Counter(cell.verdict for cell in cells)
    lines.append(", ".join(f"{counted[v]} {v}" for v in ORDER if counted[v]) or "Nothing was measured.")
    if cells:
        lines += ["", "| runner | case | speed, head / base | verdict |", "|---|---|---|---|"]
        ranked = sorted(cells, key=lambda c: (ORDER.index(c.verdict), c.runner, c.case))
        for c in ranked[:MOST_ROWS]:
            look = " (second look)" if c.look == "second" else ""
            lines.append(f"| {c.runner} | `{c.case}` | {c.ratio:.3f} [{c.low:.3f}, {c.high:.3f}] | {c.verdict}{look} |")
        if len(ranked) > MOST_ROWS:
            lines.append(f"| … | {len(ranked) - MOST_ROWS} more | | |")
    where = f" · [run]({run_url})" if re.fullmatch(r"https://[\w.-]+/[\w./-]+", run_url) else ""
    revision = sha[:12] if re.fullmatch(r"[0-9a-f]{40}", sha) else "unknown"
    lines += ["", f"Intervals are 95 %, the margin is 2 %; undecided never fails. Revision {revision}{where}"]
    return "\n".join(lines) + "\n"


class Api:
    """The few calls that are needed."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.base = environment.get("GITHUB_API_URL", "https://api.github.com")
        self.repository = environment["GITHUB_REPOSITORY"]
        self.token = environment["GITHUB_TOKEN"]

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One call; the decoded answer."""
        request = urllib.request.Request(  # noqa: S310  (base is GitHub's own variable)
            f"{self.base}/repos/{self.repository}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            method=method,
            headers={"Authorization": f"Bearer {self.token}", "Accept": "application/vnd.github+json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
            return json.loads(answer.read())

    def pull_request(self, owner: str, branch: str, sha: str) -> int | None:
        """Number of the open pull request whose head this is; None where there is none (any more)."""
        head = urllib.parse.quote(f"{owner}:{branch}", safe="")
        for pull in self.call("GET", f"pulls?state=open&per_page=100&head={head}"):
            if pull["head"]["sha"] == sha:
                return int(pull["number"])
        return None

    def upsert(self, number: int, text: str) -> str:
        """Updates our comment, or writes it; what was done."""
        for page in range(1, 11):
            comments = self.call("GET", f"issues/{number}/comments?per_page=100&page={page}")
            for comment in comments:
                if comment["user"]["type"] == "Bot" and str(comment["body"]).startswith(MARK):
                    self.call("PATCH", f"issues/comments/{int(comment['id'])}", {"body": text})
                    return "updated"
            if len(comments) < 100:
                break
        self.call("POST", f"issues/{number}/comments", {"body": text})
        return "written"


def main() -> int:
    """Renders and posts the comment."""
    env = os.environ
    try:
        cells = read(Path(sys.argv[1]))
    except ValueError as error:
        print(f"comment: the results cannot be read: {error}", file=sys.stderr)
        return 1
    sha = env.get("HEAD_SHA", "")
    text = render(cells, sha=sha, fork=env.get("FORK") == "true", run_url=env.get("RUN_URL", ""))
    if not env.get("GITHUB_TOKEN"):
        print(text)
        return 0
    api = Api(env)
    number = api.pull_request(env.get("HEAD_OWNER", ""), env.get("HEAD_BRANCH", ""), sha)
    if number is None:
        print("comment: no open pull request has this head any more")
        return 0
    print(f"comment: {api.upsert(number, text)} on pull request {number}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
