"""Where student code runs, and the only place where it does.

One submission's story, in the order of the files:

    warm.py      imports PyTorch once, and runs what every child would otherwise run for the first time
    zygote.py    the process that all children are forked from: holds no test, no reference, no result
    child.py     a fork locks itself down, imports one of the student's modules and answers probes
    limits.py    what a child may use     landlock.py  what it may open     seccomp.py  what it may ask of the kernel
    accelerator.py  what rows about an accelerator take place on     sim.py  the simulated one
    codec.py     a child's reply as data: never pickle, every field checked
    client.py    the trusted side: hands out probes, takes replies, keeps the deadlines
    cleanup.py   ends a child and wipes what it left
    uids.py      a range of user ids that no other grader on this machine uses
"""
