"""Fused relay operations of DFlow (equations 4 and 5): each file a torch reference, Triton kernels and one operator.

Importing this package imports no Triton: it also serves machines that have none, through the references.
"""

from methods.kernels.film import relay_film, relay_film_reference
from methods.kernels.gather import relay_gather, relay_gather_reference

__all__ = ["relay_film", "relay_film_reference", "relay_gather", "relay_gather_reference"]
