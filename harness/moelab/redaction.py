"""What must not be published with a result: secrets, and names of people, hosts and folders.

Result files hold facts that were asked for one by one, and no environment. But some of their strings were written by
others: options with paths, messages of exceptions, the last line of a crashed process. Those are cleaned here.
"""

from __future__ import annotations

import getpass
import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

HIDDEN = "[hidden]"
_SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASS|KEY|AUTH|CREDENTIAL|COOKIE|PRIVATE|SIGNATURE", re.IGNORECASE)
_IN_URL = re.compile(r"(?<=://)[^/\s@]+@")
_WORDS = r"token|(?:secret|password|passwd|api[-_]?key|access[-_]?key|credential|signature)s?"  # "tokens" are ours
_ASSIGNED = re.compile(rf"((?:{_WORDS})[\"']?\s*[=:]\s*[\"']?|--[\w-]*(?:{_WORDS})\s+)[^\s&,;'\"\]]+", re.IGNORECASE)
_SHORTEST = 6  # of a value or name: replacing shorter ones would garble text that has nothing to do with them
# Names of accounts and hosts that name nobody, some of which are words of results besides.
_NOBODY = ("root", "runner", "user", "ubuntu", "debian", "nobody", "localhost", "moelab", "github", "docker", "builder")


class Redactor:
    """Cleans strings, and all strings inside of lists and dicts."""

    def __init__(
        self, environment: Mapping[str, str], *, repository: Path | None, home: str, user: str, host: str
    ) -> None:
        self._rules: list[tuple[re.Pattern[str], str]] = []
        values = [v for name, v in environment.items() if _SECRET_NAMES.search(name) and len(v) >= _SHORTEST]
        # Paths are named elsewhere too (SSH_AUTH_SOCK), and are dealt with as paths.
        for value in sorted((v for v in values if not v.startswith("/")), key=len, reverse=True):
            self._rules.append((re.compile(re.escape(value)), HIDDEN))
        self._rules += [(_IN_URL, ""), (_ASSIGNED, rf"\g<1>{HIDDEN}")]
        start = r"(?<![\w/.~-])"
        if repository is not None:
            self._rules.append((re.compile(start + re.escape(str(repository)) + "/"), ""))
        if home.strip("/"):
            self._rules.append((re.compile(start + re.escape(home.rstrip("/")) + r"(?![\w.-])"), "~"))
        hosts = {host, environment.get("HOSTNAME", "")}
        names = [(user, "USER"), *((name, "HOST") for name in sorted(hosts, key=len, reverse=True))]
        for name, shown in names:
            if name and name not in _NOBODY:
                before = r"(?<!\w)" if len(name) >= _SHORTEST else "(?<=/)"  # short ones as a part of a path alone
                self._rules.append((re.compile(before + re.escape(name) + r"(?![\w-])"), shown))

    def clean(self, value: Any) -> Any:
        """A copy; keys of dicts stay, numbers pass."""
        if isinstance(value, str):
            for pattern, replacement in self._rules:
                value = pattern.sub(replacement, value)
            return value
        if isinstance(value, dict):
            return {key: self.clean(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self.clean(inner) for inner in value]
        return value


def redactor(repository: Path | None) -> Redactor:
    """For this process and machine."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without an entry
        user = ""
    home = os.path.expanduser("~")  # noqa: PTH111  # Path.home() raises where there is none
    return Redactor(os.environ, repository=repository, home=home, user=user, host=platform.node())
