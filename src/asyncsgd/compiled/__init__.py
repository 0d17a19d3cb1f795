"""Small numba functions that several layers share, and memory that is used again.

Import the functions lazily: `import asyncsgd` must not load numba.
"""
