"""Pages keep to rules of width, references, links and words.

`python -m tests.prose` wraps paragraphs that are too wide and defines the references of each page at its end.
"""
