"""Contests by training: candidates, the trainings that compare them, the pick and its proof.

Here belongs what decides between policies by networks that are trained with them. How policies are
found is the matter of `gradient_matching`.
"""

from deepaa.search.contest.candidates import (
    AS_FOUND as AS_FOUND,
    FORMS as FORMS,
    FOUND_BY as FOUND_BY,
    REFERENCES as REFERENCES,
    Candidate as Candidate,
    all_candidates as all_candidates,
    protected_away as protected_away,
)
from deepaa.search.contest.judged import JudgedImages as JudgedImages
from deepaa.search.contest.keep import (
    ContestProgress as ContestProgress,
    ContestRun as ContestRun,
)
from deepaa.search.contest.own_loop import LoopRecord as LoopRecord, hold_contest as hold_contest
from deepaa.search.contest.pick import (
    Difference as Difference,
    Pick as Pick,
    difference as difference,
    pick as pick,
    staying as staying,
)
from deepaa.search.contest.plan import (
    ContestConfig as ContestConfig,
    LengthPlan as LengthPlan,
    Plan as Plan,
    Size as Size,
    flat as flat,
)
from deepaa.search.contest.proof import (
    Proof as Proof,
    confirmed as confirmed,
    proof as proof,
)
from deepaa.search.contest.request import (
    Asked as Asked,
    ContestRequest as ContestRequest,
    Searched as Searched,
    asked_contest as asked_contest,
    contest_facts as contest_facts,
    contest_network as contest_network,
    contest_plan as contest_plan,
    open_contest as open_contest,
    short_name as short_name,
)
from deepaa.search.contest.result import ContestResult as ContestResult
from deepaa.search.contest.run import (
    Contest as Contest,
    ContestEntry as ContestEntry,
    ContestEpoch as ContestEpoch,
    ContestRecord as ContestRecord,
    Network as Network,
)
from deepaa.search.contest.table import ContestTable as ContestTable, Entry as Entry
