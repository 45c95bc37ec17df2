// The prefix tree of one search. Only hypotheses in view are in the document: a few dozen elements, however wide the beam.

import { el, figure, svg } from "./dom.js";
import { FATES } from "./recording.js";
import { MARK, ROW, arrange } from "./layout.js";
import { label, mark } from "./marks.js";

const MARGIN = 120; // pixels around the view that are drawn as well
const GLIDE = 240; // milliseconds

export class Tree {
  /** `hooks.select(y)` is called on a click; `hooks.hover(y, element)` when the pointer enters, with null when it leaves. */
  constructor(recording, hooks) {
    this.recording = recording;
    this.hooks = hooks;
    this.open = new Set(); // folds that were opened
    this.marks = { selected: null, found: null };
    this.shown = new Map(); // from index to the elements of a hypothesis, and where they are
    this.folds = new Map();
    this.labels = new Map();
    this.edges = svg("svg", { class: "bf-edges", "aria-hidden": "true" });
    this.slots = svg("path", { class: "bf-slots" });
    this.edges.append(this.slots);
    this.canvas = el("div", "bf-canvas", {}, this.edges);
    this.element = el("div", "bf-tree", { role: "group", tabIndex: -1 }, this.canvas);
    this.element.addEventListener("scroll", () => {
      this.look();
      this._soon();
    });
    this.element.addEventListener("keydown", (event) => this._key(event));
    this.sight = null; // the visible part of the canvas: reading it from the document at every step would cost more than all the rest
    this.observer = new ResizeObserver(() => {
      this.look();
      if (this.state) this._arrange();
    });
    this.observer.observe(this.element);
  }

  remove() {
    this.observer.disconnect();
    cancelAnimationFrame(this._frame);
  }

  look() {
    const { scrollLeft: left, scrollTop: top, clientWidth: width, clientHeight: height } = this.element;
    this.sight = { left, top, width, height };
  }

  /** Show this state; hypotheses glide to their places if it is the next one. */
  update(state, marks, glide) {
    this.state = state;
    this.marks = marks;
    this._arrange(glide && !matchMedia("(prefers-reduced-motion: reduce)").matches);
  }

  /** Open or close the folds of this kind in every row. */
  openAll(kind, wanted) {
    for (let length = 0; length <= this.recording.depth; length += 1) {
      if (wanted) this.open.add(`${kind} ${length}`);
      else this.open.delete(`${kind} ${length}`);
    }
    this._arrange();
  }

  /** Scroll to a hypothesis, opening the fold that it is in. */
  reveal(y, focus = false) {
    if (!this.layout.places.has(y.index)) return;
    if (this.layout.places.get(y.index).folded) {
      const out = ["pruned", "evicted"].includes(FATES[this.state.fate[y.index]]);
      this.open.add(`${out ? "pruned" : "waiting"} ${y.length}`);
      this._arrange();
    }
    const { x, y: top } = this.layout.places.get(y.index);
    const [box, sight, cell] = [this.element, this.sight, this.layout.cell];
    if (x - cell < sight.left) box.scrollLeft = x - cell;
    if (x + cell > sight.left + sight.width) box.scrollLeft = x + cell - sight.width;
    if (top - ROW < sight.top) box.scrollTop = top - ROW;
    if (top + ROW > sight.top + sight.height) box.scrollTop = top + ROW - sight.height;
    if (x - cell < sight.left || x + cell > sight.left + sight.width || top - ROW < sight.top || top + ROW > sight.top + sight.height) {
      this.look();
      this._draw();
    }
    if (focus) this.shown.get(y.index)?.element.focus({ preventScroll: true });
  }

  _arrange(glide = false) {
    if (this.sight === null) this.look();
    this.layout = arrange(this.recording, this.state, this.open, this.sight.width || 600);
    this.canvas.style.width = `${this.layout.width}px`;
    this.canvas.style.height = `${this.layout.height}px`;
    this.canvas.classList.toggle("bf-narrow", this.layout.cell < 56);
    this._from = glide ? performance.now() : null;
    for (const one of this.shown.values()) [one.fromX, one.fromY] = [one.x, one.y];
    this._draw();
  }

