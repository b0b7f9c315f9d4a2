"""The composition root. ``compose.py`` is the one place that names the concrete classes of all rooms."""

from gateway.app.lean import without_client

without_client()  # before anything of this room imports aiohttp
