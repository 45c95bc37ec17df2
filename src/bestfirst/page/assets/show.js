// Assembles the page, and keeps its parts at the same step and the same selected hypothesis.

import { el, plural } from "./dom.js";
import { FATES, Recording, UNBORN } from "./recording.js";
import { Agenda } from "./agenda.js";
import { Details, Tooltip } from "./details.js";
import { Player } from "./player.js";
import { Summary } from "./summary.js";
import { Tree } from "./tree.js";
import { label, mark } from "./marks.js";
import { caption, nameOf } from "./why.js";

const ORDER = ["returned", "finished", "expanded", "pending", "evicted", "pruned"]; // of the hits for a token

class Shown {
  constructor(host, searches, { title = "", problems = [] } = {}) {
    this.recordings = searches.map((events) => new Recording(events)).filter((recording) => recording.nodes.length);
    this.selected = null; // {search, y}
    this.found = null;
    this.root = el("div", "bf");
    this.tooltip = new Tooltip(this.root);
    this.panels = this.recordings.map((recording, i) => this._panel(recording, i));
    this.summary = new Summary(this.recordings, title);
    this.details = new Details(() => this.select(null));
    const steps = Math.max(0, ...this.recordings.map((recording) => recording.steps));
    this.player = new Player(steps, (step, next) => this._move(next));
    const complaints = problems.map((said) => el("p", "bf-problems", { role: "alert" }, said));
    const panels = el("div", `bf-panels bf-of-${Math.min(2, this.panels.length)}`, {}, ...this.panels.map((panel) => panel.element));
    const foot = el("footer", "bf-foot", {}, this.details.element, el("div", "bf-controls", {}, this.player.element, this._search(), this._theme()));
    this.root.prepend(...complaints, this.summary.element, panels, foot);
    this._keys = (event) => this._key(event);
    document.addEventListener("keydown", this._keys);
    host.replaceChildren(this.root);
    this._move(false);
  }

  /** One search: its name and counts, the tree, and the agenda beside it. */
  _panel(recording, i) {
    const hooks = {
      select: (y) => this.select({ search: i, y }),
      hover: (y, beside) => this.tooltip.show(recording, this.panels[i].state, y, beside),
    };
    const panel = { recording, tree: new Tree(recording, hooks), agenda: new Agenda(recording, hooks), counts: {} };
    const legend = el("ul", "bf-legend");
    for (const fate of FATES) legend.append(this._count(panel, fate));
    legend.querySelector(".bf-is-evicted").hidden = !recording.about.queue_capacity;
    const calls = el("span", "bf-calls");
    panel.counts.calls = calls;
    panel.caption = el("p", "bf-caption");
    panel.tree.element.setAttribute("aria-label", `${nameOf(recording)}: prefixes by length`);
    const head = el("div", "bf-panel-head", {}, el("h2", "", {}, nameOf(recording)), calls, legend);
    panel.element = el("section", "bf-panel", {}, head, panel.caption, el("div", "bf-body", {}, panel.tree.element, panel.agenda.element));
    return panel;
  }

  _count(panel, fate) {
    const number = el("b", "", {}, "0");
    const words = [mark(fate), number, ` ${fate}`];
    panel.counts[fate] = number;
    if (fate !== "pruned") return el("li", `bf-is-${fate}`, {}, ...words);
    const button = el("button", "", { type: "button", title: "show or fold away all that are pruned", "aria-pressed": "false" }, ...words);
    button.addEventListener("click", () => {
      const wanted = button.getAttribute("aria-pressed") === "false";
      button.setAttribute("aria-pressed", String(wanted));
      panel.tree.openAll("pruned", wanted);
    });
    return el("li", `bf-is-${fate}`, {}, button);
  }

