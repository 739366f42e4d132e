"""`python -m moelab`."""

from __future__ import annotations

import sys

from moelab.cli import main

sys.exit(main())
