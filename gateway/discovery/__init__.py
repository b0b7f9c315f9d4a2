"""Engines that come and go: found by their name in DNS or in Kubernetes."""
