"""Models that are written as models are, and not as a library would like them."""
