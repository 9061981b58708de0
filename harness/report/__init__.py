"""Tables and figures: pure functions of records, timing rows and reported numbers. Knows no model and no
torch.
"""
