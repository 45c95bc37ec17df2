// The layout of the tree: a row for each length, best first from the left, so that a row shows a beam and its slots.

import { FATES, UNBORN } from "./recording.js";

export const ROW = 58; // pixels from one length to the next
export const MARK = 22; // of a hypothesis
const LEFT = 30; // pixels for the labels of the lengths
const SHORT = 12; // a row of up to this many hypotheses is shown whole
const AHEAD = 3; // pending hypotheses that are shown after the last one that is not pending
const OUT = ["pruned", "evicted"];
const NARROWEST = 44;
const WIDEST = 92;

/** The rows of the tree in this state: the place of each hypothesis, and how many are folded away. */
export function arrange(recording, state, open, width) {
  const out = (y) => OUT.includes(FATES[state.fate[y.index]]);
  const rows = recording.byLength.map((all, length) => {
    const born = all.filter((y) => state.fate[y.index] !== UNBORN);
    return { length, on: born.filter((y) => !out(y)), off: born.filter(out) };
  });
  const slots = recording.beam <= SHORT ? recording.beam : 0;
  const cell = Math.max(NARROWEST, Math.min(WIDEST, (width - LEFT) / (Math.max(slots || 7, 5) + 1)));
  const layout = { cell, places: new Map(), rows: [], width: 0, height: (recording.depth + 1) * ROW + 12 };
  for (const row of rows) layout.rows.push(lay(row, layout, open, state, slots));
  return layout;
}

function lay(row, layout, open, state, slots) {
  const shown = open.has(`waiting ${row.length}`) ? row.on.length : prominent(row.on, state);
  const y = row.length * ROW + 34;
  const laid = { length: row.length, y, cells: [], folds: [], slots: [] };
  let column = 0;
  const put = (hypothesis) => {
    const place = { x: x(column, layout.cell), y };
    layout.places.set(hypothesis.index, place);
    laid.cells.push({ node: hypothesis, ...place });
    column += 1;
  };
  row.on.slice(0, shown).forEach(put);
  if (shown < row.on.length) fold("waiting", row.on.slice(shown));
  else if (open.has(`waiting ${row.length}`) && prominent(row.on, state) < row.on.length) fold("waiting", []);
  if (row.length > 0) for (; column < slots; column += 1) laid.slots.push(x(column, layout.cell));
  if (row.off.length) {
    const shownOff = open.has(`pruned ${row.length}`);
    fold("pruned", shownOff ? [] : row.off);
    if (shownOff) row.off.forEach(put);
  }
  layout.width = Math.max(layout.width, x(column, layout.cell) + layout.cell / 2);
  return laid;

  /** A button for hypotheses that are not shown one by one; without any, the button that folds an opened group away again. */
  function fold(kind, folded) {
    const at = x(column, layout.cell);
    laid.folds.push({ kind, count: folded.length, x: at, key: `${kind} ${row.length}` });
    for (const z of folded) layout.places.set(z.index, { x: at, y, folded: true });
    column += 1;
  }
}

function x(column, cell) {
  return LEFT + (column + 0.5) * cell;
}

/** How many of a row are shown one by one: all of a short row; else `AHEAD` beyond the last that is not pending, at least 6. */
function prominent(row, state) {
  if (row.length <= SHORT) return row.length;
  let last = row.length - 1;
  while (last >= 0 && FATES[state.fate[row[last].index]] === "pending") last -= 1;
  return Math.min(row.length, Math.max(last + 1 + AHEAD, 6));
}
