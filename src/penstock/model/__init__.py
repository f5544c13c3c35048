"""What is run: finding a model by its source and making it callable on batches.

- `source`: from `"module:callable"` or `"file.py:callable"` to the object
- `function`: a plain Python function on numpy arrays as a `Runnable`
- `load`: picks the right one
"""
