"""The performance report: result files in, a static site, one HTML file and Markdown out."""

from __future__ import annotations

from moelab.report.load import ReportError
from moelab.report.site import ReportPaths, write_report

__all__ = ["ReportError", "ReportPaths", "write_report"]