  _soon() {
    cancelAnimationFrame(this._frame);
    this._frame = requestAnimationFrame(() => this._draw());
  }

  _draw() {
    const { left, top, width, height } = this.sight;
    const rows = this.layout.rows.filter((row) => row.y > top - MARGIN && row.y < top + height + MARGIN);
    const seen = (cell) => cell.x > left - MARGIN && cell.x < left + width + MARGIN;
    const cells = rows.flatMap((row) => row.cells.filter(seen));
    const now = this._from === null ? 1 : Math.min(1, (performance.now() - this._from) / GLIDE);
    this._drawNodes(cells, 1 - (1 - now) ** 3);
    this._drawFolds(rows.flatMap((row) => row.folds.map((fold) => ({ ...fold, y: row.y }))));
    this._drawLengths(rows);
    this.slots.setAttribute("d", rows.flatMap((row) => row.slots.map((x) => ring(x, row.y))).join(""));
    if (now < 1) this._soon();
  }

  _drawNodes(cells, now) {
    const wanted = new Set(cells.map((cell) => cell.node.index));
    for (const [index, one] of this.shown) {
      if (wanted.has(index)) continue;
      one.element.remove();
      one.edge?.remove();
      this.shown.delete(index);
    }
    for (const cell of cells) {
      const one = this.shown.get(cell.node.index) ?? this._make(cell);
      one.x = one.fromX + (cell.x - one.fromX) * now;
      one.y = one.fromY + (cell.y - one.fromY) * now;
      one.element.style.transform = `translate(${one.x - this.layout.cell / 2}px, ${one.y - 29}px)`;
      one.element.style.width = `${this.layout.cell}px`;
      this._dress(one, cell.node);
    }
    for (const cell of cells) this._drawEdge(cell.node, this.shown.get(cell.node.index));
  }

  _make(cell) {
    const y = cell.node;
    const token = el("span", "bf-token", { dir: "auto" }, label(y).slice(0, 80));
    const order = el("span", "bf-order");
    const element = el("button", "bf-node", { type: "button", tabIndex: -1 }, token, order);
    element.dataset.id = y.id;
    element.addEventListener("click", () => this.hooks.select(y));
    element.addEventListener("pointerenter", () => this.hooks.hover(y, element));
    element.addEventListener("pointerleave", () => this.hooks.hover(null));
    element.addEventListener("focus", () => this.hooks.hover(y, element));
    element.addEventListener("blur", () => this.hooks.hover(null));
    const edge = y.parent && svg("path");
    if (edge) this.edges.append(edge);
    this.canvas.append(element);
    const from = this._from !== null && y.parent && this.shown.get(y.parent.index);
    const one = { element, edge, order, fate: null, fromX: from ? from.x : cell.x, fromY: from ? from.y : cell.y };
    this.shown.set(y.index, one);
    return one;
  }

  /** Update the look of a hypothesis. */
  _dress(one, y) {
    const { selected, found, lineage } = this.marks;
    const fate = FATES[this.state.fate[y.index]];
    const number = this.state.popped[y.index];
    if (one.fate !== fate) {
      one.element.querySelector(".bf-mark")?.remove();
      one.element.insertBefore(mark(fate), one.order);
      one.fate = fate;
    }
    const order = fate === "expanded" ? String(number) : "";
    if (one.order.textContent !== order) one.order.textContent = order;
    const on = {
      "bf-current": this.state.current === y && !this.state.done, "bf-selected": selected === y, "bf-found": found?.has(y.index),
      "bf-line": lineage?.has(y.index), "bf-won": this.state.done && this.recording.answerPath.has(y.index),
      "bf-long": order.length > 2,
    };
    const classes = ["bf-node", `bf-is-${fate}`, ...Object.keys(on).filter((name) => on[name])].join(" ");
    if (one.element.className !== classes) one.element.className = classes;
    one.element.tabIndex = selected === y || (selected === null && y.parent === null) ? 0 : -1;
    const popped = number ? `, scored as number ${number}` : "";
    one.element.setAttribute("aria-label", `${this.recording.text(y) || "start"}: ${fate}${popped}, score ${figure(y.score)}`);
    one.element.setAttribute("aria-pressed", String(selected === y));
  }

