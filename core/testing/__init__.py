"""What plugin authors test with: contract classes, toy models and tokenizers."""
