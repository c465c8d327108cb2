"""Every figure in README and docs, and the row of bench/results behind it.

A note in front of a paragraph or table says where its figures come from. It is a comment of HTML, so no reader sees it:

    <!-- figures: loop.csv commit=48a90d2 metric=host_us
    592 µs = v(workload="C-batch8-step0ms", manager="off")
    all fixes = v(workload=f"C-batch{row}-step0ms", manager="all") - v(workload=f"C-batch{row}-step0ms", manager="off")
    -->

The first line names a file and what all its rows have in common. Each further line computes the numbers in a phrase of
the text, or in the cells under a heading or beside a label of a table. `row` and `column` are the labels of a cell,
`line["fix"]` is its neighbour under that heading. `v` is the value of the only row that fits, `each` those of all that
fit. A line that begins with `let` names what several formulas share. The section that quotes a figure names its commit.

    <!-- given: 10 ms; batch -->                         conditions, limits and settings: nobody measured them
    <!-- shown by: tests/claims/test_shown.py -->        a test compares the text with what the code prints

`python -m tests.claims` lists what each page claims, of which commit, and whether the code has changed since.
"""
