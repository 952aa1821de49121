"""Samplers, logits processors, speculators and grammars: how the next token is chosen."""
