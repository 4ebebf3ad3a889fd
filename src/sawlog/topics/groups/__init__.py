"""Consumer groups: who reads what, and the progress of all.

Start reading at `consumer.py`. `members.py` says why a partition has one owner at a time.
"""