  /** The search box for tokens; Enter selects the next hit. */
  _search() {
    this.query = el("input", "bf-query", { type: "search", placeholder: "find a token ( / )", "aria-label": "find a token" });
    this.hits = el("output", "bf-hits");
    this.query.addEventListener("input", () => this._find());
    this.query.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this._next();
      if (event.key === "Escape") {
        this.query.value = "";
        this._find();
        this.query.blur();
      }
      event.stopPropagation();
    });
    return el("div", "bf-find", { role: "search" }, this.query, this.hits);
  }

  /** The button that switches between light and dark, whatever the system's theme is. */
  _theme() {
    const button = el("button", "bf-theme", { type: "button", title: "light or dark", "aria-label": "light or dark" }, "◐");
    button.addEventListener("click", () => {
      const scheme = getComputedStyle(this.root).colorScheme; // names both if no theme was chosen
      const prefers = this.root.dataset.theme === undefined && matchMedia("(prefers-color-scheme: dark)").matches;
      const dark = scheme === "dark" || prefers;
      this.root.dataset.theme = dark ? "light" : "dark";
    });
    return button;
  }

  _find() {
    const wanted = this.query.value.trim().toLowerCase();
    const holds = (y) => y.parent !== null && label(y).toLowerCase().includes(wanted);
    this.found = wanted ? this.recordings.map((recording) => new Set(recording.nodes.filter(holds).map((y) => y.index))) : null;
    this._turn = -1;
    const count = this.found?.reduce((sum, each) => sum + each.size, 0) ?? 0;
    this.hits.textContent = wanted ? (count ? plural(count, "hypothesis").replace("hypothesiss", "hypotheses") : "not found") : "";
    this._draw();
  }

  _next() {
    if (!this.found) return;
    const hits = this.found.flatMap((each, search) => [...each].map((index) => ({ search, y: this.recordings[search].nodes[index] })));
    const fate = ({ search, y }) => this.panels[search].state.fate[y.index];
    const seen = hits.filter((hit) => fate(hit) !== UNBORN);
    seen.sort((a, b) => ORDER.indexOf(FATES[fate(a)]) - ORDER.indexOf(FATES[fate(b)]) || a.search - b.search || b.y.score - a.y.score);
    if (!seen.length) return;
    this._turn = (this._turn + 1) % seen.length;
    this.select(seen[this._turn]);
  }

  _move(next) {
    for (const panel of this.panels) panel.state = panel.recording.at(this.player.step);
    this.summary.update(this.panels.map((panel) => panel.state));
    this._draw(next);
    for (const panel of this.panels) {
      const counts = panel.recording.counts(panel.state);
      for (const fate of FATES) panel.counts[fate].textContent = String(counts[fate]);
      const { calls, rows } = panel.state;
      panel.counts.calls.textContent = plural(calls, "call") + (rows > calls ? ` (${plural(rows, "row")})` : "") + drafts(panel);
      panel.caption.textContent = caption(panel.recording, panel.state);
      if (panel.state.current && !panel.state.done && next) panel.tree.reveal(panel.state.current);
    }
  }

  _draw(next = false) {
    this.tooltip.element.hidden = true;
    this.panels.forEach((panel, i) => {
      const selected = this.selected?.search === i ? this.selected.y : null;
      const found = this.found?.[i] ?? null;
      const lineage = selected && new Set([...panel.recording.lineage(selected), ...below(selected)].map((y) => y.index));
      panel.tree.element.classList.toggle("bf-tracing", selected !== null);
      panel.tree.element.classList.toggle("bf-finding", found !== null);
      panel.tree.update(panel.state, { selected, found, lineage }, next);
      panel.agenda.update(panel.state, selected);
    });
    const { search, y } = this.selected ?? { search: 0, y: null };
    if (this.panels.length) this.details.update(this.recordings[search], this.panels[search].state, y);
  }

  select(choice) {
    this.selected = choice;
    this._draw();
    for (const panel of this.panels) panel.tree.look(); // the details of the selected hypothesis take room
    if (choice) this.panels[choice.search].tree.reveal(choice.y);
  }

  _key(event) {
    const busy = event.target.closest?.("input, textarea, select, [contenteditable]");
    if (event.ctrlKey || event.metaKey || event.altKey || (busy && event.target !== this.player.slider)) return;
    if (event.key === "Escape") this.select(null);
    else if (event.key === "/") this.query.focus();
    else if (event.key === " " && event.target.closest?.("button")) return;
    else if (!this.player.key(event)) return;
    event.preventDefault();
  }

  remove() {
    this.player.pause();
    document.removeEventListener("keydown", this._keys);
    for (const panel of this.panels) panel.tree.remove();
    this.root.remove();
  }
}

function below(y) {
  return y.children.flatMap((z) => [z, ...below(z)]);
}

/** Fill an element with one or more searches of one input; see `bestfirst.page`. */
export function show(host, searches, options) {
  const shown = new Shown(host, searches, options);
  return {
    step: (number) => shown.player.go(number),
    play: () => shown.player.play(),
    pause: () => shown.player.pause(),
    select: (search, id) => shown.select({ search, y: shown.recordings[search].node(id) }),
    remove: () => shown.remove(),
  };
}

globalThis.bestfirst = { ...globalThis.bestfirst, show };

/** How many of the drafted rows were used, if there were any; known at the end. */
function drafts(panel) {
  const { drafted, nodes } = panel.recording;
  if (!drafted || !panel.state.done) return "";
  return `, ${nodes.filter((y) => y.drafted).length} of ${plural(drafted, "guessed row")} used`;
}
