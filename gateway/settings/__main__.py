"""``python -m gateway.settings``: write the example file and the page of all settings."""

from gateway.settings.docs import write

write()
