"""The composition root. ``compose.py`` is the one place that names the concrete classes of all rooms."""
