"""Systems beside each other in one run: each is a worker process, and one of them works at a time.

python -m compare --help
"""
