"""The OpenAI-compatible server and its routes."""
