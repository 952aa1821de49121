"""Model families: the architectures that run the layers."""
