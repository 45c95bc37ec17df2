// The details of one hypothesis: a tooltip at the pointer, and a panel when it is selected.

import { el, figure, plural } from "./dom.js";
import { FATES } from "./recording.js";
import { label, mark } from "./marks.js";
import { nameOf, why } from "./why.js";

const LONGEST = 400; // letters of a text that are shown at once

export class Details {
  constructor(close) {
    this.element = el("section", "bf-details", { hidden: true, "aria-live": "polite" });
    this._close = close;
  }

  update(recording, state, y) {
    this.element.hidden = y === null;
    if (y === null) return;
    const fate = FATES[state.fate[y.index]];
    const close = el("button", "bf-close", { type: "button", title: "close (Esc)", "aria-label": "close" }, "✕");
    close.addEventListener("click", this._close);
    const badge = el("span", `bf-badge bf-is-${fate ?? "unborn"}`, {}, ...(fate ? [mark(fate)] : []), fate ?? "not seen yet");
    const head = el("p", "bf-details-head", {}, badge, el("span", "bf-details-search", {}, `in ${nameOf(recording)}`), close);
    const text = el("p", "bf-details-text", { dir: "auto" }, recording.text(y).slice(0, LONGEST) || "start");
    const reason = el("p", "bf-why", {}, why(recording, state, y));
    this.element.replaceChildren(head, el("div", "", {}, text, reason), this._numbers(recording, state, y), this._tokens(recording, y));
  }

  _numbers(recording, state, y) {
    const list = el("dl", "bf-numbers");
    const number = state.popped[y.index];
    const rows = [
      ["score", figure(y.score, 4)], ["log-probability", figure(y.logprob, 4)], ["length", String(y.length)],
      ["popped", number ? `as number ${number}` : "never"], ["children seen", String(y.children.length)],
    ];
    if (recording.drafted) rows.push(["guessed", y.drafted ? "yes" : "no"]);
    if (y.bound !== y.score) rows.splice(1, 0, ["at best", figure(y.bound, 4)]);
    for (const [name, value] of rows) list.append(el("div", "", {}, el("dt", "", {}, name), el("dd", "", {}, value)));
    return list;
  }

  /** Every token with a bar for its own log-probability: a long bar is a token that cost the hypothesis much. */
  _tokens(recording, y) {
    const list = el("ol", "bf-tokens", { "aria-label": "tokens" });
    for (const z of recording.lineage(y).slice(1)) {
      const cost = z.logprob - z.parent.logprob;
      const bar = el("span", "bf-bar");
      bar.style.height = `${Math.min(100, -cost * 20)}%`;
      const box = el("span", "bf-bar-box", {}, bar);
      list.append(el("li", "", {}, box, el("span", "bf-chip", { dir: "auto" }, label(z).slice(0, 80)), el("span", "bf-number", {}, figure(cost))));
    }
    return list;
  }
}

/** A tooltip beside the mark or the agenda entry under the pointer. */
export class Tooltip {
  constructor(root) {
    this.root = root;
    this.element = el("div", "bf-tooltip", { hidden: true, role: "tooltip" });
    root.append(this.element);
  }

  show(recording, state, y, beside) {
    this.element.hidden = y === null || !beside;
    if (this.element.hidden) return;
    const fate = FATES[state.fate[y.index]] ?? "not seen yet";
    const number = state.popped[y.index];
    const words = [
      el("strong", "", { dir: "auto" }, recording.text(y).slice(0, LONGEST) || "start"),
      el("span", `bf-is-${fate}`, {}, number ? `${fate}, popped as number ${number}` : fate),
      el("span", "bf-number", {}, `score ${figure(y.score, 4)} · log-probability ${figure(y.logprob, 4)} · ${plural(y.length, "token")}`),
    ];
    this.element.replaceChildren(...words);
    const [root, target, own] = [this.root, beside, this.element].map((element) => element.getBoundingClientRect());
    const left = Math.min(Math.max(8, target.left + target.width / 2 - own.width / 2), window.innerWidth - own.width - 8);
    const below = target.bottom + own.height + 10 < window.innerHeight;
    this.element.style.left = `${left - root.left}px`;
    this.element.style.top = `${(below ? target.bottom + 6 : target.top - own.height - 6) - root.top}px`;
  }
}
