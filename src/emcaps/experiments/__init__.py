"""One file for each table or page, and what they share.

records    what finished runs found
runner     trains what is missing, in several processes (processes), with routing measured if asked (measured_run)
published  what others published
"""
