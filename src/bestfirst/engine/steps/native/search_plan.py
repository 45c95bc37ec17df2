"""Search plan: the layout of the int64 arrays that Python and compiled code share: the index of each number and address (_AT).

`h` is one search (`SearchMemory.head`); `q` its progress, the part that speculation copies and plays on with; `e` what the
searches of a step share (`StepMemory.numbers`); `p` the plan of a forward pass (`WholePass`), with or without searches.
"""

from __future__ import annotations

# -- h, one search: settings
(
    K, N, N_MAX, COMPLETE, KEEP, WIDTH, LEVEL_ROWS, ENDS_AT, ENDS, START, OFFSET, PROMPT_SLOT, PLACE, PAUSED,
    # counters; REACHED: the greatest length that was scored, plus one
    NODES, SCORED, CALLS, STEPS, GUESSED, NEEDED, DEEPEST, REACHED, OVER,
    # its arrays, and how many entries they have room for
    NODES_AT, VALUES_AT, NODE_ROOM, ROWS_AT, BEST_AT, TOKENS_AT, CHILDREN_AT, ROW_ROOM,
    # if answers are ranked by score (`search_state`); NORMS_AT: divisors of scores and bounds by length
    ANSWER_ROOM, NORMS_AT, ENOUGH,
    # of a level search (`search/level.py`)
    LEVELS, STOP, LED, LEVEL_AT, LEVEL, TURN, NOW, GOING_AT, GOING_FROM_AT, GOING, ENDED_AT, ENDED_FROM_AT, ENDED, BAR_AT,
    # of a step search (`search/step.py`)
    BY_STEP, LEAVES_OUT,
    # under a `Trie`: its arrays (TRIE_AT: its tokens; 0 without a trie), its end tokens, and the state of each scored node
    TRIE_AT, FIRST_AT, ITEMS_AT, TRIE_ENDS_AT, TRIE_ENDS, STATES_AT,
    # q, its progress (`search/strict.py`): the queue, counts and values by length, and the answers
    PROGRESS,
) = range(57)  # fmt: skip
(
    COSTS_AT, CURSORS_AT, COUNTS_AT, MARKS_AT, ANSWERS_AT, ANSWER_VALUES_AT, AWAY_COSTS_AT, AWAY_CURSORS_AT,
    QUEUED, LENGTHS, FOUND, IN_EARNEST, SETTLED,
    # of a step search (`StepProgress`). KNOWN: number of lengths whose best hypothesis is known; LAST_STEP: the step at which
    # Hugging Face stops, or -1; FULL: the greatest length with k unfinished; DECIDED: whether all but ASIDES is settled; ASIDES:
    # how many hypotheses are set aside; OFF: the length at which these fall off the beam; SHORTER: whether they, and what is
    # shorter than OFF, are being searched; AWAY: how many cursors the other queue has; NEXT: the first hypothesis of that queue
    KNOWN, LAST_STEP, FULL, DECIDED, ASIDES, OFF, SHORTER, AWAY, NEXT,
) = range(22)  # of a progress; IN_EARNEST: 0 in the copy of a progress that speculation plays on with  # fmt: skip
SEARCH = PROGRESS + 22  # size of h
PARENT, TOKEN, LENGTH, ROW, ON_BEAM = range(5)  # columns of NODES_AT; ROW: -1 until the node is scored
NODE, SLOT, COUNT, RANK = range(4)  # columns of ROWS_AT (scored nodes); RANK: 0 if it was needed, else its rank as a guess
SCORE, BOUND = range(2)  # rows of NORMS_AT
MEMBERS, UNFINISHED, ASIDE = range(3)  # rows of COUNTS_AT, by length; ASIDE: the hypotheses set aside, in their order
KTH, LAST, FIRST, HIDDEN, ATTAINS = range(5)  # rows of MARKS_AT, by length; HIDDEN: inf if nothing was left out; ATTAINS: at 0
AT_ENOUGH, AT_LEAD = range(2)  # STOP: when ENOUGH have finished; when n have, and the best of some beam has

# -- e, shared by the searches of a step; MOST_ROWS: rows that there is memory for, the most that a step can have
(
    SEARCHES, SEARCHES_AT, BUDGET, FREE, MOST_ROWS, LIMIT, BANNED_AT, BANNED, ROW_NODES_AT, ROW_SEARCHES_AT, ROW_RANKS_AT,
    SLOTS_AT, SLOTS, BEST_OF_AT, TOKENS_OF_AT, GUESS_COSTS_AT, GUESSES_AT, PLAYED, HEAD_AT, HEAD_START_AT, HEAD_SCALES_AT,
    HEAD_BIAS_AT, VOCABULARY, COLUMNS, TURNED_AT, LOGITS_AT, LANES, ROW_STATES_AT,
    # results of a call; BROKEN: the row whose scores are not finite
    REASON, STEPS_RUN, ROWS_RUN, BROKEN,
) = range(32)  # fmt: skip
STEP = BROKEN + 23  # size of e, whose end is a progress: the copy that speculation plays on with
PLAYED_AT = BROKEN + 1
SOME_OVER, STEPS_DONE, MORE_ROOM, NOT_FINITE = range(4)  # REASON: why a call ended

# -- p, the plan of a forward pass
(
    P_ROWS, P_D, P_HEADS, P_INNER, P_LAYERS, P_NORM_FIRST, P_ACTIVATION,
    # the rows; of an encoder P_STARTS_AT and P_INPUTS in place of slots and places
    P_TOKENS_AT, P_POSITIONS_AT, P_SLOTS_AT, P_PLACES_AT,
    # embeddings of tokens and positions, and the norm of their sum (0: none)
    P_EMBEDDING_AT, P_VOCABULARY, P_TABLE_AT, P_TABLE_ROWS, P_NORM_AT, P_NORM_BIAS_AT,
    # the tree's paths (P_SLOTS, P_CONTEXT) and the sources' lengths; P_SOURCES, P_SOURCE_LENGTH: that there is room for
    P_PATHS_AT, P_SLOTS, P_CONTEXT, P_LENGTHS_AT, P_SOURCES, P_SOURCE_LENGTH,
    # the workspace, as `whole.WORK`
    P_X_AT, P_H_AT, P_Y_AT, P_QKV_AT, P_ATTENDED_AT, P_INNER_AT, P_Q_AT, P_QUANTISED_AT, P_SCALES_AT,
    P_ZEROS_AT, P_BLOCK,
) = range(34)  # fmt: skip
P_STARTS_AT, P_INPUTS = P_SLOTS_AT, P_PLACES_AT
PLAN = 34  # size of p before its last part: each layer's address in the tree, then in the sources
