"""Small numba functions that several layers share. Import it lazily: `import asyncsgd` must not load numba."""
