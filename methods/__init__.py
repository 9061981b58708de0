"""Drafters for speculative decoding: tensors in, tensors out.  Start with `contract.py`."""
