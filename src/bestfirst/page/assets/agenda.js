// The agenda: the pending hypotheses, in the order in which the search would pop them.

import { el, figure, tail } from "./dom.js";

const MOST = 40; // more are only counted

export class Agenda {
  constructor(recording, hooks) {
    this.recording = recording;
    this.hooks = hooks;
    this.list = el("ol", "bf-waiting");
    this.more = el("p", "bf-more");
    this.title = el("h3", "bf-agenda-title");
    this.element = el("section", "bf-agenda", { "aria-label": "agenda" }, this.title, this.list, this.more);
  }

  update(state, selected) {
    const agenda = this.recording.agenda(state);
    this.title.textContent = `agenda · ${agenda.length}`;
    this.list.replaceChildren(...agenda.slice(0, MOST).map((y, i) => this._item(y, i === 0 && !state.done, selected === y)));
    const left = agenda.length - MOST;
    this.more.textContent = left > 0 ? `and ${left} more` : agenda.length ? "" : "nothing waits";
  }

  _item(y, next, selected) {
    const text = el("span", "bf-waiting-text", { dir: "auto" }, tail(this.recording.text(y), 15) || "start");
    const button = el("button", selected ? "bf-selected" : "", { type: "button" }, text, el("span", "bf-number", {}, figure(y.score)));
    button.addEventListener("click", () => this.hooks.select(y));
    button.addEventListener("pointerenter", () => this.hooks.hover(y, button));
    button.addEventListener("pointerleave", () => this.hooks.hover(null));
    return el("li", next ? "bf-next" : "", {}, button);
  }
}
