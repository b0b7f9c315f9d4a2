"""An emulated engine: a pure continuous-batching model, and a real HTTP server on it."""
