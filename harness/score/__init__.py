"""Grades of responses, acceptance metrics and their intervals. Knows records; does not know how they were
decoded.
"""
