// What the panels of the laboratory share: random numbers that a seed repeats, the frame of a panel, pictures of grids, play.

import { el, svg } from "./dom.js";

/** Random numbers from 0 to 1 that are the same for the same seed on every machine (the generator "mulberry32"). */
export function labRandom(seed) {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let bits = Math.imul(state ^ (state >>> 15), state | 1);
    bits ^= bits + Math.imul(bits ^ (bits >>> 7), bits | 61);
    return ((bits ^ (bits >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** "one child", "3 children": a number with the noun that fits it. */
export function labCount(count, one, many) {
  return count === 1 ? `one ${one}` : `${count} ${many}`;
}

/**
 * A panel: a heading, sentences, what to try, controls, a readout and pictures.
 * {root, say(text)}: `say` writes the readout, which screen readers speak.
 */
export function labPanel({ title, sentences, attempt, controls, pictures }) {
  const readout = el("p", { class: "lab-readout", role: "status", "aria-live": "polite" });
  const words = [
    ...sentences.map((sentence) => el("p", {}, sentence)),
    el("p", {}, el("strong", {}, "Try: "), attempt),
  ];
  const root = el(
    "section",
    { class: "card lab-panel", "aria-label": title },
    el("h3", {}, title),
    el("div", { class: "lab-words" }, words),
    el("div", { class: "lab-controls" }, controls),
    readout,
    pictures,
  );
  const say = (text) => {
    if (readout.textContent !== text) readout.textContent = text;
  };
  return { root, say };
}

/** Parts side by side where there is room, below each other on a narrow page. */
export function labColumns(...parts) {
  return el("div", { class: "lab-columns" }, parts);
}

/** A picture with its title; `title` may be a list of texts and of labKey. */
export function labFigure(title, ...parts) {
  return el("figure", { class: "lab-figure" }, el("figcaption", {}, title), parts);
}

/** A small frame in the colour of an outline, for the words that explain it. */
export function labKey(name) {
  return el("span", { class: `lab-key ${name}`, "aria-hidden": "true" });
}

/**
 * A table that scrolls sideways where it does not fit; the keyboard can scroll it, too. `names` head its columns; `rows` and
 * `foot` are made by labTableRow.
 */
export function labTable(caption, names, rows, foot = null) {
  const head = el(
    "tr",
    {},
    names.map((name) => (name ? el("th", { scope: "col" }, name) : el("td", {}))),
  );
  const table = el(
    "table",
    { class: "plain lab-table" },
    el("caption", {}, caption),
    el("thead", {}, head),
    el("tbody", {}, rows),
    foot ? el("tfoot", {}, foot) : null,
  );
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, table);
}

export function labTableRow(name, ...cells) {
  return el("tr", {}, el("th", { scope: "row" }, name), cells.flat());
}

/** A cell of a table; `name` is its class or null. */
export function labTableCell(text, name = null) {
  return el("td", { class: name }, text);
}

/**
 * A button that walks a slider's value from 1 to `last`. Who asked for less motion gets a button for the next step instead.
 * {root, stop()}; `get` and `set` read and write the value.
 */
export function labPlay({ last, get, set }) {
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  let timer = null;
  const idleText = still ? "Next iteration" : "Play";
  const stop = () => {
    window.clearInterval(timer);
    timer = null;
    root.textContent = idleText;
  };
  const next = () => {
    set(get() + 1);
    if (get() >= last) stop();
  };
  const start = () => {
    if (still) return set(get() >= last ? 1 : get() + 1);
    if (timer) return stop();
    if (get() >= last) set(1);
    timer = window.setInterval(next, 1000);
    root.textContent = "Stop";
  };
  const root = el("button", { type: "button", onclick: start }, idleText);
  return { root, stop };
}

const LAB_CELL = 10; // the side of a cell in the units of a grid's picture

/**
 * A picture of a grid of cells that can be pointed at, tapped, or walked through with the arrow keys.
 * {root, draw(parts, cursor)}: `parts` are SVG elements that labCells, labOutline and labCellText place; `cursor` is the cell where the
 * arrow keys start. `onPick(row, column)` is called with the cell.
 */
export function labGrid({ rows, columns, label, side, onPick }) {
  const picture = svg("g");
  const root = svg(
    "svg",
    {
      viewBox: `-1 -1 ${columns * LAB_CELL + 2} ${rows * LAB_CELL + 2}`,
      style: `width: min(100%, ${columns * side}px)`,
      class: "lab-grid",
      role: "application",
      tabindex: 0,
      "aria-label": label,
    },
    svg("rect", { class: "lab-empty", width: columns * LAB_CELL, height: rows * LAB_CELL }),
    picture,
  );
  let cursor = [0, 0];
  const pick = (row, column) => {
    cursor = [Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column))];
    onPick(...cursor);
  };
  const point = (event) => {
    const box = root.getBoundingClientRect();
    pick(
      Math.floor(((event.clientY - box.top) / box.height) * rows),
      Math.floor(((event.clientX - box.left) / box.width) * columns),
    );
  };
  root.addEventListener("pointermove", point);
  root.addEventListener("pointerdown", point);
  root.addEventListener("keydown", (event) => {
    const move = LAB_MOVES[event.key];
    if (!move) return;
    event.preventDefault();
    pick(cursor[0] + move[1], cursor[1] + move[0]);
  });
  const draw = (parts, at) => {
    cursor = at;
    picture.replaceChildren(...parts);
  };
  return { root, draw };
}

/** Arrow keys as steps to the right and down. */
export const LAB_MOVES = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };

/** Filled cells, one path for all of them: a map of thousands of cells stays quick. */
export function labCells(cells, attributes) {
  const d = cells
    .map(([row, column]) => `M${column * LAB_CELL} ${row * LAB_CELL}h${LAB_CELL}v${LAB_CELL}h-${LAB_CELL}z`)
    .join("");
  return svg("path", { d, ...attributes });
}

export function labOutline(row, column, height, width, name) {
  const size = { x: column * LAB_CELL, y: row * LAB_CELL, width: width * LAB_CELL, height: height * LAB_CELL };
  return svg(
    "g",
    {},
    svg("rect", { class: "lab-outline lab-halo", ...size }),
    svg("rect", { class: `lab-outline ${name}`, ...size }),
  );
}

export function labCellText(row, column, text, fill) {
  return svg(
    "text",
    { x: (column + 0.5) * LAB_CELL, y: (row + 0.5) * LAB_CELL, class: "lab-cell-text", style: `fill:${fill}` },
    text,
  );
}
