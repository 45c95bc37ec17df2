// Small helpers to make elements. Texts only ever become text nodes.

const SVG = "http://www.w3.org/2000/svg";

/** An element with a class, properties and children; a property with a dash is an attribute. */
export function el(tag, classes = "", properties = {}, ...children) {
  const element = document.createElement(tag);
  if (classes) element.className = classes;
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** An SVG element with attributes. */
export function svg(tag, attributes = {}) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

/** A number with a true minus sign and, by default, two decimals. */
export function figure(value, decimals = 2) {
  if (value === null || value === undefined) return "–";
  return value.toFixed(decimals).replace(/^-/, "−");
}

/** "1 call", "2 calls". */
export function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** The end of a text, which is what tells hypotheses apart. */
export function tail(text, most) {
  const letters = [...text];
  return letters.length > most ? `…${letters.slice(letters.length - most).join("")}` : text;
}

/** A text in quotation marks, short enough for a sentence; direction marks inside it end with it. */
export function quoted(text, most = 60) {
  return `“\u2068${tail(text, most)}\u2069”`;
}
