"""Search methods beside gradient matching, behind one interface, and the controls for each.

Here belongs how other methods find a policy. Data, splits, run folder, resume and progress are
the matter of `deepaa.search`, which gives every method the same images, network and seeds.
"""

from deepaa.search.methods.searcher import (
    Forecast as Forecast,
    Needs as Needs,
    Part as Part,
    Passes as Passes,
    Searcher as Searcher,
    TrialRecord as TrialRecord,
    World as World,
    seed_for as seed_for,
)
