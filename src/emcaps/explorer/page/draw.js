// Colours, grids of numbers on a canvas, and 4x4 matrices as coloured squares.

import { el, number } from "./dom.js";

// Dark blue to yellow, so that lightness rises with the value; readable on light and on dark pages.
const RISING = [
  [13, 8, 62],
  [84, 15, 109],
  [158, 42, 99],
  [220, 80, 57],
  [248, 149, 64],
  [250, 224, 120],
];
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
const NEGATIVE = [43, 108, 176],
  ZERO = [247, 245, 240],
  POSITIVE = [200, 83, 28];

/** A colour for a share from 0 to 1. */
export function rising(share) {
  const place = Math.min(1, Math.max(0, share || 0)) * (RISING.length - 1);
  const low = Math.min(RISING.length - 2, Math.floor(place));
  return mix(RISING[low], RISING[low + 1], place - low);
}

/** A colour for a number from -1 (blue) over 0 (white) to 1 (orange). */
export function diverging(value) {
  const size = Math.min(1, Math.abs(value || 0));
  return mix(ZERO, value < 0 ? NEGATIVE : POSITIVE, size);
}

function mix(from, to, share) {
  return from.map((start, place) => Math.round(start + (to[place] - start) * share));
}

export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;

/** Black or white, whichever can be read better on this colour; the contrast is at least 4.5 either way. */
export function inkOn(colour) {
  const [red, green, blue] = colour.map((value) =>
    value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

/**
 * A grid of numbers that can be looked at and, with `onPick(row, column)`, picked from by mouse, touch or keyboard;
 * arrow keys pick at once, or with `enterPicks` only move a mark, which the Enter key picks.
 * {root, update(values, {marked: [row, column] or null, top}), updatePoses(poses, activation, {marked, top})}: values
 * row by row, divided by `top` for the colour; poses as 4x4 squares, the paler the less active.
 */
export function heatGrid({ rows, columns, label, cell = 12, onPick = null, enterPicks = false }) {
  const canvas = el("canvas", {
    width: columns,
    height: rows,
    class: "heat",
    role: onPick ? "application" : "img",
    "aria-label": label,
    tabindex: onPick ? 0 : null,
    style: `--columns:${columns};--rows:${rows};--cell:${cell}px`,
  });
  const marker = el("span", { class: "marker", hidden: true, "aria-hidden": "true" });
  const root = el(
    "div",
    { class: "heat-frame", style: `--columns:${columns};--rows:${rows};--cell:${cell}px` },
    canvas,
    marker,
  );
  let cursor = [0, 0];
  if (onPick) {
    const pick = (row, column) => {
      cursor = [row, column];
      onPick(row, column);
    };
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.floor(((event.clientY - box.top) / box.height) * rows),
        column = Math.floor(((event.clientX - box.left) / box.width) * columns);
      pick(Math.min(rows - 1, Math.max(0, row)), Math.min(columns - 1, Math.max(0, column)));
    });
    canvas.addEventListener("keydown", (event) => {
      const move = ARROWS[event.key];
      const enters = event.key === "Enter" || event.key === " ";
      if (!move && !enters) return;
      event.preventDefault();
      const row = Math.min(rows - 1, Math.max(0, cursor[0] + (move?.[0] ?? 0)));
      const column = Math.min(columns - 1, Math.max(0, cursor[1] + (move?.[1] ?? 0)));
      if (enters || !enterPicks) {
        pick(row, column);
      } else {
        mark([row, column]);
        canvas.setAttribute("aria-label", `${label}: row ${row + 1}, column ${column + 1}. Enter shows its votes`);
      }
    });
  }
  const mark = ([row, column]) => {
    cursor = [row, column];
    marker.hidden = false;
    marker.style.setProperty("--row", row);
    marker.style.setProperty("--column", column);
  };
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(columns, rows);
  const show = (marked) => {
    marker.hidden = !marked;
    if (marked) mark(marked);
  };
  const update = (values, { marked = null, top = 1 } = {}) => {
    for (let at = 0; at < rows * columns; at++) pixels.data.set([...rising(values[at] / top), 255], at * 4);
    [canvas.width, canvas.height] = [columns, rows];
    context.putImageData(pixels, 0, 0);
    show(marked);
  };
  const updatePoses = (poses, activation, { marked = null, top }) => {
    drawPoses(canvas, rows, columns, poses, activation, top);
    show(marked);
  };
  return { root, update, updatePoses };
}

/** The poses of a grid of capsules, 16 numbers each, as squares of 4x4 pixels with a gap between. */
function drawPoses(canvas, rows, columns, poses, activation, top) {
  [canvas.width, canvas.height] = [5 * columns, 5 * rows];
  const context = canvas.getContext("2d"),
    pixels = context.createImageData(canvas.width, canvas.height);
  for (let cell = 0; cell < rows * columns; cell++) {
    const alpha = Math.round(40 + 215 * (activation[cell] || 0));
    for (let h = 0; h < 16; h++) {
      const y = 5 * Math.floor(cell / columns) + Math.floor(h / 4),
        x = 5 * (cell % columns) + (h % 4);
      pixels.data.set([...diverging(poses[cell * 16 + h] / top), alpha], 4 * (y * canvas.width + x));
    }
  }
  context.putImageData(pixels, 0, 0);
}

/** A picture (channels x rows x columns) stretched to its own range: in colour if it has three channels, else its first. */
export function drawPicture(canvas, values, rows, columns) {
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d"),
    pixels = context.createImageData(columns, rows);
  const cells = rows * columns,
    isColour = values.length >= 3 * cells;
  let low = Infinity,
    high = -Infinity;
  for (let at = 0; at < (isColour ? 3 : 1) * cells; at++) {
    low = Math.min(low, values[at]);
    high = Math.max(high, values[at]);
  }
  const level = (at) => Math.round((255 * (values[at] - low)) / (high - low || 1));
  for (let at = 0; at < cells; at++) {
    pixels.data.set(
      isColour ? [level(at), level(cells + at), level(2 * cells + at), 255] : [level(at), level(at), level(at), 255],
      at * 4,
    );
  }
  context.putImageData(pixels, 0, 0);
}

/** A 4x4 matrix as a table, coloured by size; `top` is the size that has the full colour. */
export function matrixTable(values, { caption, top = null }) {
  const size = top ?? Math.max(1e-12, ...Array.from(values, Math.abs));
  const rows = [];
  for (let start = 0; start < 16; start += 4) {
    rows.push(
      el(
        "tr",
        {},
        Array.from({ length: 4 }, (_, column) => {
          const value = values[start + column],
            colour = diverging(value / size);
          return el("td", { style: `background:${css(colour)};color:${inkOn(colour)}` }, number(value, 3));
        }),
      ),
    );
  }
  return el("table", { class: "matrix" }, el("caption", {}, caption), el("tbody", {}, rows));
}

/** A 4x4 pose as a small coloured square. {root, update(values, top)} */
export function poseGlyph(label) {
  const canvas = el("canvas", { width: 4, height: 4, class: "glyph", role: "img", "aria-label": label });
  const context = canvas.getContext("2d"),
    pixels = context.createImageData(4, 4);
  const update = (values, top) => {
    for (let h = 0; h < 16; h++) pixels.data.set([...diverging(values[h] / top), 255], h * 4);
    context.putImageData(pixels, 0, 0);
  };
  return { root: canvas, update };
}
