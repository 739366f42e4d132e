"""Expressions of GitHub workflows (`${{ … }}`), as far as our workflows use them.

Operators `|| && == != < <= > >= !`, literals, contexts with `.name` and `['name']`, and the functions in FUNCTIONS.
Anything else raises ExpressionError, so that a workflow never means something else locally than it does on GitHub.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

Value: TypeAlias = "bool | float | str | list[Value] | dict[str, Value] | None"

TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<string>'(?:[^']|'')*')|(?P<name>[A-Za-z_][\w-]*)"
    r"|(?P<op>\|\||&&|==|!=|<=|>=|[<>!().,\[\]*]))"
)
PLACEHOLDER = re.compile(r"\$\{\{(.*?)\}\}", re.DOTALL)


class ExpressionError(ValueError):
    """An expression that this evaluator does not know."""


def truthy(value: Value) -> bool:
    """GitHub's truth: null, false, 0 and '' are false, everything else is true."""
    return value not in (None, False, 0, "") if not isinstance(value, (list, dict)) else True


def as_text(value: Value) -> str:
    """The string that a placeholder becomes."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else str(value)
    return value if isinstance(value, str) else json.dumps(value)


def _number(value: Value) -> float:
    if value is None or value == "":
        return 0.0
    if isinstance(value, (bool, int, float)):
        return float(value)
    try:
        return float(value) if isinstance(value, str) else float("nan")
    except ValueError:
        return float("nan")


def _equal(a: Value, b: Value) -> bool:
    if isinstance(a, str) and isinstance(b, str):
        return a.lower() == b.lower()  # GitHub ignores case
    if isinstance(a, (list, dict)) or isinstance(b, (list, dict)):
        return a is b
    return a == b if type(a) is type(b) else _number(a) == _number(b)


def _contains(where: Value, what: Value) -> bool:
    if isinstance(where, list):
        return any(_equal(item, what) for item in where)
    return as_text(what).lower() in as_text(where).lower()


FUNCTIONS: dict[str, Callable[..., Value]] = {
    "fromJSON": lambda text: json.loads(as_text(text), parse_int=float),
    "toJSON": lambda value: json.dumps(value, indent=2),
    "contains": _contains,
    "startsWith": lambda text, start: as_text(text).lower().startswith(as_text(start).lower()),
    "endsWith": lambda text, end: as_text(text).lower().endswith(as_text(end).lower()),
    "format": lambda text, *values: re.sub(r"\{(\d+)\}", lambda m: as_text(values[int(m[1])]), as_text(text)),
}


class Evaluator:
    """Evaluates expressions in one set of contexts; `status` holds success(), failure(), always(), cancelled()."""

    def __init__(self, contexts: Mapping[str, Value], status: Mapping[str, bool] | None = None) -> None:
        self.contexts = contexts
        self.status = dict(status or {"success": True, "failure": False, "always": True, "cancelled": False})
        self.tokens: list[tuple[str, str]] = []

    def evaluate(self, text: str) -> Value:
        """Value of one expression, without the surrounding braces."""
        self.tokens, at, text = [], 0, text.strip()
        while at < len(text):
            m = TOKEN.match(text, at)
            if m is None or m.lastgroup is None:
                raise ExpressionError(f"cannot read {text[at:]!r} in {text!r}")
            self.tokens.append((m.lastgroup, m[m.lastgroup]))
            at = m.end()
        value = self._or()
        if self.tokens:
            raise ExpressionError(f"{text!r}: unexpected {self.tokens[0][1]!r}")
        return value

    def condition(self, text: str | bool | None) -> bool:
        """Value of an `if:`; without a status function it means success() as well."""
        if text is None or text == "":
            return self.status["success"]
        if isinstance(text, bool):
            return text and self.status["success"]
        inner = PLACEHOLDER.fullmatch(text.strip())
        body = inner[1] if inner else text
        implied = not re.search(r"\b(success|failure|always|cancelled)\s*\(", body)
        return truthy(self.evaluate(body)) and (self.status["success"] or not implied)

    def fill(self, value: object) -> Value:
        """Replaces placeholders in a string, list or mapping; a lone placeholder keeps its type."""
        if isinstance(value, str):
            whole = PLACEHOLDER.fullmatch(value.strip())
            if whole:
                return self.evaluate(whole[1])
            return PLACEHOLDER.sub(lambda m: as_text(self.evaluate(m[1])), value)
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, dict):
            return {str(key): self.fill(item) for key, item in value.items()}
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, (int, float)):
            return float(value)
        raise ExpressionError(f"unexpected {type(value).__name__} in a workflow")

    def _take(self, op: str) -> bool:
        if self.tokens and self.tokens[0] == ("op", op):
            self.tokens.pop(0)
            return True
        return False

    def _need(self, op: str) -> None:
        if not self._take(op):
            raise ExpressionError(f"expected {op!r} before {self.tokens[:1]}")

    def _or(self) -> Value:
        value = self._and()
        while self._take("||"):
            other = self._and()
            value = value if truthy(value) else other
        return value

    def _and(self) -> Value:
        value = self._compare()
        while self._take("&&"):
            other = self._compare()
            value = other if truthy(value) else value
        return value

    def _compare(self) -> Value:
        left = self._unary()
        for op in ("==", "!=", "<=", ">=", "<", ">"):
            if self._take(op):
                right = self._unary()
                if op in ("==", "!="):
                    return _equal(left, right) == (op == "==")
                a, b = _number(left), _number(right)
                return {"<": a < b, "<=": a <= b, ">": a > b, ">=": a >= b}[op]
        return left

    def _unary(self) -> Value:
        return not truthy(self._unary()) if self._take("!") else self._primary()

    def _primary(self) -> Value:
        if self._take("("):
            value = self._or()
            self._need(")")
            return value
        if not self.tokens:
            raise ExpressionError("an expression ends too early")
        kind, text = self.tokens.pop(0)
        if kind == "number":
            return float(text)
        if kind == "string":
            return text[1:-1].replace("''", "'")
        if kind != "name":
            raise ExpressionError(f"unexpected {text!r}")
        if text in ("true", "false", "null"):
            return {"true": True, "false": False, "null": None}[text]
        if self._take("("):
            return self._path(self._call(text))
        if text not in self.contexts:
            raise ExpressionError(f"unknown context {text}")
        return self._path(self.contexts[text])

    def _call(self, name: str) -> Value:
        arguments: list[Value] = []
        while not self._take(")"):
            arguments.append(self._or())
            self._take(",")
        if name in self.status and not arguments:
            return self.status[name]
        if name not in FUNCTIONS:
            raise ExpressionError(f"unknown function {name}()")
        return FUNCTIONS[name](*arguments)

    def _path(self, value: Value) -> Value:
        while True:
            if self._take("."):
                key: Value = self.tokens.pop(0)[1]
            elif self._take("["):
                key = self._or()
                self._need("]")
            else:
                return value
            if isinstance(value, list) and isinstance(key, float):
                value = value[int(key)] if int(key) < len(value) else None
            else:
                value = value.get(as_text(key)) if isinstance(value, dict) else None
