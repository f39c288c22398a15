"""Messages of the public API, generated from proto/ithaca/v1."""
