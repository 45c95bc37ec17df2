// The reason for the fate of a hypothesis, in sentences.

import { figure, plural, quoted } from "./dom.js";
import { FATES } from "./recording.js";

const STRATEGIES = { beam: "beam search", "best-first": "best-first", greedy: "greedy search" };

/** The name of a search. */
export function nameOf(recording) {
  const name = recording.about.strategy ?? "a search";
  return STRATEGIES[name] ?? name;
}

/** Two or three sentences about a hypothesis at this point of the search. */
export function why(recording, state, y) {
  const fate = FATES[state.fate[y.index]];
  if (fate === undefined) return "The search has not come across it yet.";
  const tell = { expanded, pending, pruned, evicted, finished, returned }[fate];
  return tell(recording, state, y);
}

function expanded(recording, state, y) {
  const number = state.popped[y.index];
  if (y.parent === null) return "The empty output, where every search begins: scored first.";
  const called = recording.called === null || recording.called.has(y.index);
  const turn = called
    ? `Scored as number ${number}: ${reason(recording, y)}.`
    : `Scored as number ${number}, ahead of its turn, and not needed in the end: a row, but no call.`;
  const told = y.drafted ? `${turn} It was guessed, and scored in one pass with what comes before it.` : turn;
  if (recording.answerPath.has(y.index)) return `${told} The answer grew from it.`;
  const grown = standing(state, y);
  return `${told} ${grown ? `${grown === 1 ? "One" : grown} of its continuations still stand${grown === 1 ? "s" : ""}.` : "Nothing that grew from it is left."}`;
}

function reason(recording, y) {
  if (recording.about.order === "shortest-first") return `length ${y.length} had its turn, and it was on the beam`;
  return recording.about.order === undefined ? "it was first on the agenda" : "the best of all that waited";
}

function standing(state, y) {
  let alive = 0;
  const waiting = [...y.children];
  while (waiting.length) {
    const z = waiting.pop();
    const fate = FATES[state.fate[z.index]];
    if (fate === "pending" || fate === "finished" || fate === "returned") alive += 1;
    if (fate === "expanded") waiting.push(...z.children);
  }
  return alive;
}

function pending(recording, state, y) {
  if (!state.done) {
    const agenda = recording.agenda(state);
    const place = agenda.indexOf(y) + 1;
    return place === 1 ? "First on the agenda: it is scored next." : `Waits: number ${place} of ${agenda.length} on the agenda.`;
  }
  const answer = recording.answers[recording.answers.length - 1];
  if (answer && recording.about.order === "best-first") {
    const bound = figure(y.bound);
    return `It was still waiting when the search ended: it can become ${bound} at best, and ${answerNoun(recording)} has ${figure(answer.score)}.`;
  }
  return "It was still waiting when the search ended: nothing it could become would have been among the answers.";
}

function answerNoun(recording) {
  return recording.answers.length === 1 ? "the answer" : "the last of the answers";
}

function pruned(recording, state, y) {
  const told = state.why[y.index];
  const full = `length ${told?.at} was full: ${told?.better} better`;
  if (told?.why === "merged") return `A better hypothesis of length ${told.at} goes on exactly as it would.`;
  if (told?.refused) return `It never got onto its beam: ${full}.`;
  if (told?.why === "full" && told.at > y.length) return `It was complete and held a slot as far as length ${told.at}; ${full}.`;
  if (told?.why === "full") return `It fell off its beam: ${full}.`;
  if (told?.why === "hopeless")
    return `It was never scored: length ${told.at} was full: ${told.better} better than anything it could become there.`;
  if (told?.why === "limit") return `It reached the maximum length, ${plural(told.at, "token")}, unfinished.`;
  if (told?.why === "ancestor") {
    const lost = recording.lineage(y).find((z) => z !== y && FATES[state.fate[z.index]] === "pruned");
    return lost ? `What it was built on, ${quoted(recording.text(lost))}, fell off its beam.` : "What it was built on fell off.";
  }
  return "It is off its beam. This trace does not tell why.";
}

function evicted(recording, state, y) {
  const capacity = state.why[y.index]?.capacity ?? recording.about.queue_capacity;
  return `More than ${capacity ?? "the capacity of"} hypotheses waited, so the worst of the shortest had to go. Beam search might have kept it.`;
}

function finished(recording, state, y) {
  if (!state.done) return "Complete. It is the answer if nothing that waits can become better.";
  const better = recording.answers.length;
  return `Complete, but not returned: ${better === 1 ? "one answer was asked for, and it is" : `${better} answers were asked for, and they are`} better.`;
}

function returned(recording, state, y) {
  const number = recording.answers.indexOf(y) + 1;
  const which = recording.answers.length === 1 ? "The answer" : `Answer number ${number} of ${recording.answers.length}`;
  const claim = recording.result.exact ? "beam search returns the same, and this is proven" : "without a guarantee that it is beam search's";
  return `${which}: nothing that still waited could become better (${claim}).`;
}

/** The last pop and its reason, in a line. */
export function caption(recording, state) {
  if (recording.nodes.length === 0) return "Nothing was recorded.";
  if (state.done) {
    const calls = plural(recording.result.calls, "call");
    if (recording.answers.length === 0) return `Over after ${calls}: nothing finished.`;
    return `Over after ${calls}: no hypothesis that waits can become better than the answer.`;
  }
  if (state.current === null) return "The agenda holds the empty output.";
  const text = state.current.parent === null ? "the empty output" : quoted(recording.text(state.current), 40);
  return `${state.rows}. Scores ${text} (${figure(state.current.score)}): ${reason(recording, state.current)}.`;
}
