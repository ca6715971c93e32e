"""What counts a member's progress inside its own Python; standard library only, Python 3.8 on.

It is loaded from its folder, under another name, by interpreters that know nothing of
slurm_colloc. So its modules import each other relatively, and nothing else of ours.
"""
