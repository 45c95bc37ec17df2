"""The trace: every event of a search, from which the search can be reconstructed."""

from __future__ import annotations

import json
import random

from bestfirst.search import Trace, best_first_beam
from toys import Case, random_toy, run

EVENTS = {"begin", "push", "refuse", "pop", "prune", "evict", "finish", "result"}


def traced(case: Case, **settings: object):
    trace = Trace()
    capacity = settings.pop("queue_capacity", None)
    strategy = best_first_beam(case.k, case.finished, queue_capacity=capacity)
    return run(case.toy, strategy, case.n_max, n=case.n, trace=trace, **settings), trace.events


def prefixes(events: list[dict]) -> dict[int, tuple[int, ...]]:
    """The search tree from the `push` lines alone: from an id to the tokens of its hypothesis."""
    tree: dict[int, tuple[int, ...]] = {}
    for line in events:
        if line["event"] == "push" and line["id"] not in tree:
            tree[line["id"]] = () if line["parent"] is None else (*tree[line["parent"]], line["token"])
    return tree


def test_a_trace_tells_the_tree_the_pops_and_the_answers(for_all):
    def claim(case: Case) -> bool:
        done, events = traced(case)
        tree = prefixes(events)
        popped = [tree[line["id"]] for line in events if line["event"] == "pop"]
        is_answer = {}
        for line in events:
            if line["event"] in ("finish", "prune", "evict"):
                is_answer[tree[line["id"]]] = line["event"] == "finish"
        finished = [tokens for tokens, accepted in is_answer.items() if accepted]
        return (
            len(set(tree.values())) == len(tree)
            and popped == done.prefixes
            and {tokens for tokens, _ in done.answers} <= set(finished)
            and {line["event"] for line in events} <= EVENTS
        )

    for_all(claim, normal=64, full=320)


def test_each_line_says_what_a_hypothesis_is_worth(for_all):
    def claim(case: Case) -> bool:
        _, events = traced(case)
        tree = prefixes(events)
        for line in (line for line in events if line["event"] == "push"):
            tokens = tree[line["id"]]
            value = sum(case.toy(tokens[:i])[token] for i, token in enumerate(tokens))
            if line["length"] != len(tokens) or abs(line["score"] - value) > 1e-9 or abs(line["logprob"] - value) > 1e-9:
                return False
        return True

    for_all(claim, normal=64, full=320)


def test_all_events_occur():
    events: set[str] = set()
    for seed in range(20):
        case = Case("peaked", 6, seed, k=3, n_max=7, n=3, finished="keep")
        for capacity in (2, None):
            events |= {line["event"] for line in traced(case, queue_capacity=capacity)[1]}
    assert events == EVENTS


def test_the_labels_of_a_trace_are_on_every_event():
    case = Case("flat", 5, 1, k=3, n_max=6, n=2, finished="leave")
    trace = Trace(input=7)
    run(case.toy, best_first_beam(3), 6, n=2, trace=trace)
    assert all(event.pop("input") == 7 for event in trace.events)
    assert trace.events == traced(case)[1]
    assert json.loads(json.dumps(trace.events)) == trace.events


def test_a_trace_changes_nothing_and_is_off_by_default(for_all):
    def claim(case: Case) -> bool:
        seen, _ = traced(case)
        unseen = run(case.toy, best_first_beam(case.k, case.finished), case.n_max, n=case.n)
        return unseen.search.trace is None and (seen.answers, seen.prefixes) == (unseen.answers, unseen.prefixes)

    for_all(claim, normal=64, full=320, searches=2)


def test_a_trace_of_scoring_ahead_has_the_same_answers():
    """Scoring ahead pops more, and a popped hypothesis may be pruned later; each hypothesis keeps its id."""
    rng = random.Random(0)
    for seed in range(30):
        case = Case("peaked", 5, seed, k=4, n_max=6, n=2, finished=rng.choice(("keep", "leave")))
        done, events = traced(case, choose=lambda search: search.frontier(4))
        tree = prefixes(events)
        assert len(set(tree.values())) == len(tree)
        assert {tokens for tokens, _ in done.answers} <= {tree[line["id"]] for line in events if line["event"] == "finish"}


def test_a_search_without_a_trace_makes_no_events():
    search = run(random_toy("flat", 4, 0), best_first_beam(2), 4).search
    assert search.trace is None
    assert search.root.id == -1