  _drawEdge(y, one) {
    if (!one.edge) return;
    const above = this.shown.get(y.parent.index) ?? this.layout.places.get(y.parent.index);
    one.edge.style.display = above ? "" : "none";
    if (!above) return;
    const [x, top, bottom] = [above.x, above.y + MARK / 2, one.y - MARK / 2];
    const bend = (top + bottom) / 2 - 8;
    one.edge.setAttribute("d", `M${x} ${top}C${x} ${bend} ${one.x} ${bend} ${one.x} ${bottom}`);
    const won = this.state.done && this.recording.answerPath.has(y.index);
    const line = this.marks.lineage?.has(y.index);
    one.edge.setAttribute("class", `bf-edge bf-to-${one.fate}${won ? " bf-won" : ""}${line ? " bf-line" : ""}`);
  }

  _drawFolds(folds) {
    keep(this.folds, folds.map((fold) => fold.key));
    for (const fold of folds) {
      let button = this.folds.get(fold.key);
      if (!button) {
        button = el("button", `bf-fold bf-fold-${fold.kind}`, { type: "button" });
        button.addEventListener("click", () => {
          if (!this.open.delete(fold.key)) this.open.add(fold.key);
          this._arrange();
        });
        this.folds.set(fold.key, button);
        this.canvas.append(button);
      }
      const words = fold.count ? `${fold.kind === "pruned" ? "✕" : "○"} ${fold.count}` : "‹";
      if (button.textContent !== words) button.textContent = words;
      button.title = fold.count ? `${fold.count} ${fold.kind}: show them` : `fold the ${fold.kind} ones away`;
      button.setAttribute("aria-label", `length ${fold.key.split(" ")[1]}: ${button.title}`);
      button.setAttribute("aria-expanded", String(!fold.count));
      button.style.transform = `translate(${fold.x - 22}px, ${fold.y - 10}px)`;
    }
  }

  _drawLengths(rows) {
    keep(this.labels, rows.map((row) => row.length));
    for (const row of rows) {
      let number = this.labels.get(row.length);
      if (!number) {
        number = el("span", "bf-length", {}, row.length ? String(row.length) : "");
        this.labels.set(row.length, number);
        this.canvas.append(number);
      }
      number.style.transform = `translate(${this.sight.left}px, ${row.y - 9}px)`;
    }
  }

  /** Arrows go to the parent, to the best child, and along the beam. */
  _key(event) {
    const id = event.target.dataset?.id;
    if (id === undefined || !event.key.startsWith("Arrow")) return;
    const y = this.recording.node(Number(id));
    const row = this.layout.rows[y.length].cells.map((cell) => cell.node);
    const born = y.children.filter((z) => this.layout.places.has(z.index) && !this.layout.places.get(z.index).folded);
    const to = {
      ArrowUp: y.parent, ArrowDown: born.sort((a, b) => b.score - a.score)[0],
      ArrowLeft: row[row.indexOf(y) - 1], ArrowRight: row[row.indexOf(y) + 1],
    }[event.key];
    event.preventDefault();
    event.stopPropagation();
    if (to) this.reveal(to, true);
  }
}

function ring(x, y) {
  return `M${x - 6} ${y}a6 6 0 1 0 12 0a6 6 0 1 0 -12 0`;
}

/** Remove from a map, and from the document, the elements of all other keys. */
function keep(elements, keys) {
  const wanted = new Set(keys);
  for (const [key, element] of elements) {
    if (wanted.has(key)) continue;
    element.remove();
    elements.delete(key);
  }
}
