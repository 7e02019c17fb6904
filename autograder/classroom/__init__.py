"""A class: what a TA does on the night after the deadline.

One run's story, in the order of the files:

    export.py      Gradescope's export, a zip or a folder: who handed in what
    record.py      what is known of one submission after grading: its results.json
    folder.py      a run's folder: who has a grade in it already, and who may write into it
    progress.py    how far a run is
    cells.py       sandboxes for workers, from a process that has never held a secret
    pool.py        a worker a core, forked from one warm parent with the reference's replies
    run.py         the self-check, then every submission that has no result yet; one run a folder
    cluster.py     the same run, in parts, as jobs of Slurm or of this machine
    shape.py       a submission's syntax, told in numbers
    similar.py     submissions whose syntax is nearly the same
    spreadsheet.py text that a spreadsheet must not compute
    manual.py      marks that a person gives
    gradebook.py   grades.csv and canvas.csv
    statistics.py  what the class did, problem by problem and row by row
    report.py      report.html
    regrade.py     two runs held side by side
    merge.py       a GPU's rows beside those of the CPU
    synthetic.py   an invented class, for trying all of this
    commands.py    what TAs type
"""
