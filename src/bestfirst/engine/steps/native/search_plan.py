"""Search plan: where the numbers of compiled searches (`searches`) lie: 64-bit integers, addresses among them."""

from __future__ import annotations

# -- of one search: what was asked for
(
    K, N, N_MAX, COMPLETE, KEEP, WIDTH, LEVEL_ROWS, ENDS_AT, ENDS, START, OFFSET, PROMPT_SLOT, PLACE, PAUSED,
    # how far it has come; REACHED: the length of the longest that was scored, and one
    NODES, SCORED, CALLS, STEPS, GUESSED, NEEDED, DEEPEST, REACHED, OVER,
    # where its memory is, and how much there is of it
    NODES_AT, VALUES_AT, NODE_ROOM, ROWS_AT, BEST_AT, TOKENS_AT, CHILDREN_AT, ROW_ROOM,
    # where answers are ranked by score (`search_state`); NORMS_AT: what scores and bounds are divided by
    ANSWER_ROOM, NORMS_AT, ENOUGH,
    # where it goes level by level (`search/level.py`)
    LEVELS, STOP, LED, LEVEL_AT, LEVEL, TURN, NOW, GOING_AT, GOING_FROM_AT, GOING, ENDED_AT, ENDED_FROM_AT, ENDED, BAR_AT,
    # where it goes on until a step (`search/step.py`)
    BY_STEP, LEAVES_OUT,
    # under a `Trie`, its arrays (TRIE_AT: its tokens; 0 where there is none), the state of each scored node, and its ends
    TRIE_AT, FIRST_AT, ITEMS_AT, TRIE_ENDS_AT, TRIE_ENDS, STATES_AT,
    # its progress (`search/strict.py`): the queue, of each length how many are on the beam and some values, and the answers
    PROGRESS,
) = range(57)  # fmt: skip
(
    COSTS_AT, CURSORS_AT, COUNTS_AT, MARKS_AT, ANSWERS_AT, ANSWER_VALUES_AT, AWAY_COSTS_AT, AWAY_CURSORS_AT,
    QUEUED, LENGTHS, FOUND, IN_EARNEST, SETTLED,
    # until a step: the lengths of which the best is known, the step (-1: not known), the greatest length that is full, whether
    # all is known but for what is set aside; how many are, where that is off the beam, whether it has its turn, what has not
    KNOWN, LAST_STEP, FULL, DECIDED, ASIDES, OFF, SHORTER, AWAY, NEXT,
) = range(22)  # of a progress  # fmt: skip
SEARCH = PROGRESS + 22  # numbers of a search
PARENT, TOKEN, LENGTH, ROW, ON_BEAM = range(5)  # of a node; ROW: -1 until it is scored
NODE, SLOT, COUNT, RANK = range(4)  # of a scored node; RANK: 0 if it was needed, else which guess it was
SCORE, BOUND = range(2)  # of a length
MEMBERS, UNFINISHED, ASIDE = range(3)  # of a length; ASIDE: the hypotheses that are set aside, in their order
KTH, LAST, FIRST, HIDDEN, ATTAINS = range(5)  # values of a length; HIDDEN: inf where nothing was left out; ATTAINS: one, of all
AT_ENOUGH, AT_LEAD = range(2)  # stops: so many have finished; n have, and the best of some beam

# -- of all that share a step; MOST_ROWS: that there is memory for, which is as many as there can be
(
    SEARCHES, SEARCHES_AT, BUDGET, FREE, MOST_ROWS, LIMIT, BANNED_AT, BANNED, ROW_NODES_AT, ROW_SEARCHES_AT, ROW_RANKS_AT,
    SLOTS_AT, SLOTS, BEST_OF_AT, TOKENS_OF_AT, GUESS_COSTS_AT, GUESSES_AT, PLAYED, HEAD_AT, HEAD_START_AT, HEAD_SCALES_AT,
    HEAD_BIAS_AT, VOCABULARY, COLUMNS, TURNED_AT, LOGITS_AT, LANES, ROW_STATES_AT,
    # what came of a call
    REASON, STEPS_RUN, ROWS_RUN, BROKEN,
) = range(32)  # fmt: skip
STEP = BROKEN + 23  # numbers of a step; those from PLAYED_AT on are a progress that is played on with
PLAYED_AT = BROKEN + 1
SOME_OVER, STEPS_DONE, MORE_ROOM, NOT_FINITE = range(4)  # why a call came to its end
