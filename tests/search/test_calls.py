"""The cost of a search: exact `calls`; scoring ahead changes only `rows` and `steps`."""

from __future__ import annotations

from bestfirst.search import AnyOrderSearch, Hypothesis, beam, best_first_beam
from reference import beam_keep
from toys import Case, Chooser, run


def best_first_run(case: Case, choose: Chooser | None = None):
    ahead = {} if choose is None else {"choose": choose}
    return run(case.toy, best_first_beam(case.k, case.finished), case.n_max, n=case.n, **ahead)


def test_calls_of_beam_search_are_those_of_algorithm_1(for_all):
    """Level by level under `keep`; finished hypotheses do not count. This is the baseline of every reported ratio."""

    def claim(case: Case) -> bool:
        case = case._replace(finished="keep", n=min(case.n, case.k))
        done, reference = run(case.toy, beam(case.k, "keep"), case.n_max, n=case.n), beam_keep(case.toy, case.k, case.n_max)
        return done.result.calls == reference.calls == len(done.scored) and done.steps >= len(reference.beams) - 1

    for_all(claim, normal=192, full=1920)


def test_a_frontier_names_the_needed_hypothesis_first(for_all):
    def claim(case: Case) -> bool:
        named = []

        def choose(search: AnyOrderSearch) -> list[Hypothesis]:
            ready, needed = search.frontier(3), search.needed()
            named.append(ready[0] is needed if ready else needed is None)
            return ready[:1]

        best_first_run(case, choose)
        return all(named)

    for_all(claim, normal=64, full=640)
