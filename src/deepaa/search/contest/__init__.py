"""The contest: candidates are trained on the user's data, and their judge images pick the winner.

Here belongs what trains candidates and decides between them. `table` holds what they said of each
image, `pick` decides from it alone.
"""

from deepaa.search.contest.pick import (
    REFERENCES as REFERENCES,
    Difference as Difference,
    Pick as Pick,
    Proof as Proof,
    confirmed as confirmed,
    difference as difference,
    may_overtake as may_overtake,
    pick as pick,
    proof as proof,
    staying as staying,
)
from deepaa.search.contest.table import ContestTable as ContestTable, Entry as Entry
