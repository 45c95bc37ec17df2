// Replays a trace pop by pop. `bestfirst.page.recorded_tree` computes the same in Python, for the end of the trace.

export const FATES = ["expanded", "pending", "pruned", "evicted", "finished", "returned"];
export const UNBORN = -1;
const [EXPANDED, PENDING, PRUNED, EVICTED, FINISHED, RETURNED] = FATES.keys();

/** One search: its hypotheses, in order of appearance, and what happened to them. */
export class Recording {
  constructor(events) {
    this.about = {};
    this.result = null;
    this.texts = [];
    this.nodes = [];
    this.log = [[]]; // for each pop, the events from it until the next; first those before any pop
    this._index = new Map(); // from ids to places in `nodes`
    for (const event of events) this._read(event);
    this.steps = this.log.length - 1;
    this.beam = this.about.beam ?? Infinity;
    this.depth = this.nodes.reduce((most, y) => Math.max(most, y.length), 0);
    this.called = this.result?.called ? new Set(this.result.called.map((id) => this._index.get(id))) : null;
    this.answers = (this.result?.answers ?? []).map((id) => this.nodes[this._index.get(id)]);
    this.answerPath = new Set(this.answers.flatMap((y) => this.lineage(y)).map((y) => y.index));
    this._sort();
    this._state = null;
  }

  /** Sort once: scores and places never change, so what is shown at any step is a selection of these lists. */
  _sort() {
    this.byLength = Array.from({ length: this.depth + 1 }, () => []);
    for (const y of this.nodes) this.byLength[y.length].push(y);
    for (const row of this.byLength) row.sort((a, b) => b.score - a.score || a.index - b.index);
    const place = (y) => y.place ?? [-y.score, y.length];
    this._inOrder = this.nodes.filter((y) => !y.finished);
    this._inOrder.sort((a, b) => place(a)[0] - place(b)[0] || place(a)[1] - place(b)[1] || a.index - b.index);
  }

  _read(event) {
    if (event.event === "begin") this.about = event;
    else if (event.event === "result") this.result = event;
    else if (event.event === "text") {
      this.texts = event.texts;
      this.drafted = event.drafted ?? 0; // rows that were scored as drafts, accepted or not
    }
    else {
      const y = this._node(event);
      if (y === undefined) return;
      if (event.event === "draft") {
        y.drafted = true;
        return;
      }
      if (event.event === "pop") this.log.push([]);
      if (event.place) y.place = event.place; // a hypothesis that was refused first had none
      this.log[this.log.length - 1].push([event.event, y, event]);
    }
  }

  /** The hypothesis of an event, which is created by the first event that names it. */
  _node(event) {
    const known = this._index.get(event.id);
    if (known !== undefined) return this.nodes[known];
    const parent = event.parent === null ? null : this.nodes[this._index.get(event.parent)];
    if (event.length === undefined || parent === undefined) return undefined;
    const piece = event.piece ?? (event.token === null ? "" : ` ${event.token}`);
    const y = {
      id: event.id, index: this.nodes.length, parent, piece, children: [], length: event.length, score: event.score,
      logprob: event.logprob, finished: Boolean(event.finished), bound: event.bound ?? event.score, place: event.place ?? null,
    };
    parent?.children.push(y);
    this._index.set(event.id, y.index);
    this.nodes.push(y);
    return y;
  }

  /** The hypotheses from the root to this one. */
  lineage(y) {
    const path = [];
    for (let z = y; z !== null; z = z.parent) path.push(z);
    return path.reverse();
  }

  /** The text of a hypothesis, without EOS. */
  text(y) {
    return this.lineage(y).filter((z) => !z.finished).map((z) => z.piece).join("").trim();
  }

  /** The text of an answer, as the model's own tokenizer writes it where the trace has that. */
  answerText(number) {
    return this.texts[number] ?? (this.answers[number] ? this.text(this.answers[number]) : null);
  }

  node(id) {
    return this.nodes[this._index.get(id)];
  }

  /** The state after so many pops, and after all events that follow the last of them. */
  at(step) {
    const wanted = Math.max(0, Math.min(step, this.steps));
    let state = this._state;
    if (state === null || state.step > wanted) state = this._begin();
    while (state.step < wanted) this._advance(state, this.log[state.step + 1]);
    this._finish(state);
    this._state = state;
    return state;
  }

  _begin() {
    const state = {
      step: -1, rows: 0, calls: 0, current: null, done: false,
      fate: new Int8Array(this.nodes.length).fill(UNBORN), popped: new Int32Array(this.nodes.length), why: [],
    };
    this._advance(state, this.log[0]);
    return state;
  }

  _advance(state, happened) {
    if (state.done) for (const y of this.answers) state.fate[y.index] = FINISHED;
    state.step += 1;
    for (const [kind, y, event] of happened) this._happen(state, kind, y, event);
  }

  _happen(state, kind, y, event) {
    const i = y.index;
    if (kind === "push") {
      const atLimit = y.length === this.about.max_length && !y.finished;
      state.fate[i] = atLimit ? PRUNED : state.popped[i] ? EXPANDED : PENDING;
      state.why[i] = atLimit ? { why: "limit", at: y.length } : undefined;
    } else if (kind === "pop") {
      state.rows += 1;
      state.popped[i] = state.rows;
      if (this.called === null || this.called.has(i)) state.calls += 1;
      if (state.fate[i] === PENDING) state.fate[i] = EXPANDED;
      state.current = y;
    } else if (kind === "finish") {
      y.finished = true;
      state.fate[i] = FINISHED;
    } else {
      state.fate[i] = kind === "evict" ? EVICTED : PRUNED;
      state.why[i] = { ...event, refused: kind === "refuse" };
    }
  }

  _finish(state) {
    state.done = state.step === this.steps && this.result !== null;
    for (const y of this.answers) {
      if (state.done) state.fate[y.index] = RETURNED;
      else if (state.fate[y.index] === RETURNED) state.fate[y.index] = FINISHED;
    }
  }

  /** The number of hypotheses of each fate in this state. */
  counts(state) {
    const counts = Object.fromEntries(FATES.map((fate) => [fate, 0]));
    for (const fate of state.fate) if (fate !== UNBORN) counts[FATES[fate]] += 1;
    return counts;
  }

  /** The pending hypotheses, in the order in which the search would pop them. */
  agenda(state) {
    return this._inOrder.filter((y) => state.fate[y.index] === PENDING && !y.finished);
  }
}
