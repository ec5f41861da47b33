"""A runner of plugins for Sigma and Apache APISIX, with the standard library alone."""
