// The controls that replay a search: buttons, a slider, a timer, and keys.

import { el, svg } from "./dom.js";

const PICTURES = {
  first: "M5 4h2v12H5zM16 4v12L8 10z", back: "M14 4v12L5 10z", play: "M6 3.5v13l10-6.5z", pause: "M5 4h3.5v12H5zM11.5 4H15v12h-3.5z",
  next: "M6 4v12l9-6z", last: "M13 4h2v12h-2zM4 4v12l8-6z",
};
const WHOLE = 12000; // milliseconds of a whole replay, within the limits for one step below
const FASTEST = 30;
const SLOWEST = 600;

export class Player {
  /** `move(step, next)`: show this step; `next` if it is the one after the last shown. */
  constructor(steps, move) {
    this.steps = steps;
    this.step = steps;
    this._move = move;
    this._clock = null;
    this.slider = el("input", "bf-slider", { type: "range", min: "0", max: String(steps), value: String(steps), "aria-label": "pops" });
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.count = el("output", "bf-step");
    this.button = this._button("play", "play (space)", () => this.toggle());
    const buttons = [
      this._button("first", "to the beginning (home)", () => this.go(0)),
      this._button("back", "one pop back (←)", () => this.go(this.step - 1)),
      this.button,
      this._button("next", "next pop (→)", () => this.go(this.step + 1)),
      this._button("last", "to the end (end)", () => this.go(this.steps)),
    ];
    this.element = el("div", "bf-player", { role: "group", "aria-label": "replay" }, ...buttons, this.slider, this.count);
    this._tell();
  }

  _button(name, title, act) {
    const button = el("button", `bf-button bf-${name}`, { type: "button", title, "aria-label": title });
    picture(button, name);
    button.addEventListener("click", () => {
      if (name !== "play") this.pause();
      act();
    });
    return button;
  }

  get playing() {
    return this._clock !== null;
  }

  go(step) {
    const wanted = Math.max(0, Math.min(this.steps, step));
    const next = wanted === this.step + 1;
    this.step = wanted;
    this._tell();
    this._move(wanted, next);
  }

  toggle() {
    if (this.playing) this.pause();
    else this.play();
  }

  /** Play from this step to the end; at the end, from the beginning. */
  play() {
    if (this.playing) return;
    if (this.step === this.steps) this.go(0);
    const pause = Math.max(FASTEST, Math.min(SLOWEST, WHOLE / Math.max(1, this.steps)));
    this._clock = setInterval(() => {
      this.go(this.step + 1);
      if (this.step === this.steps) this.pause();
    }, pause);
    this._show();
  }

  pause() {
    clearInterval(this._clock);
    this._clock = null;
    this._show();
  }

  _show() {
    picture(this.button, this.playing ? "pause" : "play");
    this.button.setAttribute("aria-pressed", String(this.playing));
  }

  _tell() {
    this.slider.value = String(this.step);
    this.slider.style.setProperty("--bf-done", `${(100 * this.step) / Math.max(1, this.steps)}%`);
    this.count.textContent = `pop ${this.step} of ${this.steps}`;
    this.slider.setAttribute("aria-valuetext", this.count.textContent);
  }

  /** Handle a key; returns whether it is one of the player's. */
  key(event) {
    const act = {
      " ": () => this.toggle(), ArrowLeft: () => this.go(this.step - 1), ArrowRight: () => this.go(this.step + 1),
      Home: () => this.go(0), End: () => this.go(this.steps),
    }[event.key];
    if (!act) return false;
    if (event.key !== " ") this.pause();
    act();
    return true;
  }
}

function picture(button, name) {
  const image = svg("svg", { viewBox: "0 0 20 20", "aria-hidden": "true" });
  image.append(svg("path", { d: PICTURES[name] }));
  button.replaceChildren(image);
}
