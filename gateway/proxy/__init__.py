"""MOVE BYTES: all asyncio and aiohttp of the request path."""
