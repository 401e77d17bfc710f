"""The peers: one worker for each, a process that does what it is told line by line (`protocol.py`).

python -m peers.redis --rows 1000000 --dim 64 --batch 8192 --keys keys --gradients gradients
"""
