"""Consumer groups: who reads what, and how far everybody is.

Start reading at `consumer.py`. `members.py` says why a partition has one owner at a time.
"""
