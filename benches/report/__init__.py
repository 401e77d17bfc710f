"""`make bench`: runs every benchmark, keeps what they print, and writes docs/BENCHMARKS.md with its figures and plots.

python -m report --help
"""
