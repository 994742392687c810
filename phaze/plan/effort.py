"""Limits of effort: how much a search computes before it ends with the best plan so far.

No limit makes an answer wrong. With less effort a plan may be slower, and the proven gap is wider.
Work is counted in linear programs of average duration, `time_limit.Work`.
"""

# Proof: all layouts together.

MOST_WORK = 100_000
"""Maximum number of linear programs of a search; the bounds of layouts left after that only widen the gap."""
MOST_SEARCHED = 3_000
"""Maximum number of layouts whose pipeline splits are searched; the others only widen the gap."""
MOST_BRANCHING_WORK = 40_000
"""Maximum number of linear programs spent on branching within single layouts."""
RATE_WORK = 1_000
"""Number of linear programs over which it is measured how fast a search proceeds.

Ending a proof that is too slow took LoRA of 70B parameters on 8 H100 from 570 to 54 CPU seconds.
"""
SLOW_S, SOONER_GAP = 60.0, 0.02
"""Seconds after which progress messages name a gap that ends a search sooner, and this gap."""
FURTHER_WORK = 200
"""Maximum number of additional linear programs for table rows after the first one."""
FURTHER_SEARCHED = 150
"""Maximum number of additional layouts whose pipeline splits are searched for these rows."""
MOST_QUEUED = 3_000
"""Maximum number of layouts that are queued for these rows."""

# Short searches for a good plan, without a proof, and comparisons.

REPLAN_WORK = 100
"""Maximum number of linear programs of a search with more of one resource, see `what_if`."""
FEWEST_GAP = 0.5
"""Optimality gap of a search that only asks whether any plan fits, see `answer.fewest`."""
SURE_S = 5.0
"""Seconds after the time limit of a search in which a plan that surely fits may be improved."""
MOST_RECIPES = 3
"""Maximum number of published recipes that are priced."""

FUTILE = 2.0
"""Ratio of a step time to the bound of a group of chips from which a search is unlikely to exclude it."""
MOST_CHIP_GRAPHS = 100_000_000
"""Maximum number of pairs of a chip and a graph of operators that are bounded to show each chip by itself.

A million take about 2 CPU seconds. Dense models have 70 million, and models with experts a billion.
"""

# First plans: the faster they are, the fewer layouts need exact bounds.

MOST_GROUPS = 30
"""Maximum number of groups of similar layouts from which one is tried before all others."""
MOST_UNDECIDED_GROUPS = 100
"""Maximum number of groups of layouts with a promising bound from which one is simulated."""
MOST_PER_FAMILY = 3
"""Maximum number of layouts of a family that are simulated."""
MOST_STEPS = 2
"""Maximum number of fields in which a neighbour differs, each by one step."""
MOST_NEIGHBOURS = 40
"""Maximum number of neighbouring families that are simulated, smallest bounds first."""
EXPANDED_AT_ONCE = 10
"""Maximum number of neighbouring families that are expanded together."""
CLEAR_GAIN = 0.02
"""Relative gain of a neighbour above which the search moves on to it at once."""
FAR = 0.2
"""Relative distance from the best plan up to which the neighbours of a plan are simulated."""
MOST_CLIMBED = 3
"""Number of fastest layouts whose pipeline splits are improved by local search."""
MOST_SIMULATED = 200
"""Maximum number of undecided layouts that are simulated after a search."""

# Memory of the search itself.

MOST_SHARPENED = 30_000
"""Maximum number of families whose bounds are raised together."""
MOST_EXPANDED = 3_000
"""Maximum number of families expanded together."""
MOST_SHARDS = 300
"""Maximum number of shards whose costs stay in memory for reuse."""
MOST_LOADED = 32
"""Maximum number of layouts whose linear programs stay in memory between examinations.

With these two limits DeepSeek-V3 on 1,024 devices took 2.5 GB instead of 3.8, in the same CPU time.
"""

# Pipeline splits of one layout.

FEW_SPLITS = 300
"""Number of pipeline splits up to which all of them are simulated."""
MOST_MOVES = 300
"""Maximum number of neighbours of a pipeline split that are simulated."""
REPAIRS = 6
"""Maximum number of attempts to make a pipeline split fit in memory."""
MOST_FEWER = 4
"""Maximum number of layers by which the first and last stage together fall short of other stages."""
FEW_COUNTS = 8
"""Maximum number of recompute counts over which the working memory of a run of layers is minimised."""
MOST_JOBS = 16_000
"""Maximum number of events in one linear program; for longer steps, paths are added one by one.

Programs of more events took 8 s each.
"""
MOST_SHAPE_JOBS = 25_000
"""Maximum number of passes and updates in the linear program of a pipeline shape."""
RELAXATIONS = 300
"""Maximum number of linear relaxations solved per layout."""
INTEGER_ROUNDS = 8
"""Maximum number of integer programs per layout if no event-graph flow is known; they take longest."""
FLOW_ROUNDS = 20
"""Maximum number of flows computed for given layer counts per rank, over all pipeline splits."""
PART_FLOW_ROUNDS = 3
"""Maximum number of flows computed for given layer counts per rank, within one subset of the splits."""
MOST_BRANCHINGS = 6
"""Maximum number of branchings that are compared for one subset of the pipeline splits."""
NEARLY = 0.997
"""Fraction of the target bound above which it pays to compute the layout's own event-graph flow."""
HOPEFUL = 0.975
"""Fraction of the target bound above which branching on the layers of single stages may reach it."""
LATER = 1.03
"""Ratio to the target step time up to which the neighbours of a pipeline split are simulated."""

# Work in units of one linear program without events, by order of magnitude.

JOBS_PER_PROGRAM = 25
"""Number of events that add as much solve time as a program without events."""
VARIABLES_PER_PROGRAM = 32
"""Number of variables of a program that counts as one."""
INTEGER_WORK = 10
"""Number of linear programs solved in the time of one integer program."""
COSTS_PER_PROGRAM = 16
"""Number of stage costs computed in the time of one program."""
