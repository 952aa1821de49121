"""KV manager `modular`: prompts composed of modules."""
