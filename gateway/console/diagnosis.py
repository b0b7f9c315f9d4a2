"""What is wrong, on the admin port: ``/diagnosis``."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from gateway.console.query import answer, one_of, only
from gateway.telemetry.findings import Findings


class DiagnosisRoutes:
    """A handler over what was found."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings

    def routes(self) -> Sequence[web.RouteDef]:
        """To be added to the admin application."""
        return (web.get("/diagnosis", self._diagnosis),)

    async def _diagnosis(self, request: web.Request) -> web.Response:
        try:
            only(request.query, ("format",))
            shape = one_of("format", request.query.get("format", "json"), ("json", "text"))
        except ValueError as error:
            return answer({"error": str(error)}, 400)
        if shape == "text":
            return web.Response(text=self._findings.text())
        return answer(self._findings.view())
