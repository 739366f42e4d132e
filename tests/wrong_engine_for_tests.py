"""An engine that is wrong: its experts' outputs are 10 % too large."""

from __future__ import annotations

from typing import Any

from moelab.e2e import transformers_engine
from moelab.e2e.models import Variant, experts_of


class Engine(transformers_engine.Engine):
    def load(self, variant: Variant, most_tokens: int, most_sequences: int) -> None:
        super().load(variant, most_tokens, most_sequences)
        for experts in experts_of(self.model):
            experts.register_forward_hook(lambda module, given, out: out * 1.1)

    def facts(self) -> dict[str, Any]:
        return super().facts()
