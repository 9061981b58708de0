"""The pocket world: five templated suites, their grader, and the small target that is shipped with the
project.

Knows how its own items are made, graded and learned. Knows nothing of drafters, decoding rounds or the
pipeline.
"""
