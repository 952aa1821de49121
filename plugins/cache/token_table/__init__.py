"""KV manager `token_table`: pages of one token."""
