// The input, the answers, and the race: a bar for the calls of each search.

import { el, figure, plural } from "./dom.js";
import { nameOf } from "./why.js";

const LONG = 200; // letters of an input that are shown while it is folded

export class Summary {
  constructor(recordings, title) {
    this.recordings = recordings;
    this.most = Math.max(1, ...recordings.map((recording) => recording.result?.calls ?? recording.steps));
    this.lanes = recordings.map((recording) => this._lane(recording));
    this.verdict = el("p", "bf-verdict");
    const race = el("div", "bf-race", {}, ...this.lanes.map((lane) => lane.element), this.verdict);
    this.element = el("header", "bf-summary", {}, el("div", "bf-texts", {}, heading(title), this._answers()), race);
  }

  _lane(recording) {
    const bar = el("span", "bf-lane-bar");
    const number = el("span", "bf-lane-number");
    const track = el("span", "bf-lane-track", {}, bar);
    const k = Number.isFinite(recording.beam) ? `k = ${recording.beam}` : "nothing pruned";
    const name = el("span", "bf-lane-name", {}, nameOf(recording), el("small", "", {}, k));
    return { element: el("div", "bf-lane", {}, name, track, number), bar, number };
  }

  /** The answers, each once, whichever searches found it. */
  _answers() {
    const list = el("ol", "bf-answers");
    const found = new Map();
    for (const recording of this.recordings) {
      recording.answers.forEach((y, i) => found.set(recording.answerText(i), y.score));
    }
    for (const [text, score] of [...found].slice(0, 5)) {
      const words = el("span", "bf-answer-text", { dir: "auto" }, text.slice(0, 2 * LONG) || "(nothing)");
      list.append(el("li", "bf-answer", {}, words, el("span", "bf-number", {}, figure(score))));
    }
    if (found.size > 5) list.append(el("li", "bf-answer bf-more", {}, `and ${found.size - 5} more`));
    if (!found.size) list.append(el("li", "bf-answer", {}, "nothing finished"));
    return list;
  }

  update(states) {
    states.forEach((state, i) => {
      const lane = this.lanes[i];
      lane.bar.style.width = `${(100 * state.calls) / this.most}%`;
      lane.number.textContent = `${plural(state.calls, "call")}${state.done ? " ✓" : ""}`;
      lane.element.classList.toggle("bf-over", state.done);
    });
    this.verdict.textContent = states.every((state) => state.done) ? this._verdict() : "";
  }

  _verdict() {
    const [first, second] = this.recordings;
    if (!second) return first.result.exact ? "proven to be beam search's answer" : "";
    const same = first.answerText(0) === second.answerText(0) && first.answers[0]?.score.toFixed(4) === second.answers[0]?.score.toFixed(4);
    const share = Math.round((100 * first.result.calls) / second.result.calls);
    return `${same ? "The same answer" : "Another answer"} for ${share} % of the calls.`;
  }
}

/** The input, cut where it is long. */
function heading(title) {
  const text = title || "a search";
  if (text.length <= LONG) return el("h1", "bf-source", { dir: "auto" }, text);
  const whole = el("p", "bf-source-whole", { dir: "auto" }, text);
  const cut = el("summary", "bf-source", { dir: "auto" }, `${text.slice(0, LONG)}…`);
  return el("details", "bf-long-source", {}, cut, whole);
}
