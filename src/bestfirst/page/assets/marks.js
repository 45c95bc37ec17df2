// Each fate has a shape of its own, so that it can be recognized without its colour.

import { svg } from "./dom.js";

const SHAPES = {
  expanded: [["circle", { cx: 11, cy: 11, r: 9.5 }]],
  pending: [["circle", { cx: 11, cy: 11, r: 5.6, "stroke-dasharray": "2.6 2.2" }]],
  pruned: [["path", { d: "M7 7 L15 15 M15 7 L7 15" }]],
  evicted: [["path", { d: "M4.5 6 L17.5 6 L11 17 Z" }]],
  finished: [["path", { d: "M11 2.5 L19.5 11 L11 19.5 L2.5 11 Z" }]],
  returned: [["path", { d: "M11 0.8 L14 7.4 L21.2 8.2 L15.9 13.1 L17.4 20.2 L11 16.6 L4.6 20.2 L6.1 13.1 L0.8 8.2 L8 7.4 Z" }]],
};

/** The mark of a fate, as an SVG element. */
export function mark(fate) {
  const picture = svg("svg", { viewBox: "0 0 22 22", class: `bf-mark bf-${fate}`, "aria-hidden": "true" });
  for (const [tag, attributes] of SHAPES[fate]) picture.append(svg(tag, attributes));
  return picture;
}

/** The label of a last token: a piece that continues a word begins with a dot; the root is "start", EOS "end". */
export function label(y) {
  if (y.parent === null) return "start";
  if (y.finished) return "end";
  const piece = y.piece.replace(/\s+/g, " ");
  if (piece.startsWith(" ")) return piece.slice(1) || "␣";
  return /^[\p{P}\p{S}]/u.test(piece) || y.length === 1 ? piece : `·${piece}`;
}
