"""Groups of samples as arrays, formed under a token budget, and aligned across ranks."""
