"""Shares what API keys have used with other gateways, over a store that speaks the protocol of Redis."""
